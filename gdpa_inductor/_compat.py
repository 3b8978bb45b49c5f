"""Every private torch symbol that the package uses, and the versions it was checked on.

Checked on torch 2.11.0 and 2.13.0 unless a line says otherwise. Imports of torch._inductor are
inside the functions, so that importing this module costs nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._logging import trace_structured  # tlparse artifacts

from ._compat_dynamo import FrameFailure, Observed, backend_of, counters, dynamo_observed

__all__ = [
    "FrameFailure",
    "Observed",
    "backend_of",
    "compile_with_inductor",
    "counters",
    "dynamo_observed",
    "inductor_config",
    "keep_saved_buffers",
    "trace_artifact",
]


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Leave a text in the structured trace log; `payload` runs only if someone records it."""
    trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=payload
    )


def inductor_config(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Inductor's settings for `mode` and `options`, checked as torch.compile checks them."""
    wrapper = torch._TorchCompileInductorWrapper(mode, dict(options or {}), dynamic=None)
    return dict(wrapper.config)


@contextlib.contextmanager
def cache_key_tag(tag: str) -> Iterator[None]:
    """Add `tag` to the keys of FxGraphCache and AOTAutogradCache."""
    config: Any = torch.compiler.config
    with config.patch(cache_key_tag=f"{config.cache_key_tag}{tag}"):
        yield


def add_cache_key_tag(tag: str) -> None:
    """The same for the rest of the process: 2.11 does not ask a pre-grad pass for its uuid."""
    config: Any = torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag}{tag}"


def custom_graph_pass() -> Any:
    """The base class that Inductor wants of a pass with a uuid."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    return CustomGraphPass


def is_dynamo_body(gm: torch.fx.GraphModule) -> bool:
    """A nested graph of Dynamo's (a checkpoint body, a branch): its inputs are no inputs of the
    user's.
    """
    inputs = [node.meta for node in gm.graph.nodes if node.op == "placeholder"]
    return any("example_value" in meta for meta in inputs) and not any(
        "grapharg" in meta for meta in inputs
    )


def compile_with_inductor(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any], tag: str
) -> Callable[..., Any]:
    """compile_fx under the cache tag, which also covers a backward that is compiled later."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        if tag in torch.compiler.config.cache_key_tag:
            return compile_fx_inner(*args, **kwargs)
        with cache_key_tag(tag):
            return compile_fx_inner(*args, **kwargs)

    with cache_key_tag(tag):
        return compile_fx(gm, list(inputs), inner_compile=inner, config_patches=settings)


@contextlib.contextmanager
def keep_saved_buffers(on: bool = True) -> Iterator[None]:
    """Compile backwards that may run again over one forward: they do not reuse saved buffers."""
    from torch._functorch import config

    with config.patch(donated_buffer=False) if on else contextlib.nullcontext():
        yield


# Analysis of graphs (patterns/). Public names that live in private modules, and Dynamo's markers in
# its graphs.


OpOverload, OpOverloadPacket = torch._ops.OpOverload, torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator
tree_leaves = torch.utils._pytree.tree_leaves


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """True only if it is known without a guard."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def size_hint(size: int | torch.SymInt) -> int | None:
    """The value that a size had when the graph was captured; None where there is none. Adds no
    guard.
    """
    if isinstance(size, int):
        return size
    node = size.node
    return int(node.hint) if node.has_hint() else None


def size_bounds(size: torch.SymInt) -> tuple[int | None, int | None]:
    """The smallest and largest value that a size may have, as far as known. Adds no guard."""
    found = size.node.shape_env.bound_sympy(size.node.expr)
    low, high = (int(end) if end.is_Integer else None for end in (found.lower, found.upper))
    return low, high


def guarded_equal(left: Any, right: Any) -> bool:
    """Whether two ragged sizes of nested tensors are equal now; a guard is added only if so."""
    hints = [getattr(size.node, "hint", None) for size in (left, right)]
    if None in hints or not bool(hints[0] == hints[1]):
        return False
    return bool(left == right)


def exact_quotient(
    size: int | torch.SymInt, divisor: int | torch.SymInt
) -> int | torch.SymInt | None:
    """`size // divisor` where it is known that nothing remains: 5·s-5 by s-1 is 5. No guard."""
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor and size % divisor == 0 else None
    import sympy

    top, bottom = (s if isinstance(s, int) else s.node.expr for s in (size, divisor))
    found = sympy.cancel(sympy.sympify(top) / sympy.sympify(bottom))
    if found.is_Integer:
        return int(found)
    if sympy.fraction(found)[1] != 1 or not found.is_polynomial():
        return None
    whole, part = size_hint(size), size_hint(divisor)
    hint = None if whole is None or not part else whole // part
    node: Any = (divisor if isinstance(size, int) else size).node
    return node.shape_env.create_symintnode(sympy.expand(found), hint=hint)


def is_fake(tensor: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return type(tensor) in (FakeTensor, torch.nn.Parameter) and isinstance(tensor, FakeTensor)


def is_compact_nested(tensor: torch.Tensor) -> bool:
    """A jagged nested tensor [B, j, ...] whose sequences follow each other without gaps."""
    return getattr(tensor, "_ragged_idx", 0) == 1 and getattr(tensor, "_lengths", 0) is None


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a wrapper subclass holds: of a nested tensor values and offsets."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a jagged nested tensor; any other as it is."""
    return tensor._values if tensor.is_nested and tensor.layout == torch.jagged else tensor


def fake_mode_of(tensor: torch.Tensor) -> Any:
    """The FakeTensorMode that a fake tensor belongs to."""
    return tensor.fake_mode  # type: ignore[attr-defined]


@contextlib.contextmanager
def without_guards(fake_mode: Any) -> Iterator[None]:
    """Let the sizes of `fake_mode` be compared without a guard: only for what decides nothing about
    the program.
    """
    with contextlib.ExitStack() as stack:
        if fake_mode.shape_env is not None:
            stack.enter_context(fake_mode.shape_env.suppress_guards())
        yield


def trace_functional(
    function: Callable[..., Any], inputs: Sequence[Any], fake_mode: Any
) -> torch.fx.GraphModule:
    """Trace `function` to functional ATen on fake inputs, below autograd: no in-place call, no
    composite op is left.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    functional = dispatch_functionalize(function, FunctionalTensorMode())
    traced = make_fx(functional, tracing_mode="real", _allow_non_fake_inputs=True)
    with contextlib.ExitStack() as stack:
        if any(isinstance(s, torch.SymInt) for x in inputs for s in getattr(x, "shape", (x,))):
            stack.enter_context(enable_python_dispatcher())  # C++ composites want concrete sizes
        stack.enter_context(fake_mode)
        stack.enter_context(torch.no_grad())
        stack.enter_context(without_guards(fake_mode))
        return traced(*inputs)


def traced_so_far() -> dict[str, Any]:
    """What the trace under way has written: what each node calls, by its name. To be called inside
    of `trace_functional`.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    return {} if mode is None else {node.name: node.target for node in mode.tracer.graph.nodes}


def draws_random(target: Any) -> bool:
    """Whether an ATen operation draws random numbers, as its tags say."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


@functools.cache
def aten_overloads(name: str) -> tuple[Any, ...]:
    """ATen's functions of a name."""
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if not isinstance(packet, OpOverloadPacket):  # `torch.ops.aten.__eq__` is of the namespace
        return ()
    return tuple(getattr(packet, overload) for overload in packet.overloads())


_ENTER_AUTOCAST, _EXIT_AUTOCAST = (
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
)
_SET_GRAD = torch._C._set_grad_enabled
_TRANSFORMS = (
    "_vmap_increment_nesting", "_vmap_decrement_nesting",
    "_grad_increment_nesting", "_grad_decrement_nesting",
    "_jvp_increment_nesting", "_jvp_decrement_nesting", "_enter_dual_level", "_exit_dual_level",
    "_saved_tensors_hooks_enable", "_saved_tensors_hooks_disable",
)  # fmt: skip
_INFERENCE = ("_enter_inference_mode", "_exit_inference_mode")


def state_change(target: Any) -> str:
    """What a call of `target` switches: "autocast on", "autocast off", "grad", "inference",
    "transform", or "".
    """
    if target is _ENTER_AUTOCAST or target is _EXIT_AUTOCAST:
        return "autocast on" if target is _ENTER_AUTOCAST else "autocast off"
    if target is _SET_GRAD:
        return "grad"
    called = getattr(target, "__name__", "")
    if called in _TRANSFORMS:
        return "transform"
    return "inference" if called in _INFERENCE else ""


@contextlib.contextmanager
def autocast_regions(entered: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """Enter autocast as the arguments of Dynamo's enter calls say: (device type, dtype, enabled,
    cache).
    """
    with contextlib.ExitStack() as stack:
        for device_type, dtype, enabled, _ in entered:
            stack.enter_context(
                torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=False)
            )
        yield


_PLAIN_BODIES = (
    "tag_activation_checkpoint",
    "wrap",
    "wrap_activation_checkpoint",
    "invoke_subgraph",
    "cond",
)
# What `torch.export` makes of `with torch.no_grad()` and `with torch.autocast(...)`.
_SWITCHED_BODIES = {"wrap_with_set_grad_enabled": "grad", "wrap_with_autocast": "autocast on"}


def has_plain_bodies(target: Any) -> bool:
    """A higher-order op that runs the graphs it is given as they are: activation checkpoints,
    branches, parts of an exported program under other switches.
    """
    if not isinstance(target, torch._ops.HigherOrderOperator):
        return False
    return target.name() in _PLAIN_BODIES or target.name() in _SWITCHED_BODIES


def body_change(target: Any) -> str:
    """What is switched for the bodies of such an op, as `state_change` has it."""
    return _SWITCHED_BODIES.get(target.name(), "") if has_plain_bodies(target) else ""


def is_autograd_function(target: Any) -> bool:
    """The higher-order op that stands for a user's torch.autograd.Function."""
    return (
        isinstance(target, torch._ops.HigherOrderOperator)
        and target.name() == "autograd_function_apply"
    )


def body_of(node: torch.fx.Node) -> torch.fx.GraphModule | None:
    """The GraphModule that a get_attr node fetches."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return owner if isinstance(owner, torch.fx.GraphModule) else None


def write_symbolic(
    expression: Any, nodes: Mapping[Any, torch.fx.Node], graph: torch.fx.Graph
) -> torch.fx.Node:
    """Write a sympy expression as nodes at the insertion point of `graph`; `nodes` gives that of
    each symbol.
    """
    from torch.fx.proxy import GraphAppendingTracer
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = GraphAppendingTracer(graph)
    proxies = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in nodes.items()}
    written: torch.fx.Proxy = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    return written.node


def drops_roundings() -> bool:
    """Whether Inductor's C++ leaves out a rounding to 16 bits and back even where it is told to
    keep it: torch 2.11 does, 2.13 does not; 2.12 was not checked.
    """
    return tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


@dataclass(frozen=True)
class CompiledGraph:
    """`run(*tensors)` is the compiled function; `fits(tensors)` says whether it was compiled for
    their shapes and strides.
    """

    run: Callable[..., Any]
    fits: Callable[[Sequence[torch.Tensor]], bool]


def compile_graph(
    function: Callable[..., None], examples: Sequence[torch.Tensor], *, dynamic: bool
) -> CompiledGraph:
    """Have Inductor compile `function`, which returns nothing and writes to its arguments; at run
    time, without Dynamo.

    dynamic: every size but 0 and 1 is a symbol, and so is every stride that is no product of sizes.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import _disable_current_modes

    def flat(*tensors: torch.Tensor) -> tuple[()]:
        function(*tensors)
        return ()

    with _disable_current_modes(), torch.no_grad(), torch.inference_mode(False):
        traced = make_fx(flat, tracing_mode="symbolic" if dynamic else "fake")(*examples)
        fakes = [node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder"]
        mode = fakes[0].fake_mode
        # Else its C++ leaves out a rounding to 16 bits and back.
        with tracing(TracingContext(mode)), config.patch(emulate_precision_casts=True):
            run = compile_fx(traced, fakes)

    guards = mode.shape_env.produce_guards_expression(fakes) if dynamic else None
    code = compile(guards, "<guards>", "eval") if guards else None

    def fits(tensors: Sequence[torch.Tensor]) -> bool:
        return code is None or bool(mode.shape_env.evaluate_guards_expression(code, tensors))

    return CompiledGraph(run, fits)
