"""Facts about nodes of the user's graph: values, storages, effects, products, places in the source.

The graph may be Dynamo's (operators, torch functions, Tensor methods; fakes in
meta["example_value"]) or an exported one (ATen overloads; fakes in meta["val"]). Whatever is not
known to be a plain torch function is opaque: it is never run again, and is taken to change every
tensor that it is given.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .._compat import fx, operators, subclasses

# fmt: off
# Products by short name. The number of operands follows the leading ones that are added
# (`baddbmm`).
PRODUCTS = frozenset([
    "matmul", "linalg_matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm",
    "einsum", "linear", "tensordot", "inner", "linalg_multi_dot", "chain_matmul",
])
# Views whose result always shares storage with the first argument, and depends on nothing else but
# sizes.
VIEWS = frozenset([
    "transpose", "permute", "unsqueeze", "squeeze", "expand", "expand_as", "view", "view_as",
    "unflatten", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "mT", "T", "alias",
])
CASTS = frozenset([
    "to", "type", "type_as", "half", "bfloat16", "float", "double", "int", "long", "short",
    "char", "byte", "bool", "_to_copy",
])
# Point-wise functions of masks and biases, by their names in any graph.
POINTWISE = frozenset([
    "add", "sub", "mul", "truediv", "div", "floordiv", "floor_divide", "mod", "remainder",
    "neg", "abs", "pow", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_", "xor", "invert",
    "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_not", "bitwise_xor", "__and__", "__or__", "where", "masked_fill", "clamp",
    "clamp_min", "clamp_max", "minimum", "maximum", "tril", "triu", "exp", "sigmoid", "rsub",
    "fmod", "max", "min", "lshift", "rshift", "bitwise_left_shift", "bitwise_right_shift",
    "__lshift__", "__rshift__", "zeros_like", "ones_like", "full_like",
])
# Tensors that are functions of their indices alone.
CREATIONS = frozenset(["arange", "ones", "zeros", "full", "eye", "scalar_tensor"])
# Functions that read a size and nothing else of a tensor.
SHAPES = frozenset([
    "size", "sym_size", "numel", "sym_numel", "dim", "shape", "len", "__len__", "stride",
    "sym_stride",
])
# What export puts before a cast: an assertion of a dtype and a device, as they are known anyway.
ASSERTIONS = frozenset(["_assert_tensor_metadata"])
# Functions that return their argument itself where its strides allow it, and else a copy.
MAY_ALIAS = CASTS | {"reshape", "reshape_as", "contiguous", "flatten", "ravel"}
# Functions whose result is the argument itself without its history: autograd does not see that a
# write through it changes the argument. Nor does `.data` tell the version counter.
SILENT = frozenset(["_get_data_attr", "data"])
DETACHING = SILENT | {"detach"}
# In-place calls that change no element: those that cut a tensor from its history, those that give
# it other dims or strides, and those that give it another storage.
CUTS = frozenset(["detach_", "requires_grad_"])
# Calls whose result has no history, in whatever graph.
HISTORYLESS = DETACHING | {"detach_"}
RESHAPES = frozenset([
    "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_",
])
MOVES = frozenset(["set_", "resize_", "resize_as_", "_set_data", "set_data", "swap_tensors"])
# Calls that see the gradient of what they are given.
WATCHERS = frozenset([
    "grad", "backward", "retain_grad", "register_hook", "register_post_accumulate_grad_hook",
])
# Functions that take the dtype and device of a tensor, and nothing else of it.
FACTORIES = frozenset(["new_empty", "new_full", "new_ones", "new_zeros"])
_RANDOM = re.compile(
    "rand|dropout|bernoulli|normal|uniform|multinomial|poisson|exponential|geometric|cauchy|rrelu"
    "|fractional|gumbel|multi_head_attention"
)
_INPLACE_OPERATORS = frozenset([
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior",
    "ixor", "ilshift", "irshift", "iconcat", "setitem", "delitem",
])
# Functions that write into what they are given after the first argument, whatever a schema says.
_WRITES_BUFFERS = frozenset([
    "batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
    "batch_norm_update_stats", "rrelu_with_noise",
])
_RENORMALISES = frozenset(["embedding", "embedding_bag"])
_OPAQUE_MODULES = (
    "torch._dynamo", "torch.distributed", "torch._higher_order_ops", "torch.utils",
    "torch._functorch",
)
# fmt: on


def value(node: Node) -> Any:
    """The fake value of a node, or None."""
    found = node.meta.get("example_value")
    return node.meta.get("val") if found is None else found


def tensors(node: Node) -> list[torch.Tensor]:
    """The fake tensors that a node returns."""
    found = value(node)
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, (tuple, list)):
        return [x for x in found if isinstance(x, torch.Tensor)]
    return []


def storages(node: Node) -> set[int]:
    """Identities of the storages that the node's value lives in, with all parts of a nested one."""
    found = _storages(p for t in tensors(node) for p in (t, *subclasses.inner_tensors(t)))
    return found | _behind_idle_dropouts(node.graph, found)


def written_storages(node: Node) -> set[int]:
    """Those that a write into the node's value changes: of a nested tensor its values alone."""
    found = _storages(part for t in tensors(node) for part in (t, subclasses.values_of(t)))
    return found | _behind_idle_dropouts(node.graph, found)


def _behind_idle_dropouts(graph: Graph, held: set[int]) -> set[int]:
    """The storages of arguments that a dropout returns as they are. Its fake is a copy."""
    found = set(held)
    calls = [
        node
        for target in (torch.nn.functional.dropout, torch.ops.aten.dropout.default)
        for node in graph.find_nodes(op="call_function", target=target)
    ]
    for node in reversed(calls):
        made, given = _storages(tensors(node)), _storages(tensors(node.all_input_nodes[0]))
        if not found.isdisjoint(made) and _is_idle(node):
            found |= given
    return found


def _is_idle(dropout: Node) -> bool:
    """Whether a dropout drops nothing: p is 0, or it is not in training."""
    given = dict(zip(("input", "p", "training", "inplace"), dropout.args, strict=False))
    given = given | {"training" if k == "train" else k: x for k, x in dropout.kwargs.items()}
    return given.get("training", True) is False or bool(given.get("p", 0.5) == 0.0)


def _storages(given: Iterable[torch.Tensor]) -> set[int]:
    found: set[int] = set()
    for tensor in given:
        try:
            found.add(subclasses.storage_address(tensor.untyped_storage()))
        except (NotImplementedError, RuntimeError):
            continue
    return found


def is_plain(node: Node) -> bool:
    """Only strided fake tensors: nothing sparse, quantised, nested or of another subclass."""
    return all(
        subclasses.is_fake(t) and t.layout == torch.strided and not t.is_quantized
        for t in tensors(node)
    )


def name(node: Node) -> str:
    """The short name of what a node calls: "matmul", "mul_", "mT"; "" for what is not a call."""
    target: Any = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return ""
    if target is getattr:
        return str(node.args[1])
    if isinstance(target, operators.OpOverload):
        return str(operators.schema_of(target).name.split("::")[-1])
    return str(getattr(target, "__name__", target))


def is_opaque(node: Node) -> bool:
    """A call that is no plain torch function: a higher-order or custom op, a module, user code."""
    if node.op == "call_method":
        return False
    return node.op == "call_module" or (
        node.op == "call_function" and _is_opaque_target(node.target)
    )


@functools.lru_cache(maxsize=4096)
def _is_opaque_target(target: Any) -> bool:
    if isinstance(target, operators.OpOverload):
        return target.namespace not in ("aten", "prims", "prim")
    if isinstance(target, operators.OpOverloadPacket):
        return not operators.qualified_name(target).startswith(("aten::", "prims::", "prim::"))
    if isinstance(target, operators.HigherOrderOperator):
        return True
    module = getattr(target, "__module__", None) or ""
    known = module in ("torch", "_operator", "builtins", "math") or module.startswith("torch.")
    return not known or module.startswith(_OPAQUE_MODULES)


def is_view(node: Node) -> bool:
    """A call that looks at its first argument's storage in another shape, whatever the sizes."""
    if (
        node.op not in ("call_function", "call_method")
        or is_opaque(node)
        or len(tensors(node)) != 1
    ):
        return False
    if name(node) == "getitem":
        shaping = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        if not all(part is None or part is Ellipsis or part == slice(None) for part in shaping):
            return False
    elif name(node) not in VIEWS or any(
        isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values())
    ):
        return False
    return (
        bool(node.all_input_nodes)
        and storages(node) <= storages(node.all_input_nodes[0])
        and is_plain(node)
    )


def is_random(node: Node) -> bool:
    """A call that may draw random numbers."""
    called = name(node)
    known = _RANDOM.search(called)
    return bool(known) or any(map(operators.draws_random, operators.aten_overloads(called)))


def flat_nodes(arguments: Any) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(arguments, found.append)
    return found


def mutated(node: Node) -> list[Node]:
    """The arguments that a call changes in place; all of them where that is not known."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return []
    if _is_state_change(node):
        return []
    target: Any = node.target
    if isinstance(target, operators.OpOverload):
        return _written(node, operators.schema_of(target)) + _silently_written(node)
    if isinstance(target, operators.OpOverloadPacket) and _is_opaque_target(target):
        schemas = [operators.schema_of(getattr(target, name)) for name in target.overloads()]
        return list(dict.fromkeys(n for schema in schemas for n in _written(node, schema)))
    if node.op == "call_module" or (node.op == "call_function" and _is_opaque_target(target)):
        bodies = [fx.body_of(n) for n in flat_nodes((node.args, node.kwargs)) if n.op == "get_attr"]
        known = isinstance(target, operators.HigherOrderOperator) and any(
            b is not None for b in bodies
        )
        if known and not any(
            mutated(inner) for b in bodies if b is not None for inner in b.graph.nodes
        ):
            return []
        return flat_nodes((node.args, node.kwargs))
    called = name(node)
    changed = flat_nodes(node.kwargs.get("out")) + _declared(node)
    trailing = (
        called.endswith("_")
        and not called.endswith("__")
        and getattr(target, "__module__", "") != "_operator"
    )
    special = called in _INPLACE_OPERATORS or re.fullmatch(r"__(i\w+|setitem|delitem)__", called)
    if trailing or (special and called != "__invert__") or _asks_inplace(node):
        changed += flat_nodes(node.args[:1] if node.args else list(node.kwargs.values())[:1])
    return changed + _silently_written(node)


def _declared(node: Node) -> list[Node]:
    """What ATen's function of that name writes into: of optimizers' and observers', several."""
    called = name(node)
    if called in WATCHERS or getattr(node.target, "__module__", "") == "_operator":
        return []
    schemas = map(operators.schema_of, operators.aten_overloads(called))
    own = (s for s in schemas if not any(argument.is_out for argument in s.arguments))
    return list(dict.fromkeys(n for schema in own for n in _written(node, schema)))


def _silently_written(node: Node) -> list[Node]:
    """Buffers that a function changes although neither its name nor a schema says so."""
    called, others = name(node), (node.args[1:], node.kwargs)
    if called in _WRITES_BUFFERS:
        return flat_nodes(others)
    if called not in _RENORMALISES or isinstance(node.target, operators.OpOverload):
        return []
    max_norm = node.args[3] if len(node.args) > 3 else node.kwargs.get("max_norm")
    return [] if max_norm is None else flat_nodes(others)


def may_alias(node: Node) -> bool:
    """Whether it depends on strides if a call returns its argument itself or a copy."""
    if name(node) not in MAY_ALIAS or is_opaque(node) or not node.all_input_nodes:
        return False
    given, made = tensors(node.all_input_nodes[0]), tensors(node)
    return len(given) == len(made) == 1 and given[0].dtype == made[0].dtype


def requires_grad(node: Node) -> bool:
    """Whether a tensor of the node's has gradients, as it was captured."""
    return any(t.requires_grad for t in tensors(node))


def may_want_gradients(node: Node) -> bool:
    """Whether a tensor of the node's may have gradients. Of an exported graph nobody knows yet, but
    of what is made from no tensor.
    """
    exported = "val" in node.meta and "example_value" not in node.meta
    exported = exported and (node.op in ("placeholder", "get_attr") or bool(node.all_input_nodes))
    return any(t.requires_grad or (exported and t.is_floating_point()) for t in tensors(node))


def cuts_history(node: Node) -> bool:
    """A call that returns its argument itself, without its history."""
    source = node.all_input_nodes[0] if node.all_input_nodes else None
    if source is None or not storages(node) & storages(source):
        return False
    lost = any(t.requires_grad for t in tensors(source)) and not any(
        t.requires_grad for t in tensors(node)
    )
    return name(node) in DETACHING or lost


def _is_state_change(node: Node) -> bool:
    return node.op == "call_function" and bool(fx.state_change(node.target))


def _written(node: Node, schema: Any) -> list[Node]:
    found: list[Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = (
                node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            )
            found += flat_nodes(given)
    return found


def _asks_inplace(node: Node) -> bool:
    """`F.relu(x, inplace=True)`, by name or by position."""
    if node.kwargs.get("inplace"):
        return True
    position = _inplace_position(node.target) if node.op == "call_function" else None
    return position is not None and position < len(node.args) and bool(node.args[position])


@functools.lru_cache(maxsize=4096)
def _inplace_position(target: Callable[..., Any]) -> int | None:
    if not inspect.isfunction(target):
        return None
    parameters = list(inspect.signature(target).parameters)
    return parameters.index("inplace") if "inplace" in parameters else None


def is_product(node: Node) -> bool:
    """Whether a node multiplies matrices: its ATen form contains a contraction of two operands."""
    called = name(node)
    if called not in PRODUCTS or is_opaque(node) or len(operands(node)) < 2:
        return False
    return called != "einsum" or _contracts(node)


def operands(node: Node) -> list[Node]:
    """The tensors that a product multiplies, without what it adds."""
    called, args = name(node), node.args
    if called in ("einsum", "chain_matmul"):  # an einsum of lists has no equation
        found = flat_nodes(args)
    elif called in ("addmm", "baddbmm"):
        found = flat_nodes((args[1:3], node.kwargs))
    elif called == "__rmatmul__":
        found = flat_nodes(args[:2])[::-1]
    else:
        found = flat_nodes((args[:2], node.kwargs))
    return [n for n in found if tensors(n)]


def _contracts(node: Node) -> bool:
    """Whether an einsum sums over a letter; unknown forms count as a product."""
    equation = node.args[0] if node.args else None
    if not isinstance(equation, str):
        return True
    given, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        return True
    return any(letter not in result for letter in given if letter.isalpha())


def is_weight_product(node: Node) -> bool:
    """A product with a 2-D weight: `x @ W` of a tensor with more dims or of a weight that enters
    the graph, `linear` unless its weight is made from a tensor with more dims.
    """
    given = operands(node)
    if name(node) == "linear":
        return len(given) < 2 or _is_flat_throughout(given[1])
    flat = [n for n in given if tensors(n)[0].dim() <= 2]
    if name(node) == "einsum":
        return any(_is_parameter(origin(n)) for n in flat)
    return 0 < len(flat) < len(given) or any(
        origin(n).op in ("placeholder", "get_attr") for n in flat
    )


_FAR = 16  # nodes that a weight is made by: more of them, and it counts as one all the same


def _is_flat_throughout(node: Node) -> bool:
    """Whether a 2-D tensor is made from tensors of at most two dims, as weights are."""
    seen, stack = {node}, [node]
    while stack and len(seen) <= _FAR:
        sources = [n for n in stack.pop().all_input_nodes if n not in seen and tensors(n)]
        if any(t.dim() > 2 for n in sources for t in tensors(n)):
            return False
        seen.update(sources)
        stack += sources
    return True


def origin(node: Node) -> Node:
    """What a chain of views and casts looks at."""
    while (
        node.op.startswith("call")
        and (name(node) in VIEWS or name(node) in CASTS)
        and node.all_input_nodes
    ):
        node = node.all_input_nodes[0]
    return node


def _is_parameter(node: Node) -> bool:
    return any(isinstance(t, torch.nn.Parameter) for t in tensors(node))


_LIBRARY = re.compile(r"[/\\\\](site-packages|dist-packages|torch)[/\\\\]")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def location(node: Node) -> str:
    """`file:line` of the innermost frame of the user's own code, else of the innermost frame."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [
        frame
        for frame in frames
        if not _LIBRARY.search(frame[0]) and not frame[0].startswith(_PACKAGE)
    ]
    chosen = own or frames
    return f"{chosen[-1][0]}:{chosen[-1][1]}" if chosen else ""


def describe(node: Node) -> str:
    """How a reason names a node: `softmax (line 12)`."""
    line = location(node).rpartition(":")[2]
    return f"`{name(node) or node.name}`" + (f" (line {line})" if line else "")


def bodies(gm: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """The plain bodies that the graph calls, with their call sites: activation checkpoints,
    branches.
    """
    for node in gm.graph.nodes:
        if node.op == "call_function" and fx.has_plain_bodies(node.target):
            for argument in _get_attrs(node.args):
                body = fx.body_of(argument)
                if body is not None:
                    yield node, body


def _get_attrs(arguments: Any) -> Iterable[Node]:
    return [n for n in flat_nodes(arguments) if n.op == "get_attr"]
