"""Comparisons, logic and choice."""

from __future__ import annotations

import torch

from .. import integers, intervals
from ..expr import Op, Trait
from .arithmetic import keep, where

ORDER, EQUAL = ("ff>b", "ii>b"), ("ff>b", "ii>b", "bb>b")
LOGIC = ("bb>b",)


ROWS = {
    "eq": Op(
        EQUAL, torch.eq, "x = z",
        interval=intervals.equal, infix=("==", 1), traits=Trait.DECIDES,
    ),
    "ne": Op(
        EQUAL, torch.ne, "x ≠ z",
        interval=intervals.unequal, infix=("!=", 1), traits=Trait.DECIDES,
    ),
    "lt": Op(
        ORDER, torch.lt, "x < z",
        interval=intervals.less(True, False), infix=("<", 1), traits=Trait.DECIDES,
    ),
    "le": Op(
        ORDER, torch.le, "x ≤ z",
        interval=intervals.less(False, False), infix=("<=", 1), traits=Trait.DECIDES,
    ),
    "gt": Op(
        ORDER, torch.gt, "x > z",
        interval=intervals.less(True, True), infix=(">", 1), traits=Trait.DECIDES,
    ),
    "ge": Op(
        ORDER, torch.ge, "x ≥ z",
        interval=intervals.less(False, True), infix=(">=", 1), traits=Trait.DECIDES,
    ),
    "and": Op(
        LOGIC, torch.logical_and, "both", interval=intervals.conjunction, infix=("&", 1)
    ),
    "or": Op(
        LOGIC, torch.logical_or, "either", interval=intervals.disjunction, infix=("|", 1)
    ),
    "xor": Op(
        LOGIC, torch.logical_xor, "one of the two", interval=intervals.unequal, infix=("^", 1)
    ),
    "not": Op(("b>b",), torch.logical_not, "the opposite", interval=intervals.opposite),
    "isnan": Op(("f>b",), torch.isnan, "x is NaN"),
    "where": Op(
        ("bff>f", "bii>i"), torch.where, "x where c, else z", traits=Trait.SMOOTH,
        vjp=lambda g, y, c, x, z: (None, keep(g, c), where(c, 0.0, g)),
        interval=intervals.where, integers=integers.where,
    ),
}  # fmt: skip
