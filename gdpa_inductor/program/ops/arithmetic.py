"""Sums, products, quotients, extremes and bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from .. import integers, intervals
from ..expr import Expr, Op, Trait, call, is_ordinary

REAL = ("f>f",)
ONE, TWO = ("f>f", "i>i"), ("ff>f", "ii>i")
OF_REALS, OF_INTEGERS = ("ff>f",), ("ii>i",)

VALUES = Trait.KEEPS_VALUES | Trait.KEEPS_WHOLES
WHOLES = Trait.KEEPS_WHOLES | Trait.SMOOTH


def where(condition: Expr, x: Expr | float, y: Expr | float) -> Expr:
    return call("where", condition, x, y)


def keep(g: Expr, condition: Expr) -> Expr:
    """The cotangent where a condition holds."""
    return where(condition, g, 0.0)


def number(literal: Expr) -> float:
    return float(literal.value)


def _at_least(x: torch.Tensor, low: float) -> torch.Tensor:
    return x.clamp(min=low)


def _at_most(x: torch.Tensor, high: float) -> torch.Tensor:
    return x.clamp(max=high)


def _clamp(function: Callable[..., torch.Tensor], says: str, plain: str, passes: str) -> Op:
    """passes: The comparison of x with the bound for which the gradient passes."""
    return Op(
        OF_REALS,
        function,
        says,
        params=1,
        vjp=lambda g, y, x, bound: (keep(g, call(passes, x, bound)), None),
        interval=intervals.rising,
        traits=VALUES | Trait.TURNS,
        plain=lambda x, bound: call(plain, x, bound),
    )


def _d_pow(g: Expr, _y: Expr, x: Expr, exponent: Expr) -> tuple[Expr | None, ...]:
    e = number(exponent)
    if e == 0.0:
        return (None,)
    return (g * (e * x if e == 2.0 else e * call("pow", x, e - 1.0)),)


def _d_extremum(loses: str) -> Callable[..., tuple[Expr, Expr]]:
    # torch.maximum and minimum: the loser gets no gradient, ties share it equally. Beside a NaN
    # nobody loses, so that both operands get all of it.
    def vjp(g: Expr, _y: Expr, x: Expr, z: Expr) -> tuple[Expr, Expr]:
        shared = where(call("eq", x, z), g * 0.5, g)
        return (
            where(call(loses, x, z), 0.0, shared),
            where(call(loses, z, x), 0.0, shared),
        )

    return vjp


def _power(x: Expr, exponent: Expr) -> Expr:
    e = number(exponent)
    if e in (1.0, 2.0, 3.0, 4.0):
        return functools.reduce(lambda y, _: y * x, range(int(e) - 1), x)
    return call("sqrt", x) if e == 0.5 else call("power", x, e)


def _by_inverse(x: Expr, divisor: Expr) -> Expr | None:
    """By a literal whose inverse is an ordinary number too."""
    value = number(divisor) if divisor.is_const else 0.0
    exists = value != 0.0 and is_ordinary(value) and is_ordinary(1.0 / value)
    return x * (1.0 / value) if exists else None


ROWS = {
    "add": Op(
        TWO, torch.add, "x + z",
        vjp=lambda g, y, x, z: (g, g), literal=lambda x, z: x + z, infix=("+", 2),
        interval=intervals.add, integers=integers.add, traits=WHOLES,
    ),
    "sub": Op(
        TWO, torch.sub, "x − z",
        vjp=lambda g, y, x, z: (g, -g), literal=lambda x, z: x - z, infix=("-", 2),
        interval=intervals.sub, integers=integers.sub, traits=WHOLES,
    ),
    "mul": Op(
        TWO, torch.mul, "x · z",
        vjp=lambda g, y, x, z: (g * z, g * x), literal=lambda x, z: x * z, infix=("*", 3),
        interval=intervals.mul, integers=integers.mul, traits=WHOLES,
    ),
    "div": Op(
        OF_REALS, torch.div, "x / z",
        vjp=lambda g, y, x, z: (g / z, -(g * (y / z))), literal=lambda x, z: x / z, infix=("/", 3),
        interval=intervals.div, traits=Trait.SMOOTH, fast=_by_inverse,
    ),
    "neg": Op(
        ONE, torch.neg, "−x",
        vjp=lambda g, y, x: (-g,), literal=lambda x: -x,
        interval=intervals.neg, integers=integers.neg, traits=VALUES | Trait.SMOOTH,
    ),
    "abs": Op(
        ONE, torch.abs, "the absolute value",
        vjp=lambda g, y, x: (g * call("sign", x),),
        interval=intervals.absolute, integers=integers.absolute, traits=VALUES,
    ),
    "pow": Op(
        OF_REALS, torch.pow, "x to a literal power", params=1,
        vjp=_d_pow, interval=intervals.function, traits=Trait.SMOOTH, plain=_power,
    ),
    "maximum": Op(
        TWO, torch.maximum, "the larger; ties share the gradient, beside a NaN both get it",
        vjp=_d_extremum("lt"), interval=intervals.extremum("maximum"),
        integers=integers.maximum, traits=VALUES | Trait.TURNS,
    ),
    "minimum": Op(
        TWO, torch.minimum, "the smaller; ties share the gradient, beside a NaN both get it",
        vjp=_d_extremum("gt"), interval=intervals.extremum("minimum"),
        integers=integers.minimum, traits=VALUES | Trait.TURNS,
    ),
    # torch's clamp has slope 1 at its bounds up to 2.13, and 0 from 2.14 on.
    "clamp_min": _clamp(_at_least, "max(x, literal); slope 1 at the literal", "maximum", "ge"),
    "clamp_max": _clamp(_at_most, "min(x, literal); slope 1 at the literal", "minimum", "le"),
    "clamp_min_open": _clamp(_at_least, "max(x, literal); slope 0 at the literal", "maximum", "gt"),
    "clamp_max_open": _clamp(_at_most, "min(x, literal); slope 0 at the literal", "minimum", "lt"),
    "floordiv": Op(
        OF_INTEGERS, lambda x, z: torch.div(x, z, rounding_mode="floor"), "⌊x / z⌋",
        infix=("//", 3), interval=intervals.floordiv, integers=integers.floordiv,
    ),
    "mod": Op(
        OF_INTEGERS, torch.remainder, "x − z·⌊x / z⌋",
        infix=("%", 3), interval=intervals.mod, integers=integers.mod,
    ),
}  # fmt: skip
