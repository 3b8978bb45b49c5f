"""Rounding, and changes of kind."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import integers, intervals
from ..expr import Expr, Op, Trait, call
from .arithmetic import REAL, VALUES, where


def _round_to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype).to(x.dtype)


def _sign(x: Expr) -> Expr:
    """0 for NaN, as torch has it."""
    return where(call("lt", x, 0.0), -1.0, where(call("gt", x, 0.0), 1.0, 0.0))


# Rounding to whole numbers has no gradient. Narrowing casts have one, as autograd has it.
ROWS = {
    "sign": Op(
        REAL, torch.sign, "−1, 0 or 1; no gradient",
        interval=intervals.sign, traits=Trait.DECIDES, plain=_sign,
    ),
    "floor": Op(
        REAL, torch.floor, "no gradient", interval=intervals.rising, traits=Trait.DECIDES
    ),
    "ceil": Op(
        REAL, torch.ceil, "no gradient", interval=intervals.rising, traits=Trait.DECIDES
    ),
    "round": Op(
        REAL, torch.round, "half to even; no gradient",
        interval=intervals.rising, traits=Trait.DECIDES,
    ),
    "trunc": Op(
        REAL, torch.trunc, "no gradient", interval=intervals.rising, traits=Trait.DECIDES
    ),
    "bf16": Op(
        REAL, _round_to(torch.bfloat16), "rounded to bfloat16; the gradient passes",
        vjp=lambda g, y, x: (call("bf16", g),),
        interval=intervals.rising, traits=VALUES | Trait.SMOOTH,
    ),
    "f16": Op(
        REAL, _round_to(torch.float16), "rounded to float16; the gradient passes",
        vjp=lambda g, y, x: (call("f16", g),),
        interval=intervals.rising, traits=VALUES | Trait.SMOOTH,
    ),
    "detach": Op(
        REAL, torch.Tensor.detach, "x; no gradient",
        interval=lambda node, x: x, traits=VALUES, plain=lambda x: x,
    ),
    # `torch_apply` evaluates these, for it knows the compute dtype.
    "float": Op(
        ("i>f", "b>f"), torch.Tensor.float, "to a real number",
        interval=intervals.to_float, literal=float,
    ),
    "int": Op(
        ("f>i", "b>i"), torch.Tensor.long, "to an integer, towards zero",
        interval=intervals.to_int, integers=integers.of_truth, traits=Trait.DECIDES,
    ),
    "bool": Op(
        ("f>b", "i>b"), torch.Tensor.bool, "x ≠ 0",
        interval=intervals.to_bool, traits=Trait.DECIDES,
    ),
}  # fmt: skip
