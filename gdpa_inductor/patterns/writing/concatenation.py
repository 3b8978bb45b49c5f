"""One call of the operator for several values of one set of weights, which stand side by side:

    P·V₁, P·V₂   →   P·[V₁ V₂], of which each gets its channels

In: the replacements of regions that differ in their values only. Out: one for all of them. Each
result is a copy with the strides that it had, so that writes into one do not reach the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ..._compat import shapes
from ...ops import ATTENTION
from ..host.sizes import same
from .recipe import Handle, Recipe

aten = torch.ops.aten
_VALUE = ATTENTION.positional.index("value")


@dataclass
class _Replay:
    """Recipes that are written into one. Equal calls are made once."""

    recipe: Recipe
    nodes: dict[Node, Handle] = field(default_factory=dict)
    known: dict[Any, Handle] = field(default_factory=dict)
    handles: dict[Handle, Handle] = field(default_factory=dict)

    def again(self, call: Handle) -> None:
        args = self.arguments(call.args)
        key = call.target, self.key(args), tuple(sorted(call.options.items()))
        if key not in self.known:
            assert call.target is not None
            self.known[key] = self.recipe.call(call.target, *args, **call.options)
        self.handles[call] = self.known[key]

    def arguments(self, args: Any) -> Any:
        if isinstance(args, (tuple, list)):
            return type(args)(self.arguments(a) for a in args)
        if isinstance(args, Handle) and args.node is not None:
            return self.nodes.setdefault(args.node, args)
        return self.handles[args] if isinstance(args, Handle) else args

    def key(self, args: Any) -> Any:
        """Equal for arguments that mean the same."""
        if isinstance(args, (tuple, list)):
            return tuple(map(self.key, args))
        if isinstance(args, Handle):
            return id(args)
        return str(shapes.expression_of(args)) if isinstance(args, torch.SymInt) else args


def concatenate(parts: Sequence[tuple[Recipe, Handle]]) -> tuple[Recipe, list[Handle]] | None:
    """The calls that replace several regions, and the result of each; None where their weights or
    the outer sizes of their values differ. parts: (recipe, result) of each region.
    """
    first = parts[0][0]
    replay = _Replay(Recipe(first.grad, first.fake_mode))
    calls, arguments = [], []
    for recipe, _ in parts:
        call = recipe.attention
        for before in recipe.calls[: recipe.calls.index(call)]:
            replay.again(before)
        calls.append(call)
        arguments.append(list(replay.arguments(call.args)))
    values: list[Handle] = [args[_VALUE] for args in arguments]
    rest = [replay.key([*args[:_VALUE], *args[_VALUE + 1 :]]) for args in arguments]
    if any(other != rest[0] for other in rest) or not all(_fit(values[0], v) for v in values):
        return None
    distinct = list(dict.fromkeys(values))
    several = len(distinct) > 1
    value = replay.recipe.call(aten.cat.default, distinct, -1) if several else distinct[0]
    args = [*arguments[0][:_VALUE], value, *arguments[0][_VALUE + 1 :]]
    output = replay.recipe.call(ATTENTION.op, *args)
    results = []
    for (recipe, result), call, value in zip(parts, calls, values, strict=True):
        start = sum(v.value.shape[-1] for v in distinct[: distinct.index(value)])
        replay.handles[call] = _part(replay.recipe, output, start, call)
        for after in recipe.calls[recipe.calls.index(call) + 1 :]:
            replay.again(after)
        results.append(replay.handles[result])
    return replay.recipe, results


def _fit(one: Handle, other: Handle) -> bool:
    """Whether two values can stand side by side."""
    pairs = zip(one.value.shape[:-1], other.value.shape[:-1], strict=False)
    return (
        one.value.dtype == other.value.dtype
        and one.value.dim() == other.value.dim()
        and all(same(a, b) for a, b in pairs)
    )


def _part(recipe: Recipe, output: Handle, start: Any, like: Handle) -> Handle:
    """The channels of one value, as a tensor of its own with the strides of `like`."""
    end, last = start + like.value.shape[-1], output.value.dim() - 1
    part = recipe.contiguous(recipe.call(aten.slice.Tensor, output, last, start, end))
    part = recipe.with_strides(part, like.value)
    return part if recipe.grad else recipe.own(part)
