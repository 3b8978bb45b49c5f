"""Rounding, and changes of kind."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import integers, intervals
from ..expr import Expr, Op, Trait, call
from .arithmetic import REAL, VALUES, where


def _narrowed(name: str, dtype: torch.dtype, says: str) -> Op:
    # The gradient is rounded too, as autograd does it.
    return Op(
        REAL,
        lambda x: x.to(dtype).to(x.dtype),
        says,
        vjp=lambda g, y, x: (call(name, g),),
        interval=intervals.rising,
        traits=VALUES | Trait.SMOOTH,
    )


def _whole(function: Callable[..., torch.Tensor], says: str = "no gradient") -> Op:
    return Op(REAL, function, says, interval=intervals.rising, traits=Trait.DECIDES)


def _sign(x: Expr) -> Expr:
    """0 for NaN, as torch has it."""
    return where(call("lt", x, 0.0), -1.0, where(call("gt", x, 0.0), 1.0, 0.0))


ROWS = {
    "sign": Op(
        REAL, torch.sign, "−1, 0 or 1; no gradient",
        interval=intervals.sign, traits=Trait.DECIDES, plain=_sign,
    ),
    "floor": _whole(torch.floor),
    "ceil": _whole(torch.ceil),
    "round": _whole(torch.round, "half to even; no gradient"),
    "trunc": _whole(torch.trunc),
    "bf16": _narrowed("bf16", torch.bfloat16, "rounded to bfloat16; the gradient passes"),
    "f16": _narrowed("f16", torch.float16, "rounded to float16; the gradient passes"),
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
