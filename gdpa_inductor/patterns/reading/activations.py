"""ATen's activations with options of their own as score expressions: rules of `vocabulary`."""

from __future__ import annotations

import math

from ...program.expr import Expr, call
from .clamps import Bound
from .kinds import Unknown, literal, real


def gelu(kind: str, x: Expr, *, approximate: str = "none") -> Expr:
    return call("gelu_tanh" if approximate == "tanh" else "gelu", real(x))


def celu(kind: str, x: Expr, alpha: Bound = None) -> Expr:
    a = literal(alpha, 1.0)
    return call("elu", real(x), a, 1.0, 1.0 / a)


def hardtanh(kind: str, x: Expr, low: Bound = None, high: Bound = None) -> Expr:
    return call("hardtanh", real(x), _bound(low, -1.0), _bound(high, 1.0))


def _bound(x: Bound, default: float) -> float:
    """A literal that elements are compared with. ATen's comparisons with NaN are not these."""
    bound = literal(x, default)
    if math.isnan(bound):
        raise Unknown("a bound is NaN")
    return bound


def log_sigmoid(kind: str, x: Expr) -> Expr:
    """As softplus, whose gradient is one product: a difference of two would be inf - inf. Past 40
    nothing is left of the 1 that is added, in fp64 either.
    """
    return -call("softplus", -real(x), 1.0, 40.0)


def softshrink(kind: str, x: Expr, bound: Bound = None) -> Expr:
    x, c = real(x), literal(bound, 0.5)
    below = call("where", call("lt", x, -c), x + c, _nothing_but_nan(x))
    return call("where", call("gt", x, c), x - c, below)


def hardshrink(kind: str, x: Expr, bound: Bound = None) -> Expr:
    x, c = real(x), _bound(bound, 0.5)
    outside = call("or", call("lt", x, -c), call("gt", x, c))
    return call("where", outside, x, _nothing_but_nan(x))


def _nothing_but_nan(x: Expr) -> Expr:
    """0, of NaN NaN, without a gradient: torch's vectors shrink that of NaN to 0, its single
    elements pass all of it.
    """
    return call("where", call("isnan", x), math.nan, 0.0)


def threshold(kind: str, x: Expr, bound: Expr, value: Expr) -> Expr:
    return call("where", call("le", real(x), literal(bound)), literal(value), real(x))


def prelu(kind: str, x: Expr, slope: Expr) -> Expr:
    """The choice is one of factors: that of results would meet 0 · inf in the gradient."""
    return real(x) * call("where", call("gt", real(x), 0.0), 1.0, real(slope))
