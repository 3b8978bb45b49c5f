"""Activations, by torch's own definitions and slopes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .. import intervals
from ..expr import Expr, Op, Trait, call
from .arithmetic import REAL, VALUES, keep, number, where
from .functions import LN2, LOG2E

FAR = 100.0  # from here on gelu is x or x·0 in every dtype
GELU_BETA, GELU_ALPHA = math.sqrt(2.0 / math.pi), 0.044715
_FP32_SIXTH = 11184811 / 2**26


def _gelu(x: torch.Tensor) -> torch.Tensor:
    # Far from zero by hand: `F.gelu` may be oneDNN's, whose values there depend on the CPU.
    near = F.gelu(x.clamp(-FAR, FAR))
    return torch.where(x.abs() <= FAR, near, x * (x > 0))


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _within(x: Expr, low: Expr | float, high: Expr | float) -> Expr:
    return call("and", call("gt", x, low), call("lt", x, high))


def d_silu(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t = call("sigmoid", x)
    return (g * (t * (1.0 + x * (1.0 - t))),)


def _d_gelu(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    cdf = 0.5 * (1.0 + call("erf", x * math.sqrt(0.5)))
    pdf = call("exp", x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return (g * (cdf + x * pdf),)


def gelu_tanh_argument(x: Expr) -> Expr:
    """u of gelu_tanh(x) = x/2 · (1 + tanh u)."""
    return x * (GELU_BETA + (GELU_BETA * GELU_ALPHA) * (x * x))


def d_gelu_tanh(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t = call("tanh", gelu_tanh_argument(x))
    slope = GELU_BETA + (3.0 * GELU_BETA * GELU_ALPHA) * (x * x)
    return (g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)


def _d_hardswish(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    """NaN at NaN: so have torch's vectors; its single elements pass all of g there."""
    inner = where(call("ge", x, 3.0), g, g * (x * (1.0 / 3.0) + 0.5))
    return (where(call("le", x, -3.0), 0.0, inner),)  # not g · 0, which g may make NaN


def _d_hardsigmoid(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    # torch's sixth is that of fp32 in fp64 too.
    return (keep(g * _FP32_SIXTH, _within(x, -3.0, 3.0)),)


def _d_hardtanh(g: Expr, _y: Expr, x: Expr, low: Expr, high: Expr) -> tuple[Expr | None, ...]:
    """None at NaN: torch's vectors have none there, its single elements all of it."""
    return (keep(g, _within(x, low, high)), None, None)


def _d_elu(g: Expr, _y: Expr, x: Expr, alpha: Expr, scale: Expr, slope: Expr) -> tuple[Expr]:
    """NaN at NaN: so have torch's vectors; its single elements pass all of g there."""
    a, c, k = number(alpha), number(scale), number(slope)
    return (where(call("gt", x, 0.0), g * c, g * (a * c * k) * call("exp", x * k)),)


def _d_softplus(g: Expr, _y: Expr, x: Expr, beta: Expr, threshold: Expr) -> tuple[Expr]:
    b, t = number(beta), number(threshold)
    return (where(call("gt", x * b, t), g, g * call("sigmoid", x * b)),)


def _d_mish(g: Expr, _y: Expr, x: Expr) -> tuple[Expr]:
    t, s = call("tanh", call("softplus", x, 1.0, 20.0)), call("sigmoid", x)
    return (g * (t + x * s * (1.0 - t * t)),)


# Forms for kernels


def _between(x: Expr, low: Expr | float, high: Expr | float) -> Expr:
    return call("minimum", call("maximum", x, low), high)


def _half(x: Expr, function: str, argument: Expr) -> Expr:
    """x/2 · (1 + function(argument)): one multiply-add after the function."""
    half = x * 0.5
    return half * call(function, argument) + half


def _sixth(x: Expr) -> Expr:
    return _between(x + 3.0, 0.0, 6.0)


def _fast_sixth(x: Expr) -> Expr:
    return _between(x * (1.0 / 6.0) + 0.5, 0.0, 1.0)


def _elu(x: Expr, alpha: Expr, scale: Expr, slope: Expr) -> Expr:
    a, c, k = number(alpha), number(scale), number(slope)
    return where(call("le", x, 0.0), call("expm1", x * k) * (a * c), x * c)


def _softplus(x: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = x * beta
    return where(call("gt", scaled, threshold), x, call("log1p", call("exp", scaled)) / beta)


def _fast_softplus(x: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = x * beta
    grown = call("log2_approx", 1.0 + call("exp2_approx", scaled * LOG2E))
    return where(call("gt", scaled, threshold), x, grown * (LN2 / number(beta)))


def _fast_mish(x: Expr) -> Expr:
    # tanh(log(1+e)) = e(e+2) / (e(e+2) + 2), e = exp(x); it is 1 in fp32 beyond 20.
    e = call("exp2_approx", call("minimum", x, 20.0) * LOG2E)
    grown = e * (e + 2.0)
    return x * (grown * call("rcp_approx", grown + 2.0))


# Spellings by hand


def _written_gelu(x: Expr, *functions: Expr) -> tuple[Expr, ...]:
    """x/2 · (1 + function), grouped either way."""
    cdfs = [1.0 + function for function in functions]
    return (*(0.5 * x * cdf for cdf in cdfs), *(x * (0.5 * cdf) for cdf in cdfs))


def _erfs(x: Expr) -> tuple[Expr, ...]:
    return call("erf", x * math.sqrt(0.5)), call("erf", x / math.sqrt(2.0))


def _tanhs(x: Expr) -> tuple[Expr, ...]:
    cubes = call("pow", x, 3.0), x * x * x
    return tuple(call("tanh", GELU_BETA * (x + GELU_ALPHA * cube)) for cube in cubes)


ROWS = {
    "sigmoid": Op(
        REAL, torch.sigmoid, "1/(1 + e⁻ˣ)", aten=("sigmoid",), traits=Trait.SMOOTH,
        vjp=lambda g, y, x: (g * (y * (1.0 - y)),), interval=intervals.vanishing(-1e3, True),
        plain=lambda x: 1.0 / (1.0 + call("exp", -x)),
        fast=lambda x: call("rcp_approx", 1.0 + call("exp2_approx", x * -LOG2E)),
    ),
    "relu": Op(
        REAL, torch.relu, "max(x, 0); slope 0 at 0", traits=VALUES,
        vjp=lambda g, y, x: (where(call("le", x, 0.0), 0.0, g),), interval=intervals.relu,
        plain=lambda x: call("maximum", x, 0.0), fast=lambda x: call("maximum", x, 0.0),
    ),
    "silu": Op(
        REAL, F.silu, "x·sigmoid(x)", aten=("silu",), traits=Trait.SMOOTH,
        vjp=d_silu, interval=intervals.vanishing(-1e3, False),
        spelled=lambda x: (x * call("sigmoid", x),),
        plain=lambda x: x * call("sigmoid", x),
        fast=lambda x: _half(x, "tanh_approx", x * 0.5),
    ),
    "gelu": Op(
        REAL, _gelu, "x·Φ(x)", traits=Trait.SMOOTH,
        vjp=_d_gelu, interval=intervals.vanishing(-1e3, False),
        spelled=lambda x: _written_gelu(x, *_erfs(x)),
        plain=lambda x: _half(x, "erf", x * math.sqrt(0.5)),
    ),
    "gelu_tanh": Op(
        REAL, _gelu_tanh, "gelu in its tanh form", traits=Trait.SMOOTH,
        vjp=d_gelu_tanh, interval=intervals.vanishing(-1e3, False),
        spelled=lambda x: _written_gelu(x, *_tanhs(x)),
        plain=lambda x: _half(x, "tanh", gelu_tanh_argument(x)),
        fast=lambda x: _half(x, "tanh_approx", gelu_tanh_argument(x)),
    ),
    "hardswish": Op(
        REAL, F.hardswish, "x·clamp(x + 3, 0, 6)/6", aten=("hardswish",), traits=Trait.TURNS,
        vjp=_d_hardswish, interval=intervals.vanishing(-3.0, False),
        plain=lambda x: x * _sixth(x) * (1.0 / 6.0), fast=lambda x: x * _fast_sixth(x),
    ),
    "hardsigmoid": Op(
        REAL, F.hardsigmoid, "clamp(x + 3, 0, 6)/6", aten=("hardsigmoid",), traits=Trait.TURNS,
        vjp=_d_hardsigmoid, interval=intervals.vanishing(-3.0, True),
        plain=lambda x: _sixth(x) * (1.0 / 6.0), fast=_fast_sixth,
    ),
    "leaky_relu": Op(
        ("ff>f",), F.leaky_relu, "x, or literal·x below 0", params=1,
        vjp=lambda g, y, x, slope: (where(call("gt", x, 0.0), g, g * slope), None),
        interval=intervals.function,
        plain=lambda x, slope: where(call("gt", x, 0.0), x, x * slope),
    ),
    "elu": Op(
        ("ffff>f",), torch.ops.aten.elu.default, "torch's, literals alpha, scale, input_scale",
        params=3, vjp=_d_elu, interval=intervals.function,
        plain=_elu,
    ),
    "softplus": Op(
        ("fff>f",), F.softplus, "torch's, literals beta, threshold", params=2,
        vjp=_d_softplus, interval=intervals.vanishing(-1e3, True), traits=Trait.SMOOTH,
        plain=_softplus, fast=_fast_softplus,
    ),
    "mish": Op(
        REAL, F.mish, "x·tanh(softplus(x))", aten=("mish",), traits=Trait.SMOOTH,
        vjp=_d_mish, interval=intervals.vanishing(-1e3, False),
        plain=lambda x: x * call("tanh", call("softplus", x, 1.0, 20.0)), fast=_fast_mish,
    ),
    "hardtanh": Op(
        ("fff>f",), F.hardtanh, "x between two literals", params=2,
        vjp=_d_hardtanh, interval=intervals.rising, traits=VALUES | Trait.TURNS,
        plain=_between,
    ),
}  # fmt: skip
