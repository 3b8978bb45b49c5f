"""Numbers in one precision beside scores in another."""

import math

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    INF,
    Programs,
    ikv,
    integral,
    normal,
    nothing,
    of_scores,
    randn,
    square,
    values,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
SIZES = ((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4))
COMPLEX = normal(*SIZES, dtype=torch.complex128)
FLAGS = lambda: (torch.rand(5, 7) > 0.5,)
PAST_24_BITS = values([16777216, 16777217, 16777218, 16777219, 0, 1, 2])
PAST_11_BITS = values([2048, 2049, 70000, 3, 0, 1, 2])
SMALL = values([2, 1, 7, 3, 0, 1, 2])
SPECIAL = values([float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64, grad=True)


@case(normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4), dtype=torch.float32))
def threshold_between_fp32_and_fp64(q, k, v):
    s = q @ k.mT * 0 + torch.tensor(0.1)
    return (
        (s > 0.1).float()
        + (s >= 0.1) * 2
        + (s == 0.1) * 4
        + (s < torch.tensor(0.1, dtype=D64)) * 8
        + s
    ) @ v


table(
    nothing,
    of=of_scores,
    exact_score_at_a_decimal_threshold=(
        lambda s: (s > 0.1) * s + (s >= 0.1) * 2 + (s == 0.1) * 4,
        lambda: (
            torch.ones(1, 2, 1, 1),
            torch.full((1, 2, 2, 1), 0.1),
            randn(1, 2, 2, 3, dtype=torch.float32),
        ),
    ),
    clamp_at_a_decimal=(
        lambda s: (s.clamp(max=0.1) == s) * s + (F.hardtanh(s, -0.1, 0.1) < s) * 2,
        lambda: (
            torch.ones(1, 2, 2, 1),
            torch.full((1, 2, 2, 1), 0.1),
            randn(1, 2, 2, 3, dtype=torch.float32),
        ),
    ),
    bf16_scores_fp32_value=(
        lambda s: F.silu(s.float()),
        normal((1, 2, 4, 4), (1, 2, 4, 4), dtype=torch.bfloat16),
        normal((1, 2, 4, 4), dtype=torch.float32),
    ),
    int_beside_fp32=(
        lambda s, n: F.relu(s + (n > 16777216.5) + (n == 16777216.0) * 2 + (n - 16777216)),
        square(b=1, n=4, dtype=torch.float32),
        values(16777217),
    ),
    large_times_beside_fp32=(
        lambda s, n: F.relu(
            s
            + (n[:, None, None] + torch.arange(4) > 16777218.5)
            + (n.float() - 16777216)[:, None, None]
        ),
        square(b=1, n=4, dtype=torch.float32),
        values([16777217, 16777216]),
    ),
)
table(
    nothing,
    complex_conjugated=(lambda q, k, v: (q @ k.mH).real @ v.real, COMPLEX),
    fp16_overflow=(
        lambda q, k, v: (((q @ k.mT) * 30000).clamp(-65504, 65504) / 65504) @ v,
        square(b=1, n=4, dtype=torch.float16),
    ),
    fp16_mask_value=(
        lambda q, k, v: (
            torch.sigmoid(
                (q @ k.mT).masked_fill(
                    torch.ones(4, 4, dtype=torch.bool).triu(1), torch.finfo(torch.float16).min
                )
            )
            @ v
        ),
        square(b=1, n=4, dtype=torch.float16),
    ),
    bf16_mask_1e9=(
        lambda q, k, v: (
            torch.sigmoid(q @ k.mT + (1.0 - torch.ones(4, 4).tril()) * -1e9).to(v.dtype) @ v
        ),
        square(b=1, n=4, dtype=torch.bfloat16),
    ),
    bf16_to_float_between=(
        lambda q, k, v: F.silu((q @ k.mT).float() / 3).to(torch.bfloat16) @ v,
        square(b=1, n=4, dtype=torch.bfloat16),
    ),
)
table(
    ikv(),
    of=of_scores,
    prefix="given_",
    where_of_tenth_and_scores=(lambda s, m: torch.where(m, s, 0.1), FLAGS),
    full_of_tenths_fp32=(lambda s, m: s.relu() * torch.full((5, 7), 0.1) * m, FLAGS),
    zero_dim_tenth_fp32=(lambda s, m: s.relu() * torch.tensor(0.1) * m, FLAGS),
    mask_float_times_tenth=(lambda s, m: s.relu() + m.float() * 0.1, FLAGS),
    mask_in_bf16=(lambda s, m: s.relu() + m.bfloat16() * 0.1, FLAGS),
    mask_filled_1e40=(
        lambda s, m: s.clamp(-1, 1) + torch.zeros(5, 7).masked_fill(m, -3e38) * 2,
        FLAGS,
    ),
    int_above_half=(lambda s, n: s.relu() * (n > 16777216.5), PAST_24_BITS),
    int_equals_float=(lambda s, n: s.relu() * (n == 16777216.0), PAST_24_BITS),
    int_equals_fp32_tensor=(
        lambda s, n, x: s.relu() * (n == x),
        PAST_24_BITS,
        values([16777216.0] * 7),
    ),
    int_plus_half_above=(lambda s, n: s.relu() * (n + 0.5 > n), PAST_24_BITS),
    int_as_float_differs=(lambda s, n: s.relu() * (n.float() - n).abs(), PAST_24_BITS),
    int_as_half_differs=(lambda s, n: s.relu() * (n.half() == n), PAST_11_BITS),
    int_divided_in_fp32=(lambda s, n: s.relu() * (n / 3), PAST_11_BITS),
    int_root=(lambda s, n: s.relu() * n.sqrt(), PAST_11_BITS),
    int_log=(lambda s, n: s.relu() * torch.log(n + 1), PAST_11_BITS),
    int_sigmoid=(lambda s, n: s.relu() * n.sigmoid(), SMALL),
    int_mean_fp32=(lambda s, n: s.relu() * n.float().mean(), SMALL),
    fp32_bias_squared=(lambda s, a: s.relu() + a * a, normal(7, dtype=torch.float32)),
    fp32_bias_compared=(
        lambda s, a: s.relu() * (a * 3 > a + a + a),
        normal(7, dtype=torch.float32),
    ),
    fp32_bias_times_scores_compared=(lambda s, a: s * (s > a), normal(7, dtype=torch.float32)),
    bf16_bias_compared=(
        lambda s, a: s * (a > 0.1),
        lambda: (torch.full((7,), 0.1, dtype=torch.bfloat16),),
    ),
    fp32_compared_with_tenth=(
        lambda s, a: s * (a >= 0.1) + (a == 0.1),
        lambda: (torch.full((7,), 0.1),),
    ),
    fp32_clamped_at_tenth=(
        lambda s, a: s * (a.clamp(max=0.1) == a),
        lambda: (torch.full((7,), 0.1),),
    ),
    fp32_exp=(
        lambda s, a: s.relu() * a.exp(),
        lambda: (randn(7, 1, dtype=torch.float32).detach()[:5].clone().requires_grad_(),),
    ),
    fp32_exp_of_outer_sum=(
        lambda s, a, b: s.relu() * (a[:5, None] - b).exp(),
        normal(7, dtype=torch.float32),
        normal(7, dtype=torch.float32),
    ),
    fp64_outer_difference_floor=(
        lambda s, a, b: s.relu() * ((a[:5, None] - b) * 0.1).floor(),
        integral(7, low=-20, high=20),
        integral(7, low=-20, high=20),
    ),
    outer_difference_to_int=(
        lambda s, a, b: s.relu() * ((a[:5, None] - b) / 3).long(),
        integral(7, low=-20, high=20),
        integral(7, low=-20, high=20),
    ),
    scores_decide_at_decimal=lambda s: s * (s * 0.1 >= 0.3) + (s / 10 == 0.3) * 5,
    scores_decide_by_log=lambda s: (
        s * (torch.log2(s.abs()) == 1.0) + (torch.log10(s.abs() * 10) == 1.0)
    ),
    scores_decide_by_pow=lambda s: s * (s**3 == 8) + (s**0.5 == 2) + (s.abs() ** (1 / 3) == 2),
    scores_decide_by_square_root=lambda s: s * (s.abs().sqrt() * s.abs().sqrt() == s.abs()),
    scores_decide_by_division=lambda s: s * (s / 3 * 3 == s) + (s / 49 * 49 == s),
    scores_decide_by_folded_scales=lambda s: (
        s * (s * 0.1 * 0.1 == s * 0.1 * 0.1) + (s * 0.1 * 3.0 == s * 0.3)
    ),
    scores_decide_by_two_scales=lambda s: ((s * 0.1) * 0.7 > s * 0.07) * 1.0 + s,
    floor_of_folded_scales=lambda s: (s * 0.1 * 10.0).floor() + (s * 0.3 / 0.1).floor(),
    round_of_tenths=lambda s: (s * 0.5).round() + (s * 2.5 * 0.2).round(),
    silu_decides=lambda s: (s * torch.sigmoid(s) > 0.5) * 1.0 + F.gelu(s).floor(),
    gelu_by_hand_decides=lambda s: (0.5 * s * (1 + torch.erf(s / math.sqrt(2))) >= F.gelu(s)) * s,
    mod_of_scores_as_ints=lambda s: (s.long() % 3 == 1) * s,
    bias_of_nan=(lambda s, a: s + a, SPECIAL),
    bias_of_nan_in_where=(lambda s, a: torch.where(a > 0, s.relu(), a * s), SPECIAL),
    bias_of_nan_in_clamp=(lambda s, a: s.clamp(min=a), SPECIAL),
    bias_of_nan_in_maximum=(lambda s, a: torch.maximum(s, a), SPECIAL),
    bias_of_nan_in_nan_to_num=(lambda s, a: s * torch.nan_to_num(a, posinf=2.0), SPECIAL),
    bias_of_nan_in_activation=(
        lambda s, a: F.elu(a) * s + F.hardswish(a) + F.hardshrink(a),
        SPECIAL,
    ),
    softshrink_of_nan_to_num=(
        lambda s, a: F.softshrink(s + a).nan_to_num(1.0, 2.0, 3.0),
        values([float("nan"), 1.0, 0.5, 0.0, -0.0, 1.0, 2.0], dtype=D64, grad=True),
    ),
    sqrt_of_zero_masked=(lambda s, a: torch.where(s > 0, s.sqrt(), 0.0) * a, normal(7)),
    log_of_zero_masked=(lambda s, a: torch.where(s != 0, s.abs().log(), 0.0) * a, normal(7)),
    norm_gradient_at_zero=(lambda s, a: (s * s).sqrt() * a, normal(7)),
    divide_zero_by_zero_masked=(lambda s, a: (s / s).masked_fill(s == 0, 1.0) * a, normal(7)),
    pow_two_thirds_at_zero=(lambda s, a: s.abs().pow(2 / 3) * a, normal(7)),
    pow_of_integer_tensor=(lambda s, a: s**a, values([0, 1, 2, 3, 4, 5, 6])),
    pow_of_zero_dim=(lambda s, a: s.abs().add(1) ** a, normal(())),
    float_exponent_two=(lambda s, a: (s**2.0 + s**1 + s**-0.0) * a, normal(7)),
)
