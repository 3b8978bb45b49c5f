"""ATen's activations with options of their own as score expressions: rules of `vocabulary`."""

from __future__ import annotations

import math
from typing import Any

from ...program.expr import Expr, call
from .kinds import Unknown, literal, real


def gelu(kind: str, x: Expr, *, approximate: str = "none") -> Expr:
    return call("gelu_tanh" if approximate == "tanh" else "gelu", real(x))


def elu(kind: str, x: Expr, alpha: Any = None, scale: Any = None, slope: Any = None) -> Expr:
    return call("elu", real(x), *(1.0 if p is None else literal(p) for p in (alpha, scale, slope)))


def celu(kind: str, x: Expr, alpha: Expr | None = None) -> Expr:
    a = 1.0 if alpha is None else literal(alpha)
    return call("elu", real(x), a, 1.0, 1.0 / a)


def leaky_relu(kind: str, x: Expr, slope: Expr | None = None) -> Expr:
    return call("leaky_relu", real(x), 0.01 if slope is None else literal(slope))


def softplus(kind: str, x: Expr, beta: Expr | None = None, threshold: Expr | None = None) -> Expr:
    b = 1.0 if beta is None else literal(beta)
    return call("softplus", real(x), b, 20.0 if threshold is None else literal(threshold))


def hardtanh(kind: str, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    lo = -1.0 if low is None else _bound(low)
    return call("hardtanh", real(x), lo, 1.0 if high is None else _bound(high))


def _bound(x: Expr) -> float:
    """A literal that elements are compared with. ATen's comparisons with NaN are not these."""
    bound = literal(x)
    if math.isnan(bound):
        raise Unknown("a bound is NaN")
    return bound


def log_sigmoid(kind: str, x: Expr) -> Expr:
    """As softplus, whose gradient is one product: a difference of two would be inf - inf. Past 40
    nothing is left of the 1 that is added, in fp64 either.
    """
    return -call("softplus", -real(x), 1.0, 40.0)


def softshrink(kind: str, x: Expr, bound: Expr | None = None) -> Expr:
    x, c = real(x), 0.5 if bound is None else literal(bound)
    below = call("where", call("lt", x, -c), x + c, _nothing_but_nan(x))
    return call("where", call("gt", x, c), x - c, below)


def hardshrink(kind: str, x: Expr, bound: Expr | None = None) -> Expr:
    x, c = real(x), 0.5 if bound is None else _bound(bound)
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
