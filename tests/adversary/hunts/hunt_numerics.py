"""Numbers that a program forgets: dtypes of operands of masks, literals, 0-dim tensors, slices."""

import torch
import torch.nn.functional as F

from .rows import D64, Programs, leaves, nothing, of_scores, plus

CASES = Programs()
table = CASES.table


B, H, N, M, D = 2, 2, 8, 8, 4


def qkv(dtype=torch.float32, n=N, m=M):
    return leaves((B, H, n, D), (B, H, m, D), (B, H, m, D), dtype=dtype)


long_half = lambda: qkv(torch.bfloat16, 300, 300)


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
half = lambda: qkv(torch.bfloat16)
COUNTED = plus(half, lambda: (torch.arange(250, 250 + N * M).view(N, M).bfloat16(),))


def masked(f):
    """silu where `f` of the operands of the mask holds, and else zero."""
    return of_scores(lambda s, *more: torch.where(f(*more), F.silu(s), 0.0))


def where(f):
    """The same of a function of the scores."""
    return of_scores(lambda s: torch.where(f(s), F.silu(s), 0.0))


table(
    qkv,
    of=masked,
    seconds_in_double=(lambda t: (t[:, :, None] > t[:, None, :])[:, None], SECONDS),
)
table(
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


table(
    nothing,
    of=at_least_one,
    log2_bucket=(lambda s: torch.log2(s).floor(), whole_scores),
    log10_bucket=(lambda s: torch.log10(s).floor(), thousands),
    log10_is_whole=(whole(torch.log10), thousands),
)
table(
    whole_scores,
    of=of_scores,
    tangent_is_one=tangent_is_one,
    power_of_ten_is=lambda s: torch.where(
        torch.pow(10.0, torch.where(s < 16, s, 0.0)) == 100.0, 1.0, s
    ),
)
table(
    qkv,
    compare_past_fp32=where(lambda s: s < 1e300),
)
table(
    qkv,
    of=of_scores,
    plus_past_fp32=lambda s: torch.tanh(s - 1e40),
)


def with_infinity():
    weight = torch.ones(6, 6)
    weight[1, 1] = float("inf")
    return (*leaves(*[(2, 1, 6, 4)] * 3), weight)


# Of the adversary's seed 42336: the gradient of q is infinite, and no NaN.
table(
    nothing,
    of=of_scores,
    half_positions_below_257=(
        lambda s: torch.where(torch.arange(300).to(s.dtype) < 257, F.silu(s), 0.0),
        long_half,
    ),
    log_sigmoid_times_infinity=(lambda s, weight: F.logsigmoid(s) * weight, with_infinity),
)
