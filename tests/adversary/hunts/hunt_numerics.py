"""Numbers that a program forgets: dtypes of operands of masks, literals, 0-dim tensors, slices."""

import torch
import torch.nn.functional as F

from .rows import Programs, leaves, nothing, of_scores

CASES = Programs()
case, table = CASES.case, CASES.table


B, H, N, M, D = 2, 2, 8, 8, 4


def qkv(dtype=torch.float32, n=N, m=M):
    return leaves((B, H, n, D), (B, H, m, D), (B, H, m, D), dtype=dtype)


def half():
    return qkv(torch.bfloat16)


def double():
    return qkv(torch.float64)


def long_half():
    return qkv(torch.bfloat16, 300, 300)


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


def double_whole_scores():
    return tuple(x.detach().double().requires_grad_() for x in whole_scores())


def double_thousands():
    return tuple(x.detach().double().requires_grad_() for x in thousands())


def with_seconds():
    """Timestamps of today in double precision, a second apart."""
    return (*qkv(), 1_700_000_000.0 + torch.arange(N, dtype=torch.float64).repeat(B, 1))


def with_seconds_and_start():
    times = 1_700_000_000 + torch.arange(N).repeat(B, 1)
    return (*qkv(), times, torch.tensor(1_700_000_003.5, dtype=torch.float64))


def with_tiny_doubles():
    mask = torch.zeros(N, M, dtype=torch.float64)
    mask[::2] = 1e-300
    return (*qkv(), mask)


def with_fine_doubles():
    return (*qkv(), torch.full((N, M), 0.1, dtype=torch.float64) + 1e-12 * torch.randn(N, M))


def with_half_bias():
    bias = torch.arange(250, 250 + N * M).view(N, M).to(torch.bfloat16)
    return (*qkv(torch.bfloat16), bias)


def with_half_bias_and_bound():
    bias = torch.full((N, M), 0.1, dtype=torch.bfloat16)
    return (*qkv(torch.bfloat16), bias, torch.tensor(0.1))


@case(with_seconds)
def seconds_floor(q, k, v, t):
    i = t.long()
    return torch.where((i[:, :, None] > i[:, None, :])[:, None], F.silu(q @ k.mT), 0.0) @ v


table(
    with_tiny_doubles,
    of=of_scores,
    tiny_doubles_are_true=lambda s, mask: torch.where(mask.bool(), F.silu(s), 0.0),
    tiny_doubles_not_zero=lambda s, mask: torch.where(mask != 0, F.silu(s), 0.0),
    tiny_doubles_and=lambda s, mask: torch.where(torch.logical_and(mask, mask), F.silu(s), 0.0),
    tiny_doubles_fill=lambda s, mask: F.silu(s).masked_fill(mask == 0, 0.0),
)


table(
    nothing,
    half_positions_below_257=(
        lambda q, k, v: torch.where(torch.arange(300).to(q.dtype) < 257, F.silu(q @ k.mT), 0.0) @ v,
        long_half,
    ),
)


table(
    with_half_bias,
    of=of_scores,
    half_bias_below_257=lambda s, bias: torch.where(bias < 257, F.silu(s), 0.0),
    half_bias_is_261=lambda s, bias: torch.where(bias == 261, F.silu(s), 0.0),
    half_bias_and_full=lambda s, bias: torch.where(
        bias < torch.full((N, M), 257.0).bfloat16(), F.silu(s), 0.0
    ),
    half_bias_and_full_half=lambda s, bias: torch.where(
        bias < torch.full((N, M), 257.0, dtype=torch.bfloat16), F.silu(s), 0.0
    ),
    half_bias_above_exact=lambda s, bias: torch.where(bias > 256.5, F.silu(s), 0.0),
    half_bias_clamped=lambda s, bias: torch.where(bias.clamp(max=257) == 256, F.silu(s), 0.0),
)


@case(double_thousands)
@case(thousands)
def log10_is_whole(q, k, v):
    x = torch.log10((q @ k.mT).abs().clamp(min=1))
    return torch.where(x == x.trunc(), x, 0.0) @ v


table(
    nothing,
    of=of_scores,
    seconds_in_double=(
        lambda s, t: torch.where((t[:, :, None] > t[:, None, :])[:, None], F.silu(s), 0.0),
        with_seconds,
    ),
    seconds_after_double=(
        lambda s, t, start: torch.where((t >= start)[:, None, None, :], F.silu(s), 0.0),
        with_seconds_and_start,
    ),
    fine_doubles=(lambda s, x: torch.where(x > 0.1, F.silu(s), 0.0), with_fine_doubles),
    fine_doubles_each_other=(lambda s, x: torch.where(x > x.mT, F.silu(s), 0.0), with_fine_doubles),
    half_positions_at_least_257=(
        lambda s: F.silu(s) * (torch.arange(300, dtype=torch.int64).to(torch.bfloat16) >= 257),
        long_half,
    ),
    half_bias_and_number=(
        lambda s, bias, bound: torch.where(bias > bound, F.silu(s), 0.0),
        with_half_bias_and_bound,
    ),
    half_bias_above_a_tenth=(
        lambda s, bias, bound: torch.where(bias > 0.1, F.silu(s), 0.0),
        with_half_bias_and_bound,
    ),
    log2_bucket=(lambda s: torch.log2(s.abs().clamp(min=1)).floor(), whole_scores),
    power_of_ten_is=(
        lambda s: torch.where(torch.pow(10.0, torch.where(s < 16, s, 0.0)) == 100.0, 1.0, s),
        whole_scores,
    ),
    power_of_three=(lambda s: 3.0 ** (s * 0.0625).clamp(max=40), whole_scores),
    log2_bucket_double_whole_scores=(
        lambda s: torch.log2(s.abs().clamp(min=1)).floor(),
        double_whole_scores,
    ),
    log10_bucket=(lambda s: torch.log10(s.abs().clamp(min=1)).floor(), thousands),
    log10_bucket_double_thousands=(
        lambda s: torch.log10(s.abs().clamp(min=1)).floor(),
        double_thousands,
    ),
)


@case(double_whole_scores)
def sign_of_log2(q, k, v):
    x = torch.log2((q @ k.mT).abs().clamp(min=1))
    return torch.where(x % 1 == 0, x, 0.0).sign() @ v


@case(whole_scores)
def tangent_is_one(q, k, v):
    s = torch.tan((q @ k.mT) * (torch.pi / 4))
    return torch.where(s >= 1.0, s, 0.0) @ v


table(
    qkv,
    of=of_scores,
    smooth_of_log2=lambda s: torch.tanh(torch.log2(s.abs() + 1.0)),
    times_past_fp32=lambda s: torch.sigmoid(s * 1e39),
    plus_past_fp32=lambda s: torch.tanh(s - 1e40),
    compare_past_fp32=lambda s: torch.where(s < 1e300, F.silu(s), 0.0),
    scale_below_fp32=lambda s: F.silu(s * 1e-50),
    large_integer_compare=lambda s: torch.where(s < (1 << 62), F.silu(s), 0.0),
)


table(
    qkv,
    slice_from_before_the_start=lambda q, k, v: F.silu(q @ k.mT)[:, :, :, -12:4] @ v[:, :, :4],
    query_slice_from_before=lambda q, k, v: F.silu(q[:, :, -12:4] @ k.mT) @ v,
    score_slice_last_half=lambda q, k, v: F.silu((q @ k.mT)[..., -4:]) @ v[:, :, -4:],
    score_slice_past_end=lambda q, k, v: F.silu((q @ k.mT)[..., 4:100]) @ v[:, :, 4:],
    head_slice_before=lambda q, k, v: F.silu((q @ k.mT)[:, -9:1]) @ v[:, :1],
)
