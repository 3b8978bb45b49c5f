"""Comparisons, logic and choice."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import integers, intervals
from ..expr import Op, Trait
from ..intervals import Rule
from .arithmetic import keep, where

ORDER, EQUAL = ("ff>b", "ii>b"), ("ff>b", "ii>b", "bb>b")
LOGIC = ("bb>b",)


def _comparison(
    kinds: tuple[str, ...], function: Callable[..., torch.Tensor], says: str, sign: str, rule: Rule
) -> Op:
    return Op(kinds, function, says, interval=rule, infix=(sign, 1), traits=Trait.DECIDES)


ROWS = {
    "eq": _comparison(EQUAL, torch.eq, "x = z", "==", intervals.equal),
    "ne": _comparison(EQUAL, torch.ne, "x ≠ z", "!=", intervals.unequal),
    "lt": _comparison(ORDER, torch.lt, "x < z", "<", intervals.less(True, False)),
    "le": _comparison(ORDER, torch.le, "x ≤ z", "<=", intervals.less(False, False)),
    "gt": _comparison(ORDER, torch.gt, "x > z", ">", intervals.less(True, True)),
    "ge": _comparison(ORDER, torch.ge, "x ≥ z", ">=", intervals.less(False, True)),
    "and": Op(LOGIC, torch.logical_and, "both", interval=intervals.conjunction, infix=("&", 1)),
    "or": Op(LOGIC, torch.logical_or, "either", interval=intervals.disjunction, infix=("|", 1)),
    "xor": Op(
        LOGIC, torch.logical_xor, "one of the two", interval=intervals.unequal, infix=("^", 1)
    ),
    "not": Op(("b>b",), torch.logical_not, "the opposite", interval=intervals.opposite),
    "isnan": Op(("f>b",), torch.isnan, "x is NaN"),
    "where": Op(
        ("bff>f", "bii>i"),
        torch.where,
        "x where c, else z",
        traits=Trait.SMOOTH,
        vjp=lambda g, y, c, x, z: (None, keep(g, c), where(c, 0.0, g)),
        interval=intervals.where,
        integers=integers.where,
    ),
}
