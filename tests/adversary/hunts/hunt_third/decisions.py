"""Decisions at the last bit: scores that are whole numbers, and powers of two."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, of_scores, randn

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def whole(dtype=D64):
    def make():
        q = torch.arange(-20, 21, dtype=dtype)[None, :, None].requires_grad_()
        return q, torch.ones(1, 2, 1, dtype=dtype).requires_grad_(), randn(1, 2, 3, dtype=dtype)

    return make


table(
    whole(),
    of=of_scores,
    prefix="whole_",
    two_scales_meet_a_threshold=lambda s: (s * 0.1 * 0.7 >= 0.21) * s,
    two_scales_in_place=lambda s: torch.where(s.mul_(0.1).mul_(0.7) >= 0.42, s, 0.0),
    two_scales_floor=lambda s: (s * 0.6 * (1 / 3)).floor(),
    two_scales_clamp_gradient=lambda s: (s * 0.1 * 0.7).clamp(max=0.21),
    addcmul_decides=lambda s: (
        (torch.addcmul(s.sign() * 0.6, s, s.sign().abs(), value=0.1) >= 0.9) * s
    ),
    exp2_decides=lambda s: (
        (torch.exp2(s * 0.5) >= 2.8284271247461903) * s + (2 ** (s * 0.5) >= 2.8284271247461903) * s
    ),
    lerp_decides=lambda s: (torch.lerp(s, s + 1, 0.3) >= 3.3) * s,
)


def whole16(dtype):
    def make():
        q = torch.arange(-20, 21).to(dtype)[None, :, None].requires_grad_()
        return q, torch.ones(1, 2, 1, dtype=dtype).requires_grad_(), randn(1, 2, 3, dtype=dtype)

    return make


IN_16_BITS = {
    "scale_meets_a_decimal": lambda s: (s * 0.1 >= 0.3) * s,
    "division_meets_a_decimal": lambda s: (s / 10 >= 0.7) * s,
    "scale_floor": lambda s: (s * 0.1 * 10).floor(),
    "division_floor": lambda s: (s / 3 * 3).floor() * 0.1,
    "plain_threshold": lambda s: (s >= 3) * s * 0.1,
    "clamp_at_a_decimal": lambda s: ((s * 0.1).clamp(max=0.3) == s * 0.1) * s,
    "threshold_at_a_decimal": lambda s: F.threshold(s * 0.1, 0.3, 0.0),
    "hardtanh_at_a_decimal": lambda s: F.hardtanh(s * 0.1, -0.7, 0.7),
    "rounded_half": lambda s: (s * 0.1 * 5).round(),
    "sigmoid_at_one": lambda s: (s.sigmoid() >= 1.0) * s,
    "tanh_at_one": lambda s: (s.tanh() == 1.0) * s,
    "underflow": lambda s: (torch.exp(-s.abs() * 5) > 0) * s,
    "equal_after_rounding": lambda s: (s + 0.001 == s) * s,
}


for dtype in (torch.bfloat16, torch.float16):
    named = {f"{name}_{str(dtype)[6:]}": f for name, f in IN_16_BITS.items()}
    table(whole16(dtype), named, of=of_scores, prefix="whole_")


table(
    whole(),
    of=of_scores,
    prefix="whole_",
    power_of_two_floor=lambda s: (2 ** (s / 3) * 4).floor(),
    power_of_half=lambda s: (0.5**s >= 0.125) * s,
    power_of_ten=lambda s: (10.0**s >= 1000.0) * s,
    three_scales=lambda s: (s * 0.1 * 0.7 * 0.9 >= 0.189) * s + (s * 0.3 * (1 / 3) * 0.5).floor(),
)
