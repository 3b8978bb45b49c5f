"""Aim samples at ties of comparisons.

A mask may be wrong at a few scores only, where the two numbers that it compares are nearly equal.
Random samples seldom hit these. So a first evaluation records the distance between the two sides of
each comparison. Then a quarter of the lanes moves its key by that distance, and another quarter an
operand. There the two sides become equal, or differ by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .samples import inside

if TYPE_CHECKING:
    from .compare import SampledWeights

_FARTHEST = 2.0**62


def gap(args: Sequence[Any]) -> Tensor | None:
    """How far apart two numbers are that are compared, lane by lane; None if these are no two."""
    if len(args) != 2 or not all(map(_is_number, args)):
        return None
    left, right = (x.double() if isinstance(x, Tensor) else x for x in args)
    apart = left - right
    return torch.where(apart.abs() < _FARTHEST, apart, 0.0).detach()  # NaN and infinity are not


def _is_number(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.dtype != torch.bool and not x.dtype.is_complex
    return type(x) in (int, float)


def aimed(weights: SampledWeights, gaps: list[Tensor]) -> SampledWeights:
    """The same weights, at samples of which some tie. gaps: what `gap` found of the comparisons."""
    lanes, key = weights.lanes, weights.at["kv_idx"]
    drawn = lanes.hash("aim")
    one = torch.stack(gaps)[drawn % len(gaps), torch.arange(len(drawn))]
    jitter = torch.where((drawn >> 20) % 2 == 0, 0, (drawn >> 22) % 3 - 1)
    move = one * ((drawn >> 26) % 2 * 2 - 1) + jitter
    kind = (drawn >> 30) % 4
    steps = torch.where(kind == 0, move.round().long(), 0)
    other = inside(key - steps, weights.call.keys, key)
    at = {**weights.at, "kv_idx": inside(key + steps, weights.call.keys, other)}
    lanes.draw_again(torch.where(kind == 1, move, 0.0))
    return replace(weights, at=at, scored={})
