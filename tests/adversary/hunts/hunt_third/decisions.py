"""Decisions at the last bit: scores that are whole numbers, and powers of two."""

import math

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, nothing, of_scores, randn, values

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
    two_scales_hard_sigmoid=lambda s: F.relu(s * 0.1 * 0.7 - 0.21).sign() * s,
    two_scales_floor=lambda s: (s * 0.6 * (1 / 3)).floor(),
    two_scales_straight_through=lambda s: (
        (s * 0.6 * (1 / 3)).round() + ((s * 0.6 / 3).floor() - s).detach() + s
    ),
    two_scales_clamped=lambda s: F.threshold(s * 0.1 * 0.7, 0.21, 0.0),
    two_scales_hardshrink=lambda s: F.hardshrink(s * 0.1 * 0.7, 0.21),
    two_scales_clamp_gradient=lambda s: (s * 0.1 * 0.7).clamp(max=0.21),
    two_scales_relu6_gradient=lambda s: F.hardtanh(s * 0.1 * 0.7, -0.21, 0.21),
    hardsigmoid_decides=lambda s: (F.hardsigmoid(s) >= 2 / 3) * s + (F.hardsigmoid(s) == 5 / 6) * 3,
    hardswish_decides=lambda s: (F.hardswish(s) >= 2 / 3) * s + (F.hardswish(s) == 5 / 3) * 3,
    leaky_decides=lambda s: (F.leaky_relu(s, 0.1) <= -0.3) * s,
    add_alpha_decides=lambda s: (torch.add(s.sign() * 0.6, s, alpha=0.1) >= 0.9) * s,
    addcmul_decides=lambda s: (
        (torch.addcmul(s.sign() * 0.6, s, s.sign().abs(), value=0.1) >= 0.9) * s
    ),
    rsub_alpha_decides=lambda s: (torch.rsub(s, 0.9, alpha=0.1) <= 0.6) * s,
    silu_by_hand_decides=lambda s: (s * torch.sigmoid(s) == F.silu(s)) * s,
    gelu_by_hand_meets_a_constant=lambda s: (
        (0.5 * s * (1 + torch.erf(s / math.sqrt(2))) >= 0.8413447460685429) * s
        + (0.5 * s * (1 + torch.erf(s / math.sqrt(2))) >= 1.9544997361036416) * s
    ),
    silu_by_hand_meets_a_constant=lambda s: (
        (s * torch.sigmoid(s) >= 0.7310585786300049) * s
        + (s * torch.sigmoid(s) > 1.7615941559557646) * s
    ),
    reciprocal_decides=lambda s: (
        ((s.abs() + 1).reciprocal() * 3 >= 0.3) * s + (3 / (s.abs() + 1) >= 0.3) * s
    ),
    square_decides=lambda s: (
        ((s * 0.1).square() >= 0.09) * s
        + ((s * 0.1) ** 2 >= 0.09) * s
        + (s * 0.1 * (s * 0.1) >= 0.09) * s
    ),
    cube_decides=lambda s: (
        ((s * 0.1) ** 3 >= 0.027) * s + (s * 0.1 * (s * 0.1) * (s * 0.1) >= 0.027) * s
    ),
    root_decides=lambda s: (
        ((s.abs() * 0.1).sqrt() ** 2 >= 0.3) * s + ((s.abs() * 0.1) ** 0.5 >= 0.3**0.5) * s
    ),
    exp2_decides=lambda s: (
        (torch.exp2(s * 0.5) >= 2.8284271247461903) * s + (2 ** (s * 0.5) >= 2.8284271247461903) * s
    ),
    tanh_of_log=lambda s: (
        (torch.tanh(s) >= 0.7615941559557649) * s + (torch.sigmoid(s) >= 0.7310585786300049) * s
    ),
    division_then_scale=lambda s: (s / 3 * 0.3 >= 0.1 * 3) * s + (s * 0.3 / 3 >= 0.3) * s,
    neg_of_scales=lambda s: (-(s * 0.1) * 0.7 <= -0.21) * s,
    scale_of_int_and_float=lambda s: (s * 3 * 0.1 >= 0.3 * 3) * s + (s * 3.0 * 1.1 >= 9.9) * s,
    modulo_by_floor=lambda s: s * 0.1 * 0.7 - (s * 0.1 * 0.7 / 0.07).floor() * 0.07,
    lerp_decides=lambda s: (torch.lerp(s, s + 1, 0.3) >= 3.3) * s,
    softshrink_decides=lambda s: (F.softshrink(s * 0.1, 0.2) > 0.1) * s,
    elu_decides=lambda s: (
        (F.elu(s) <= math.expm1(-1)) * s + (F.celu(s, 3.0) <= 3 * math.expm1(-1)) * s
    ),
    selu_decides=lambda s: (F.selu(s) >= 3 * 1.0507009873554805) * s,
    softplus_decides=lambda s: (F.softplus(s, 2.0) >= math.log1p(math.exp(2.0)) / 2) * s,
)
table(
    nothing,
    of=of_scores,
    prefix="whole_",
    two_scales_meet_a_threshold_fp32=(lambda s: (s * 0.1 * 0.7 >= 0.21) * s, whole(torch.float32)),
    two_scales_floor_fp32=(
        lambda s: (s * 0.6 * (1 / 3)).floor() + (s * 0.1 * 0.7 * 1.0).floor(),
        whole(torch.float32),
    ),
    hardswish_decides_fp32=(
        lambda s: (F.hardswish(s) >= 2 / 3) * s + (F.hardswish(s) == 5 / 3) * 3,
        whole(torch.float32),
    ),
)


@case(
    lambda: (
        torch.arange(-20, 21, dtype=D64)[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1, dtype=D64),
        randn(1, 2, 3),
        torch.tensor([0.6, 0.3], dtype=D64),
    )
)
def whole_baddbmm_decides(q, k, v, b):
    s = torch.baddbmm(b.expand(1, 41, 2), q, k.mT, alpha=0.1)
    return ((s >= 0.9) * s + (s > 0.3) * 2) @ v


@case(
    lambda: (
        torch.arange(-20, 21, dtype=D64)[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1, dtype=D64),
        randn(1, 2, 3),
    )
)
def whole_baddbmm_two_scales(q, k, v):
    s = torch.baddbmm(torch.zeros(1, 1, 1, dtype=D64), q, k.mT, alpha=0.1, beta=0) * 0.7
    return ((s >= 0.21) * s) @ v


@case(
    lambda: (
        torch.randint(0, 2, (2, 2, 64, 32)).float(),
        torch.randint(0, 2, (2, 2, 64, 32)).float(),
        randn(2, 2, 64, 32, dtype=torch.float32),
    )
)
def binary_codes_with_two_scales(q, k, v):
    s = q @ k.mT * 32**-0.5
    s = s * 0.7
    return (s >= 9 * 32**-0.5 * 0.7).float() @ v


@case(
    lambda: (
        torch.randint(0, 2, (2, 2, 16, 8)).double(),
        torch.randint(0, 2, (2, 2, 16, 8)).double(),
        randn(2, 2, 16, 8),
    )
)
def binary_codes_quantised(q, k, v):
    s = q @ k.mT * 0.6 * (1 / 3)
    return (s + (s.floor() - s).detach()) @ v


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
