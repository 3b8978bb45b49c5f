"""FX graphs: tracing them, the bodies that they hold, and the calls that switch a state.

Dynamo records `with torch.autocast(...)`, gradient mode and function transforms as calls of private
functions. Export records some of them as higher-order operators with a body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from .operators import HigherOrderOperator
from .shapes import without_guards

__all__ = ["tree_flatten", "tree_leaves", "tree_map"]


def counts(target: Any, args: Sequence[Any]) -> bool:
    """Whether a call makes a tensor of a range: `torch.tensor(range(n))`, `x.new_tensor(…)`."""
    # Dynamo of torch 2.11 keeps the latter.
    place = {"new_tensor": 1}.get(target, 0 if target is torch.tensor else None)
    return place is not None and len(args) > place and isinstance(args[place], range)


def arange_of(
    target: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call of `torch.arange` that such a call is. args: values, not nodes."""
    like, counted = args[0], args[-1]
    known = {"dtype": like.dtype, "device": like.device} if target == "new_tensor" else {}
    return torch.arange, (counted.start, counted.stop, counted.step), {**known, **options}


def trace_functional(
    function: Callable[..., Any], inputs: Sequence[Any], fake_mode: Any
) -> torch.fx.GraphModule:
    """Trace `function` to functional ATen on fake inputs, below autograd and composite ops."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    functional = dispatch_functionalize(function, FunctionalTensorMode())
    # In evaluation rrelu has its mean slope, and draws nothing.
    rules = {torch.ops.aten.rrelu_with_noise_functional.default: _rrelu}
    traced = make_fx(functional, rules, tracing_mode="real")
    with contextlib.ExitStack() as stack:
        if any(isinstance(s, torch.SymInt) for x in inputs for s in getattr(x, "shape", (x,))):
            stack.enter_context(enable_python_dispatcher())  # C++ composites want concrete sizes
        stack.enter_context(fake_mode)
        stack.enter_context(torch.no_grad())
        stack.enter_context(without_guards(fake_mode))
        return traced(*inputs)


def _rrelu(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def traced_so_far() -> dict[str, Any]:
    """What each node of the `trace_functional` under way calls, by its name."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    return {} if mode is None else {node.name: node.target for node in mode.tracer.graph.nodes}


def write_symbolic(
    expression: Any, nodes: Mapping[Any, torch.fx.Node], graph: torch.fx.Graph
) -> torch.fx.Node:
    """Write a sympy expression at the insertion point of `graph`; nodes: by symbol."""
    from torch.fx.proxy import GraphAppendingTracer
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = GraphAppendingTracer(graph)
    proxies = {symbol: torch.fx.Proxy(node, tracer) for symbol, node in nodes.items()}
    written: torch.fx.Proxy = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    return written.node


def value_of(node: torch.fx.Node) -> Any:
    """The fake value of a node, or None."""
    example = node.meta.get("example_value")
    return node.meta.get("val") if example is None else example


def body_of(node: torch.fx.Node) -> torch.fx.GraphModule | None:
    """The GraphModule that a get_attr node fetches."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return owner if isinstance(owner, torch.fx.GraphModule) else None


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
    """What a call switches: "autocast on" or "off", "grad", "inference", "transform", or ""."""
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
    """Enter autocast as Dynamo's enter calls have it: (device type, dtype, enabled, cache)."""
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
    """A higher-order op that runs its graphs as they are: checkpoints, branches, switches."""
    if not isinstance(target, HigherOrderOperator):
        return False
    return target.name() in _PLAIN_BODIES or target.name() in _SWITCHED_BODIES


def body_change(target: Any) -> str:
    """What is switched for the bodies of such an op, as `state_change` has it."""
    return _SWITCHED_BODIES.get(target.name(), "") if has_plain_bodies(target) else ""


def is_autograd_function(target: Any) -> bool:
    """The higher-order op that stands for a user's torch.autograd.Function."""
    return isinstance(target, HigherOrderOperator) and target.name() == "autograd_function_apply"
