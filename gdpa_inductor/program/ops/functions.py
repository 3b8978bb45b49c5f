"""Elementary functions of a real, and the instructions that forms in kernels are made of."""

from __future__ import annotations

import math

import torch

from .. import intervals
from ..expr import Op, Trait, call
from .arithmetic import REAL

LOG2E, LN2 = math.log2(math.e), math.log(2.0)


ROWS = {
    "sqrt": Op(
        REAL, torch.sqrt, "√x", aten=("sqrt",),
        vjp=lambda g, y, x: (g / (2.0 * y),), interval=intervals.function,
    ),
    "rsqrt": Op(
        REAL, torch.rsqrt, "1/√x", aten=("rsqrt",),
        vjp=lambda g, y, x: (g * (-0.5 * (y * y * y)),), interval=intervals.function,
    ),
    "exp": Op(
        REAL, torch.exp, "eˣ", aten=("exp",), traits=Trait.SMOOTH,
        vjp=lambda g, y, x: (g * y,), interval=intervals.vanishing(-1e3, True),
        fast=lambda x: call("exp2_approx", x * LOG2E),
    ),
    "exp2": Op(
        REAL, torch.exp2, "2ˣ", aten=("exp2",),
        vjp=lambda g, y, x: (g * (y * LN2),), interval=intervals.vanishing(-2e3, True),
        fast=lambda x: call("exp2_approx", x),
    ),
    "expm1": Op(
        REAL, torch.expm1, "eˣ − 1", aten=("expm1",),
        vjp=lambda g, y, x: (g * (y + 1.0),), interval=intervals.function,
    ),
    "log": Op(
        REAL, torch.log, "ln x", aten=("log",),
        vjp=lambda g, y, x: (g / x,), interval=intervals.function,
    ),
    "log1p": Op(
        REAL, torch.log1p, "ln(1 + x)", aten=("log1p",),
        vjp=lambda g, y, x: (g / (x + 1.0),), interval=intervals.function,
    ),
    "sin": Op(
        REAL, torch.sin, "sin x", aten=("sin",),
        vjp=lambda g, y, x: (g * call("cos", x),), interval=intervals.function,
    ),
    "cos": Op(
        REAL, torch.cos, "cos x", aten=("cos",),
        vjp=lambda g, y, x: (-(g * call("sin", x)),), interval=intervals.function,
    ),
    "tanh": Op(
        REAL, torch.tanh, "tanh x", aten=("tanh",), traits=Trait.SMOOTH,
        vjp=lambda g, y, x: (g * (1.0 - y * y),), interval=intervals.function,
        fast=lambda x: call("tanh_approx", x),
    ),
    "erf": Op(
        REAL, torch.erf, "the error function", aten=("erf", "special_erf"), traits=Trait.SMOOTH,
        vjp=lambda g, y, x: (g * (call("exp", -(x * x)) * (2.0 / math.sqrt(math.pi))),),
        interval=intervals.function,
    ),
}  # fmt: skip

# What no program holds: a device's approximate instructions, and a power that is neither a product
# nor a root.
INSTRUCTION_ROWS = {
    "power": Op(("ff>f",), torch.pow, "x to any literal power", params=1),
    "tanh_approx": Op(REAL, torch.tanh, "tanh x, within 2⁻¹¹"),
    "exp2_approx": Op(REAL, torch.exp2, "2ˣ, within 2 ulp"),
    "log2_approx": Op(REAL, torch.log2, "log₂ x, within 2⁻²²"),
    "rcp_approx": Op(REAL, torch.reciprocal, "1/x, within 1 ulp"),
}
