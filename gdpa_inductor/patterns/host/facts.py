"""Facts about nodes of the user's graph: values, storages, names, and kinds of calls.

The graph is of one of two kinds:

- Dynamo's: operators, torch functions and Tensor methods, with fakes in meta["example_value"].
- An exported one: ATen overloads, with fakes in meta["val"].

A call that is not known to be a plain torch function is *opaque*. It is never run again, and is
assumed to change every tensor that it gets.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.fx import Graph, GraphModule, Node

from ..._compat import dynamo, fx, operators, subclasses
from . import functions

T = TypeVar("T")
value = fx.value_of

# fmt: off
_RANDOM = re.compile(
    "rand|dropout|bernoulli|normal|uniform|multinomial|poisson|exponential|geometric|cauchy|rrelu"
    "|fractional|gumbel|multi_head_attention"
)
_OPAQUE_MODULES = (
    "torch._dynamo", "torch.distributed", "torch._higher_order_ops", "torch.utils",
    "torch._functorch",
)
# fmt: on


def walk(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """What is reached from some nodes, themselves first, then the nearest: each once."""
    queue = deque(dict.fromkeys(starts))
    reached = set(queue)
    while queue:
        node = queue.popleft()
        yield node
        for other in following(node):
            if other not in reached:
                reached.add(other)
                queue.append(other)


def is_call(node: Node) -> bool:
    """Whether a node calls a function or a method."""
    return node.op in ("call_function", "call_method")


def tensors(node: Node) -> list[torch.Tensor]:
    """The fake tensors that a node returns."""
    result = value(node)
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [x for x in result if isinstance(x, torch.Tensor)]
    return []


def storages(node: Node) -> set[int]:
    """The identities of the storages of a node's value. A nested tensor has several."""
    parts = (p for t in tensors(node) for p in (t, *subclasses.inner_tensors(t)))
    return _behind_idle_dropouts(node.graph, _storages(parts))


def written_storages(node: Node) -> set[int]:
    """The storages that a write into a node changes: of a nested tensor, its values only."""
    parts = [p for t in tensors(node) for p in (t, subclasses.values_of(t))]
    wrapped = [p for t in tensors(node) for p in subclasses.wrapped_by(t)]
    return _behind_idle_dropouts(node.graph, _storages([*parts, *wrapped]))


def _behind_idle_dropouts(graph: Graph, own: set[int]) -> set[int]:
    """Add the storages of arguments that dropouts return unchanged. Their fake values are copies.

    A dropout may drop nothing if p is 0 or varies, or if it is not in training.
    """
    result = set(own)
    dropouts = [
        node
        for target in (torch.nn.functional.dropout, torch.ops.aten.dropout.default)
        for node in graph.find_nodes(op="call_function", target=target)
    ]
    for node in reversed(dropouts):
        p = _rate(node)
        is_idle = p is None or isinstance(p, Node) or p == 0.0
        if is_idle and not result.isdisjoint(_storages(tensors(node))):
            result |= _storages(tensors(node.all_input_nodes[0]))
    return result


def drops_at_times(node: Node) -> bool:
    """Whether a node is a dropout in training whose rate varies."""
    return "dropout" in name(node) and isinstance(_rate(node), Node)


def drops(node: Node) -> bool:
    """Whether a node is a dropout in training whose rate is a number between 0 and 1."""
    rate = _rate(node) if node.target in _DROPOUTS else None
    return isinstance(rate, float) and 0.0 < rate < 1.0


_DROPOUTS = (torch.nn.functional.dropout, torch.dropout)


def _rate(dropout: Node) -> Any:
    """The p of a dropout; None where it is not in training."""
    arguments = arguments_of_dropout(dropout)
    return None if arguments["training"] is False else arguments["p"]


def arguments_of_dropout(dropout: Node) -> dict[str, Any]:
    """The arguments by name, as `torch.nn.functional.dropout` has them."""
    arguments: dict[str, Any] = {"input": None, "p": 0.5, "training": True, "inplace": False}
    arguments |= zip(list(arguments), dropout.args, strict=False)
    return arguments | {"training" if k == "train" else k: x for k, x in dropout.kwargs.items()}


def _storages(values: Iterable[torch.Tensor]) -> set[int]:
    addresses: set[int] = set()
    for tensor in values:
        try:
            addresses.add(subclasses.storage_address(tensor.untyped_storage()))
        except (NotImplementedError, RuntimeError):
            continue
    return addresses


def is_plain(node: Node) -> bool:
    """Whether a node has strided tensors only: none sparse, quantised, nested or of a subclass."""
    return _own_class(node) is None and all(
        subclasses.is_fake(t) and t.layout == torch.strided and not t.is_quantized
        for t in tensors(node)
    )


def kinds(node: Node) -> str:
    """The kinds of the tensors of a node that is not plain, as text."""
    own = _own_class(node)
    types = {type(t) for t in tensors(node)} if own is None else {own}
    return ", ".join(sorted(kind.__name__ for kind in types))


def _own_class(node: Node) -> type | None:
    """The class of an input tensor, if it is a subclass of the user's; else None.

    Dynamo's fake of such a tensor is a plain one, but the compiled code gets the tensor itself.
    """
    tensor = dynamo.real_input(node) if node.op == "placeholder" else None
    return subclasses.class_of_user(tensor)


# What Dynamo writes for the attributes `T` and `H` from torch 2.15 on: ATen's functions of them.
_ATTRIBUTES = {"numpy_T": "T", "matrix_H": "H"}


def name(node: Node) -> str:
    """The short name of what a node calls, such as "matmul", "mul_" or "mT", or ""."""
    target: Any = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return ""
    if target is getattr:
        return str(node.args[1])
    if isinstance(target, operators.OpOverload):
        called = str(operators.schema_of(target).name.split("::")[-1])
    else:
        called = str(getattr(target, "__name__", target))
    return _ATTRIBUTES.get(called, called)


def argument(node: Node, position: int, *names: str) -> Any:
    """An argument of a call, by its position or by one of its names. None if it is left out."""
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), None)


def read_by_item(node: Node | None) -> Node | None:
    """The tensor of no dims that `.item()` reads: a float that Dynamo keeps as an input."""
    if node is None or name(node) != "item":
        return None
    (tensor,) = node.all_input_nodes
    return tensor if tensors(tensor)[0].dim() == 0 else None


def is_opaque(node: Node) -> bool:
    """Whether a call is no plain torch function, but such as a custom op or user code."""
    if node.op == "call_function":
        return _is_opaque_target(node.target)
    return node.op == "call_module"


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


def is_einops(node: Node) -> bool:
    """Whether a node calls einops, into which torch 2.11 does not trace: plain calls, all of it."""
    module = getattr(node.target, "__module__", None) or ""
    return node.op == "call_function" and module.startswith("einops.")


def is_view(node: Node) -> bool:
    """Whether a call is always a view: it returns its first argument's storage in another shape."""
    if not is_call(node) or is_opaque(node) or len(tensors(node)) != 1 or not node.all_input_nodes:
        return False
    if name(node) == "getitem":
        parts = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        shapes_only = all(part is None or part is Ellipsis or part == slice(None) for part in parts)
    else:
        arguments = (*node.args, *node.kwargs.values())
        casts = any(isinstance(argument, torch.dtype) for argument in arguments)
        shapes_only = name(node) in functions.VIEWS and not casts
    same_storage = shapes_only and storages(node) <= storages(node.all_input_nodes[0])
    return same_storage and is_plain(node)


def lays_out(node: Node) -> bool:
    """Whether a node is a view or a copy.

    A subscript is one if it has no tensor, and a repetition if its count is a number.
    """
    if name(node) == "getitem":
        return not any(map(tensors, node.all_input_nodes[1:]))
    if name(node) == "repeat_interleave":
        return isinstance(argument(node, 1, "repeats"), int)
    return name(node) in functions.LAYOUTS


def is_upcast(node: Node) -> bool:
    """Whether a node is an exact cast that kernels do on the fly: from 16 bits to 32."""
    inputs = [t for n in node.all_input_nodes for t in tensors(n)]
    outputs = tensors(node)
    return (
        name(node) in functions.CASTS
        and len(inputs) == len(outputs) == 1
        and inputs[0].dtype in (torch.float16, torch.bfloat16)
        and outputs[0].dtype == torch.float32
        and inputs[0].device == outputs[0].device
        and is_plain(node)
    )


def is_random(node: Node) -> bool:
    """Whether a call may draw random numbers."""
    if _RANDOM.search(name(node)):
        return True
    return any(map(operators.is_random, operators.aten_overloads(name(node))))


def flat_nodes(arguments: Any) -> list[Node]:
    nodes: list[Node] = []
    torch.fx.map_arg(arguments, nodes.append)
    return nodes


def requires_grad(node: Node) -> bool:
    """Whether a tensor of the node requires grad in the captured graph."""
    return any(t.requires_grad for t in tensors(node))


def may_want_gradients(node: Node) -> bool:
    """Whether a tensor of the node may have a gradient.

    In an exported graph this is not known yet, except for nodes that are made from no tensor.
    """
    exported = "val" in node.meta and "example_value" not in node.meta
    exported = exported and (node.op in ("placeholder", "get_attr") or bool(node.all_input_nodes))
    return any(t.requires_grad or (exported and t.is_floating_point()) for t in tensors(node))


def bodies(gm: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """(call site, body) of each plain body that a graph calls: checkpoints, branches."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and fx.has_plain_bodies(node.target):
            yield from ((node, body) for body in bodies_of(node))


def bodies_of(call: Node) -> list[GraphModule]:
    """The graphs that a call gets as arguments."""
    attributes = (n for n in call.all_input_nodes if n.op == "get_attr")
    return [body for n in attributes if (body := fx.body_of(n)) is not None]


def body_inputs(call: Node, body: GraphModule) -> list[tuple[Node, Node]]:
    """Pairs (input of a body, the node that a call site passes for it)."""
    inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
    operands = fx.tree_leaves(list(call.args))[-len(inputs) :] if inputs else []
    return [(inner, x) for inner, x in zip(inputs, operands) if isinstance(x, Node)]
