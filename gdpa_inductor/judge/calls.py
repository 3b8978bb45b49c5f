"""What the calls of a graph do, as far as running them side by side must know it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from .._compat import fx, operators, shapes, subclasses
from .jagged import padding_of
from .record import Event, Log, Ref


def drawn(events: Sequence[Event]) -> list[Any]:
    """The random numbers that calls draw: by their sizes, those after them are others or not."""
    return [
        (event.name, [(x.sizes, x.dtype) for x in event.results if isinstance(x, Ref)])
        for event in events
        if event.draws
    ]


_CASTS = frozenset(["to", "type", "type_as", "half", "bfloat16", "float", "double", "_to_copy"])
_KNOWN = ("torch", "_operator", "builtins", "math", "einops", "")  # modules of what is run
_IN_PLACE = frozenset([
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior",
    "ixor", "ilshift", "irshift", "setitem",
])  # fmt: skip
_OPAQUE = ("torch._dynamo.", "torch.distributed")


def casts(target: Any) -> bool:
    """Whether the model asks for a cast; those of any other call are autocast's."""
    return operators.op_name(target) in _CASTS


def is_opaque(node: Node) -> bool:
    """A call that is not run: nobody knows what it does, or it does more than compute."""
    target: Any = node.target
    if node.op != "call_function":
        return node.op == "call_module" or _takes_wrappers(node)
    if isinstance(target, operators.HigherOrderOperator):
        return not fx.is_autograd_function(target)
    module = getattr(target, "__module__", None) or ""
    unknown = module.split(".")[0] not in _KNOWN or module.startswith(_OPAQUE)
    return not fx.state_change(target) and (unknown or _takes_wrappers(node))


def _takes_wrappers(node: Node) -> bool:
    """A call that takes or returns tensors of others' classes, such as distributed ones: those are
    not made here, and what is called is theirs.
    """
    values = [n.meta.get("example_value") for n in (node, *node.all_input_nodes)]
    return any(subclasses.is_foreign(x) for x in fx.tree_leaves(values))


def may_write_wrappers(node: Node) -> bool:
    """A call that is not run and, by its name, writes into what others may be views of."""
    target: Any = node.target
    name = target if node.op == "call_method" else operators.op_name(target)
    by_name = (name.endswith("_") and not name.endswith("__")) or name.strip("_") in _IN_PLACE
    takes = inspect.isfunction(target) and "inplace" in inspect.signature(target).parameters
    in_place = bool(node.kwargs.get("inplace")) or (takes and any(x is True for x in node.args))
    return (by_name or in_place or "out" in node.kwargs) and _takes_wrappers(node)


def specialised(node: Node, result: Any) -> Any:
    """What a method returns: of `.item()` the number that the sizes of the graph were made for, if
    it is only this one.
    """
    example = node.meta.get("example_value")
    known = isinstance(example, torch.SymInt) and shapes.is_constant(example)
    return int(shapes.expression_of(example)) if known and isinstance(result, int) else result


def after_bodies(args: Sequence[Any]) -> list[Any]:
    """What follows the last body among the arguments of a call, but for the body's name."""
    last = max(i for i, x in enumerate(args) if isinstance(x, GraphModule))
    return [x for x in args[last + 1 :] if not isinstance(x, str)]


def switched(node: Node, args: Sequence[Any]) -> Any:
    """The modes that a call switches for its bodies."""
    change = fx.body_change(node.target)
    if change == "autocast on":
        return fx.autocast_regions([tuple(args[:4])])
    return torch.set_grad_enabled(bool(args[0]) if change == "grad" else torch.is_grad_enabled())


def is_adjoint(
    log: Log, ran: Sequence[Event], bodies: Sequence[GraphModule], inputs: Sequence[Any]
) -> bool:
    """Whether the backward of an autograd function is known to be the derivative of its forward.

    In general its author decides what it does to gradients. One pair of operations is known:
    padding jagged values, and removing the padding by the same offsets. Each is the derivative of
    the other, if the gradient is padded with zeros.

    ran: The operations of the function's call. Bodies that do more than pad or unpad are not run
    again; others are, on fakes.
    """
    if [padding_of(event) is None for event in ran if event.writes] != [False]:
        return False
    forward, backward = bodies
    with torch.no_grad():
        (results, *rest), there = _logged(log, lambda: Interpreter(forward).run(*inputs))
        flat = results if isinstance(results, (tuple, list)) else [results]
        coming = [torch.empty_like(x) if isinstance(x, Tensor) else x for x in flat]
        saved = rest[0] if rest else ()
        returned, back = _logged(log, lambda: Interpreter(backward).run(*coming, *saved))
    if len(there) != 1 or len(back) != 1:
        return False
    if [isinstance(x, Tensor) for x in flat] != [True, *[False] * (len(flat) - 1)]:
        return False
    passed = returned if isinstance(returned, (tuple, list)) else [returned]
    ends = [(log.ref(inputs[i]), log.ref(x)) for i, x in enumerate(passed) if isinstance(x, Tensor)]
    if ends != [(there[0].args[0], back[0].results[0])]:
        return False
    pad, inverse = padding_of(there[0]), padding_of(back[0])
    if pad is None or inverse is None or pad.pads == inverse.pads:
        return False
    same = inverse.source == log.ref(coming[0]) and inverse.offsets == pad.offsets
    return same and inverse.fill == 0


def _logged(log: Log, call: Callable[[], Any]) -> tuple[Any, list[Event]]:
    """What a call returns, and the operations that it has run, views left out."""
    first = log.now
    result = call()
    return result, [event for event in log.events[first:] if event.writes]
