"""Decisions at the last bit in 16 bits, and with powers of two."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, nothing, of_scores, randn, values
from .decisions import whole

PROGRAMS = Programs()
table = PROGRAMS.table


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
    power_of_two=lambda s: (2 ** (s * 0.5) >= 2**1.5) * s,
    power_of_two_floor=lambda s: (2 ** (s / 3) * 4).floor(),
    power_of_two_bias=lambda s: torch.floor(2.0 ** (torch.arange(2) * 0.5) * s),
    exp2_same=lambda s: (torch.exp2(s * 0.5) >= 2.8284271247461903) * s,
    power_of_half=lambda s: (0.5**s >= 0.125) * s,
    power_of_ten=lambda s: (10.0**s >= 1000.0) * s,
    scale_beyond_one_each=lambda s: (
        (s * 1.1 * 1.1 >= 3 * 1.1 * 1.1) * s + (s * 1.1 * 1.3).floor() + (s * 1.7 * 1.3).ceil()
    ),
    scale_through_mask=lambda s: ((s * torch.ones(2, dtype=s.dtype) * 0.1) * 0.7 >= 0.21) * s,
    three_scales=lambda s: (s * 0.1 * 0.7 * 0.9 >= 0.189) * s + (s * 0.3 * (1 / 3) * 0.5).floor(),
    scale_inside_bias=lambda s: ((s.detach() + torch.arange(2)) * 0.1 * 0.7 >= 0.21) * s,
    folded_bias_decides=lambda s: s * (torch.arange(2.0, 4.0, dtype=D64) * 0.1 * 0.7 >= 0.21),
)


table(
    nothing,
    of=of_scores,
    prefix="whole_",
    power_of_two_fp32=(
        lambda s: (2 ** (s * 0.5) >= 2**1.5) * s + (2.0 ** (s / 3) >= 2.0) * s,
        whole(torch.float32),
    ),
    scales_by_head_dim_twice_fp32=(
        lambda s: F.silu(s * 8**-0.5 * 8**-0.5) * (s * 8**-0.5 * 8**-0.5 >= 1.0),
        whole(torch.float32),
    ),
)


table(
    nothing,
    of=of_scores,
    folded_scales_of_an_operand_decide=(
        lambda s, a: s.relu() * (a * 0.1 * 0.7 >= 0.21) + (a * 0.6 * (1 / 3)).floor(),
        whole(),
        values([3.0, 6.0], dtype=D64),
    ),
    power_of_two_of_an_operand_decides=(
        lambda s, a: s.relu() * (2 ** (a * 0.5) >= 2.8284271247461903),
        whole(),
        values([3.0, 5.0], dtype=D64),
    ),
)


table(
    nothing,
    scales_at_a_kink_of_an_operand=(
        lambda q, k, v, a: (
            (
                (q @ k.mT).relu() * (a[:, None].mT * 0.1 * 0.7).clamp(max=0.21)
                + F.relu((q @ k.mT) * a * 0.1 * 0.7 - 0.63)
            )
            @ v
        ),
        whole(),
        values([3.0, 5.0], dtype=D64, grad=True),
    ),
)
