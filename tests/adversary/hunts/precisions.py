"""Numbers that a program forgets: dtypes, literals, decisions at the last bit."""

import torch
import torch.nn.functional as F

from .rows import (
    D64,
    INF,
    Programs,
    bf16,
    fp32,
    fp64,
    frozen,
    ikv,
    leaves,
    normal,
    nothing,
    of_scores,
    plus,
    randn,
    rounded,
    square,
    values,
)

CASES, MORE = Programs(), Programs()


B, H, N, M, D = 2, 2, 8, 8, 4


def of_fp32(dtype=torch.float32, n=N, m=M):
    return leaves((B, H, n, D), (B, H, m, D), (B, H, m, D), dtype=dtype)


long_half = lambda: of_fp32(torch.bfloat16, 300, 300)


def whole_scores():
    """Scores that are powers of two: one key channel counts."""
    q, k, v = torch.zeros(B, H, N, D), torch.ones(B, H, M, D), torch.randn(B, H, M, D)
    q[..., 0] = 2.0 ** torch.arange(N)
    return tuple(x.requires_grad_() for x in (q, k, v))


def thousands():
    q, k, v = whole_scores()
    q = torch.zeros(B, H, N, D)
    q[..., 0] = torch.tensor([1.0, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7])
    return (q.requires_grad_(), k, v)


# Timestamps of today in double precision, a second apart.
SECONDS = lambda: (1_700_000_000.0 + torch.arange(N, dtype=D64).repeat(B, 1),)
half = lambda: of_fp32(torch.bfloat16)
COUNTED = plus(half, lambda: (torch.arange(250, 250 + N * M).view(N, M).bfloat16(),))


def masked(f):
    """silu where `f` of the operands of the mask holds, and else zero."""
    return of_scores(lambda s, *more: torch.where(f(*more), F.silu(s), 0.0))


def where(f):
    """The same of a function of the scores."""
    return of_scores(lambda s: torch.where(f(s), F.silu(s), 0.0))


CASES.table(
    of_fp32,
    of=masked,
    seconds_in_double=(lambda t: (t[:, :, None] > t[:, None, :])[:, None], SECONDS),
)
CASES.table(
    COUNTED,
    of=masked,
    half_bias_and_full=lambda bias: bias < torch.full((N, M), 257.0).bfloat16(),
)


# Functions that are written as others, where a decision follows


def at_least_one(f):
    return of_scores(lambda s: f(s.abs().clamp(min=1)))


def whole(f):
    """`f` of the scores where it is a whole number."""

    def weights(s):
        x = f(s)
        return torch.where(x == x.trunc(), x, 0.0)

    return weights


def tangent_is_one(s):
    s = torch.tan(s * (torch.pi / 4))
    return torch.where(s >= 1.0, s, 0.0)


CASES.table(
    nothing,
    of=at_least_one,
    log2_bucket=(lambda s: torch.log2(s).floor(), whole_scores),
    log10_bucket=(lambda s: torch.log10(s).floor(), thousands),
    log10_is_whole=(whole(torch.log10), thousands),
)
CASES.table(
    whole_scores,
    of=of_scores,
    tangent_is_one=tangent_is_one,
    power_of_ten_is=lambda s: torch.where(
        torch.pow(10.0, torch.where(s < 16, s, 0.0)) == 100.0, 1.0, s
    ),
)
CASES.table(
    of_fp32,
    compare_past_fp32=where(lambda s: s < 1e300),
)
CASES.table(
    of_fp32,
    of=of_scores,
    plus_past_fp32=lambda s: torch.tanh(s - 1e40),
)


def with_infinity():
    weight = torch.ones(6, 6)
    weight[1, 1] = float("inf")
    return (*leaves(*[(2, 1, 6, 4)] * 3), weight)


# Of the adversary's seed 42336: the gradient of q is infinite, and no NaN.
CASES.table(
    nothing,
    of=of_scores,
    half_positions_below_257=(
        lambda s: torch.where(torch.arange(300).to(s.dtype) < 257, F.silu(s), 0.0),
        long_half,
    ),
    log_sigmoid_times_infinity=(lambda s, weight: F.logsigmoid(s) * weight, with_infinity),
)


# Biases and scales that are learned, looked up or broadcast

CASES.table(
    fp64,
    of=of_scores,
    bias_adds_rank_mul=(lambda s, b: torch.sigmoid(s) * b, normal((3, 1, 1, 5, 5))),
    bias_used_twice=(lambda s, b: torch.sigmoid(s + b) * b, normal((2, 1, 5, 5))),
    bias_unfold=(lambda s, b: torch.sigmoid(s + b.unfold(1, 5, 1).flip(1)), normal((2, 9))),
    bias_outer=(lambda s, b: torch.sigmoid(s + torch.outer(b, b)), normal(5)),
)


def multiplied(factor, dtype):
    return lambda: tuple((x * factor).to(dtype) for x in frozen())


CASES.table(
    fp32,
    of=of_scores,
    float8_weights=lambda s: torch.sigmoid(s).to(torch.float8_e4m3fn).to(torch.float32),
    scores_rounded_half=lambda s: F.relu(s.half().float()),
    python_float_big=lambda s: torch.sigmoid(s * 1e39 * 1e-39),
    neg_zero=lambda s: (1 / (s.relu() * -0.0)).clamp(-1, 1),
)


@CASES.case(fp32)
def default_dtype_double(q, k, v):
    torch.set_default_dtype(torch.float64)
    try:
        return F.silu(q @ k.mT * torch.tensor(0.1)) @ v
    finally:
        torch.set_default_dtype(torch.float32)


CASES.table(
    nothing,
    mixed_all=(
        lambda q, k, v: torch.sigmoid(q @ k.mT.float()).double() @ v,
        normal((2, 2, 5, 4), dtype=torch.float32),
        normal((2, 2, 5, 4), dtype=torch.bfloat16),
        normal((2, 2, 5, 4)),
    ),
    complex_abs=(
        lambda q, k, v: torch.relu((q @ k.mH).abs() - 1) @ v.real,
        rounded(torch.complex128),
    ),
    complex_real=(
        lambda q, k, v: torch.relu((q @ k.conj().mT).real) @ v.imag,
        rounded(torch.complex128),
    ),
    integer_scores_div=(
        lambda q, k, v: ((q @ k.mT) / 3).relu() @ v.float(),
        multiplied(3, torch.int64),
    ),
    bf_big_scores_half=(
        lambda q, k, v: torch.sigmoid(((q * 300) @ (k * 300).mT).half()).bfloat16() @ v,
        bf16,
    ),
    half_overflow=(
        lambda q, k, v: torch.sigmoid((q * 300) @ (k * 300).mT * 1e-4) @ v,
        rounded(torch.float16),
    ),
)
CASES.table(
    nothing,
    of=of_scores,
    complex_plain=(torch.tanh, rounded(torch.complex128)),
    integers=(F.relu, multiplied(3, torch.int64)),
    integers8=(F.relu, multiplied(50, torch.int8)),
    where_int_branch=(lambda s: torch.where(s > 0, 1, 0).to(D64), fp64),
)


# Scores that are whole numbers, and powers of two


def wholes(dtype=D64):
    def make():
        q = torch.arange(-20, 21, dtype=dtype)[None, :, None].requires_grad_()
        return q, torch.ones(1, 2, 1, dtype=dtype).requires_grad_(), randn(1, 2, 3, dtype=dtype)

    return make


CASES.table(
    wholes(),
    of=of_scores,
    prefix="whole_",
    two_scales_meet_a_threshold=lambda s: (s * 0.1 * 0.7 >= 0.21) * s,
    two_scales_in_place=lambda s: torch.where(s.mul_(0.1).mul_(0.7) >= 0.42, s, 0.0),
    two_scales_floor=lambda s: (s * 0.6 * (1 / 3)).floor(),
    two_scales_clamp_gradient=lambda s: (s * 0.1 * 0.7).clamp(max=0.21),
    three_scales=lambda s: (s * 0.1 * 0.7 * 0.9 >= 0.189) * s + (s * 0.3 * (1 / 3) * 0.5).floor(),
)
MORE.table(
    wholes(),
    of=of_scores,
    prefix="whole_",
    addcmul_decides=lambda s: (
        (torch.addcmul(s.sign() * 0.6, s, s.sign().abs(), value=0.1) >= 0.9) * s
    ),
    exp2_decides=lambda s: (
        (torch.exp2(s * 0.5) >= 2.8284271247461903) * s + (2 ** (s * 0.5) >= 2.8284271247461903) * s
    ),
    lerp_decides=lambda s: (torch.lerp(s, s + 1, 0.3) >= 3.3) * s,
    power_of_two_floor=lambda s: (2 ** (s / 3) * 4).floor(),
    power_of_half=lambda s: (0.5**s >= 0.125) * s,
    power_of_ten=lambda s: (10.0**s >= 1000.0) * s,
)


def wholes16(dtype):
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
    MORE.table(wholes16(dtype), named, of=of_scores, prefix="whole_")


# Numbers in one precision beside scores in another

FLAGS = lambda: (torch.rand(5, 7) > 0.5,)
SPECIAL = values([float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64, grad=True)


MORE.table(
    nothing,
    of=of_scores,
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
MORE.table(
    ikv(),
    of=of_scores,
    prefix="given_",
    mask_filled_1e40=(
        lambda s, m: s.clamp(-1, 1) + torch.zeros(5, 7).masked_fill(m, -3e38) * 2,
        FLAGS,
    ),
    scores_decide_by_log=lambda s: (
        s * (torch.log2(s.abs()) == 1.0) + (torch.log10(s.abs() * 10) == 1.0)
    ),
    bias_of_nan_in_clamp=(lambda s, a: s.clamp(min=a), SPECIAL),
)
