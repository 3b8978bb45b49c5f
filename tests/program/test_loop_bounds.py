"""Closed loop bounds against the class of every single tile."""

import itertools

import pytest
import torch

from gdpa_inductor.program.expr import Expr, fold, torch_apply
from gdpa_inductor.program.loop_bounds import closed
from gdpa_inductor.program.score_mod import ScoreMod
from gdpa_inductor.program.tile_classes import classify

LENGTH, TILE = 100, 16
PROGRAMS = {
    "causal": "where(ge(q_idx,kv_idx),silu(s),0.0)",
    "strictly causal": "where(gt(q_idx,kv_idx),silu(s),0.0)",
    "upper": "where(le(q_idx,kv_idx),silu(s),0.0)",
    "shifted": "where(ge(add(q_idx,7),sub(kv_idx,30)),silu(s),0.0)",
    "window": "where(and(le(sub(q_idx,kv_idx),i0),ge(q_idx,kv_idx)),silu(s),0.0)",
    "around": "where(and(lt(sub(q_idx,kv_idx),i0),lt(sub(kv_idx,q_idx),i0)),silu(s),0.0)",
    "keys": "a0:i[b]; where(lt(kv_idx,a0),silu(s),0.0)",
    "rows": "a0:i[b]; where(lt(q_idx,a0),silu(s),0.0)",
    "both": "a0:i[b]; where(and(and(lt(q_idx,a0),lt(kv_idx,a0)),ge(q_idx,kv_idx)),silu(s),0.0)",
    "multiplied": "mul(silu(s),float(ge(q_idx,kv_idx)))",
    "nothing": "where(gt(0,1),silu(s),0.0)",
}
OPEN = {
    "targets": "a0:i[b]; where(or(lt(kv_idx,a0),eq(q_idx,kv_idx)),silu(s),0.0)",
    "segments": "where(eq(floordiv(q_idx,40),floordiv(kv_idx,40)),silu(s),0.0)",
    "steep": "where(ge(mul(q_idx,2),kv_idx),silu(s),0.0)",
}


def value(term: Expr, leaves: dict[str, int]) -> int:
    def leaf(node: Expr) -> torch.Tensor:
        known = node.value if node.is_const else leaves[node.op]
        return torch.tensor(known)

    return int(fold([term], leaf, torch_apply(torch.float64))[0])


def hull(classes, axis: str, place: dict[str, int]) -> tuple[list[int], list[int]]:
    """The tiles of the loop that are not zero, and those that are whole."""
    some, whole = [], []
    for number, first in enumerate(range(0, LENGTH, TILE)):
        ends = {f"{axis}_lo": first, f"{axis}_hi": min(first + TILE, LENGTH) - 1}
        if not value(classes.zero, {**place, **ends}):
            some.append(number)
        if value(classes.full, {**place, **ends}) and first + TILE <= LENGTH:
            whole.append(number)
    return some, whole


def ends_of(bounds, place: dict[str, int]) -> tuple[range, range]:
    """What the template `bounded` makes of the ends."""
    known = {name: value(term, place) for name, term in bounds.items()}
    low = {k: max(min(v, LENGTH), -1) for k, v in known.items() if k not in ("empty", "mixed")}
    hi = min(-(-LENGTH // TILE), (low.get("upper", LENGTH) + TILE) // TILE)
    hi = 0 if known.get("empty") else hi
    lo = min(max(low.get("lower", 0), 0) // TILE, hi)
    first = -(-max(low.get("whole_lower", 0), 0) // TILE)
    last = min(LENGTH // TILE, (low.get("whole_upper", LENGTH) + 1) // TILE)
    last = 0 if known.get("mixed") else last
    return range(lo, hi), range(max(first, lo), min(last, hi))


@pytest.mark.parametrize("axis", ["kv_idx", "q_idx"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_closed_bounds_are_those_of_the_classes(name: str, axis: str) -> None:
    program = ScoreMod.parse(PROGRAMS[name])
    for roots in ([program.weight], [program.weight, program.gradients.score]):
        classes = classify(roots, program.aux)
        bounds = closed(classes, axis)
        assert bounds is not None
        other = "q_idx" if axis == "kv_idx" else "kv_idx"
        for first, scalar, length in itertools.product((0, 16, 80), (0, 5, 40), (0, 1, 33, 100)):
            place = {f"{other}_lo": first, f"{other}_hi": min(first + TILE, LENGTH) - 1}
            place |= {"scalar": scalar, "aux": length, "b": 0, "h": 0}
            some, whole = hull(classes, axis, place)
            inner, full = ends_of(bounds, place)
            assert list(inner) == (list(range(some[0], some[-1] + 1)) if some else [])
            assert list(full) == [tile for tile in whole if tile in inner]


@pytest.mark.parametrize("name", OPEN)
def test_classes_that_are_no_intervals_stay_open(name: str) -> None:
    program = ScoreMod.parse(OPEN[name])
    assert closed(classify([program.weight], program.aux), "q_idx") is None
