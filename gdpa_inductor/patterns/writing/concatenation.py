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
from torch.fx.node import map_aggregate

from ..._compat.shapes import expression_of
from ...ops import ATTENTION
from ..host.sizes import same_shape
from .recipe import Handle, Recipe

aten = torch.ops.aten
_VALUE = ATTENTION.positional.index("value")


@dataclass
class _Merge:
    """Recipes that are written into one. Equal calls are made once.

    calls:    The calls in the new recipe, by what they compute.
    handles:  Their results, by the calls of the old recipes. The user's tensors, by their nodes.
    """

    recipe: Recipe
    calls: dict[Any, Handle] = field(default_factory=dict)
    handles: dict[Handle | Node, Handle] = field(default_factory=dict)

    def replay(self, call: Handle) -> None:
        args = self.arguments(call.args)
        key = call.target, self.key(args), tuple(sorted(call.options.items()))
        if key not in self.calls:
            assert call.target is not None
            self.calls[key] = self.recipe.call(call.target, *args, **call.options)
        self.handles[call] = self.calls[key]

    def arguments(self, args: Any) -> Any:
        return map_aggregate(args, lambda x: self._handle(x) if isinstance(x, Handle) else x)

    def _handle(self, old: Handle) -> Handle:
        return self.handles[old] if old.node is None else self.handles.setdefault(old.node, old)

    def key(self, args: Any) -> Any:
        """Equal for arguments that mean the same."""
        if isinstance(args, (tuple, list)):
            return tuple(map(self.key, args))
        if isinstance(args, Handle):
            return id(args)
        return str(expression_of(args)) if isinstance(args, torch.SymInt) else args


def concatenate(parts: Sequence[tuple[Recipe, Handle]]) -> tuple[Recipe, list[Handle]] | None:
    """(the calls that replace several regions, the result of each) for (recipe, result) of each.

    None if their weights or the outer sizes of their values differ.
    """
    first = parts[0][0]
    merged = _Merge(Recipe(first.grad, first.fake_mode))
    calls, arguments = [], []
    for recipe, _ in parts:
        call = recipe.attention
        for before in recipe.calls[: recipe.calls.index(call)]:
            merged.replay(before)
        calls.append(call)
        arguments.append(list(merged.arguments(call.args)))
    values: list[Handle] = [args[_VALUE] for args in arguments]
    rest = [merged.key([*args[:_VALUE], *args[_VALUE + 1 :]]) for args in arguments]
    dtypes, shapes = {v.value.dtype for v in values}, [v.value.shape[:-1] for v in values]
    if any(other != rest[0] for other in rest) or len(dtypes) > 1:
        return None
    if not all(same_shape(shapes[0], shape) for shape in shapes):
        return None
    distinct = list(dict.fromkeys(values))
    several = len(distinct) > 1
    value = merged.recipe.call(aten.cat.default, distinct, -1) if several else distinct[0]
    args = [*arguments[0][:_VALUE], value, *arguments[0][_VALUE + 1 :]]
    output = merged.recipe.call(ATTENTION.op, *args)
    results = []
    for (recipe, result), call, value in zip(parts, calls, values, strict=True):
        start = sum(v.value.shape[-1] for v in distinct[: distinct.index(value)])
        merged.handles[call] = _part(merged.recipe, output, start, call)
        for after in recipe.calls[recipe.calls.index(call) + 1 :]:
            merged.replay(after)
        results.append(merged.handles[result])
    return merged.recipe, results


def _part(recipe: Recipe, output: Handle, start: Any, like: Handle) -> Handle:
    """The channels of one value, as a tensor of its own with the strides of `like`."""
    end, last = start + like.value.shape[-1], output.value.dim() - 1
    part = recipe.contiguous(recipe.call(aten.slice.Tensor, output, last, start, end))
    part = recipe.with_strides(part, like.value)
    return part if recipe.grad else recipe.own(part)
