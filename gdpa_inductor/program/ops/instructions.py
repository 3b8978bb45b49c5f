"""What forms are made of, and no program holds: a device's approximate instructions, and a power
that is neither a product nor a root."""

from __future__ import annotations

import torch

from ..expr import Op
from .arithmetic import REAL

ROWS = {
    "power": Op(("ff>f",), torch.pow, "x to any literal power", params=1),
    "tanh_approx": Op(REAL, torch.tanh, "tanh x, within 2⁻¹¹"),
    "exp2_approx": Op(REAL, torch.exp2, "2ˣ, within 2 ulp"),
    "log2_approx": Op(REAL, torch.log2, "log₂ x, within 2⁻²²"),
    "rcp_approx": Op(REAL, torch.reciprocal, "1/x, within 1 ulp"),
}
