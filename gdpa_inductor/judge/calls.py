"""What the calls of a graph do, as far as running them side by side must know it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._compat import fx, operators, shapes, subclasses
from .record import Event, Ref


def drawn(events: Sequence[Event]) -> list[Any]:
    """The random numbers that calls draw: by their sizes, those after them are others or not."""
    return [
        (event.name, [(x.sizes, x.dtype) for x in event.results if isinstance(x, Ref)])
        for event in events
        if operators.draws(event.op, event.arguments)
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
    name = str(node.target) if node.op == "call_method" else operators.op_name(node.target)
    by_name = (name.endswith("_") and not name.endswith("__")) or name.strip("_") in _IN_PLACE
    by_argument = "out" in node.kwargs or _may_ask_inplace(node)
    return (by_name or by_argument) and _takes_wrappers(node)


def _may_ask_inplace(node: Node) -> bool:
    """`F.relu(x, inplace=True)`; by position any `True` counts."""
    target: Any = node.target
    takes = inspect.isfunction(target) and "inplace" in inspect.signature(target).parameters
    return bool(node.kwargs.get("inplace")) or (takes and any(x is True for x in node.args))


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
