"""Aim samples at ties of comparisons, and at numbers where a function of the score turns.

A mask may be wrong at a few scores only, where the two numbers that it compares are nearly equal.
Random samples seldom hit these. So a first evaluation records the distance between the two sides of
each comparison. Then a quarter of the lanes moves its key by that distance, and another quarter an
operand. There the two sides become equal, or differ by one.

A slope may be wrong at one score only, where a clamp meets its bound, a ReLU its kink or a maximum
its tie. So scores are aimed too (`scores_at_turns`): Newton's method leads from a score to one at
which the argument of such a function is exactly the number where it turns. Some lanes then step
aside by one ulp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .samples import inside

if TYPE_CHECKING:
    from .compare import Points, SampledWeights

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


def aimed(points: Points, gaps: list[Tensor], settled: set[Any]) -> Points:
    """The same points, of which some tie. gaps: The distances of what is compared; settled: roots
    that stay as they are.
    """
    lanes, key = points.lanes, points.at["kv_idx"]
    drawn = lanes.hash("aim")
    one = torch.stack(gaps)[drawn % len(gaps), torch.arange(len(drawn))]
    jitter = torch.where((drawn >> 20) % 2 == 0, 0, (drawn >> 22) % 3 - 1)
    move = one * ((drawn >> 26) % 2 * 2 - 1) + jitter
    kind = (drawn >> 30) % 4
    steps = torch.where(kind == 0, move.round().long(), 0)
    other = inside(key - steps, points.call.keys, key)
    at = {**points.at, "kv_idx": inside(key + steps, points.call.keys, other)}
    return replace(points, at=at, lanes=lanes.shifted(torch.where(kind == 1, move, 0.0), settled))


# Functions that turn nowhere, or only where their arguments are no numbers.
_SMOOTH = frozenset([
    "add", "sub", "rsub", "mul", "div", "neg", "exp", "exp2", "expm1", "sigmoid", "tanh", "silu",
    "gelu", "erf", "sin", "cos", "tan", "pow", "square", "sqrt", "rsqrt", "log", "log1p", "log2",
    "log10", "reciprocal", "_to_copy", "copy", "clone", "where", "masked_fill", "lerp", "addcmul",
    "addcdiv", "mish", "detach", "positive", "fill", "zero", "nan_to_num",
])  # fmt: skip
_STEPS = 4  # of Newton's method: one suffices where the argument is affine in the score
# Where functions turn that name no such number. The others turn at 0.
_KINKS = {"hardswish": (-3.0, 3.0), "hardsigmoid": (-3.0, 3.0)}


def turns_of(name: str, args: Sequence[Any]) -> list[Tensor]:
    """The distances of the first argument from the numbers beside it, and from the kinks."""
    base = name.rstrip("_") if not name.startswith("_") else name
    if base in _SMOOTH or not args or not _is_real(args[0]):
        return []
    others = [y for y in args[1:] if _is_number(y)]
    if len(others) < 2:
        others += _KINKS.get(base, (0.0,))
    numbers = [y if isinstance(y, Tensor) else float(y) for y in others]
    return [args[0] - y for y in numbers if isinstance(y, float) or y.is_floating_point()]


def _is_real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def scores_at_turns(weights: SampledWeights) -> Tensor | None:
    """Scores, of which a third is aimed; None where no function turns."""
    lanes, scores = weights.lanes, weights.scores.double()
    drawn = lanes.hash("turn")
    aims = (drawn % 3 == 0) & ~lanes.special_scores
    for _ in range(_STEPS):
        leaf = scores.to(weights.scores.dtype).requires_grad_()
        turns: list[Tensor] = []
        ev = weights.evaluator(leaf, differentiate=True, turns=turns)
        ev.element(*weights.side)
        if ev.untracked or not turns:
            return None
        moved = _newton(turns, leaf, drawn >> 8)
        step = torch.where(aims & moved.isfinite(), moved, 0.0)
        scores = (scores - step).to(leaf.dtype).double()
        if not bool(step.any()):
            break
    aside = (drawn >> 40) % 4  # of four lanes one is below, and one above
    ends = torch.where(aside == 2, -torch.inf, torch.inf).to(leaf.dtype)
    beside = torch.nextafter(scores.to(leaf.dtype), ends).double()
    return torch.where(aims & (aside >= 2), beside, scores)


def _newton(turns: Sequence[Tensor], leaf: Tensor, drawn: Tensor) -> Tensor:
    """How far each lane's score is from where one of the functions turns, in the first order."""
    gaps = torch.stack([turn.double().expand(leaf.shape) for turn in turns])
    slopes = torch.stack([_slope(turn, leaf) for turn in turns]).double()
    chosen = drawn % len(turns), torch.arange(len(leaf))
    return gaps.detach()[chosen] / slopes[chosen]


def _slope(turn: Tensor, leaf: Tensor) -> Tensor:
    if turn.requires_grad:
        (grad,) = torch.autograd.grad(turn.sum(), leaf, retain_graph=True, allow_unused=True)
        if grad is not None:
            return grad
    return torch.zeros_like(leaf)
