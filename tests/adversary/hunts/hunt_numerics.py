"""Numbers that a program forgets: dtypes of operands of masks, literals, 0-dim tensors, slices."""

import torch
import torch.nn.functional as F

B, H, N, M, D = 2, 2, 8, 8, 4


def _made(*shapes, dtype=torch.float32, grad=True):
    return tuple(torch.randn(*shape, dtype=dtype).requires_grad_(grad) for shape in shapes)


def qkv(dtype=torch.float32, n=N, m=M):
    return _made((B, H, n, D), (B, H, m, D), (B, H, m, D), dtype=dtype)


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


# comparisons in a precision that the program does not have


def seconds_in_double(q, k, v, t):
    return torch.where((t[:, :, None] > t[:, None, :])[:, None], F.silu(q @ k.mT), 0.0) @ v


def seconds_floor(q, k, v, t):
    i = t.long()
    return torch.where((i[:, :, None] > i[:, None, :])[:, None], F.silu(q @ k.mT), 0.0) @ v


def seconds_after_double(q, k, v, t, start):
    return torch.where((t >= start)[:, None, None, :], F.silu(q @ k.mT), 0.0) @ v


def tiny_doubles_are_true(q, k, v, mask):
    return torch.where(mask.bool(), F.silu(q @ k.mT), 0.0) @ v


def tiny_doubles_not_zero(q, k, v, mask):
    return torch.where(mask != 0, F.silu(q @ k.mT), 0.0) @ v


def tiny_doubles_and(q, k, v, mask):
    return torch.where(torch.logical_and(mask, mask), F.silu(q @ k.mT), 0.0) @ v


def tiny_doubles_fill(q, k, v, mask):
    return F.silu(q @ k.mT).masked_fill(mask == 0, 0.0) @ v


def fine_doubles(q, k, v, x):
    return torch.where(x > 0.1, F.silu(q @ k.mT), 0.0) @ v


def fine_doubles_each_other(q, k, v, x):
    return torch.where(x > x.mT, F.silu(q @ k.mT), 0.0) @ v


def half_positions_below_257(q, k, v):
    i = torch.arange(300).to(q.dtype)
    return torch.where(i < 257, F.silu(q @ k.mT), 0.0) @ v


def half_positions_at_least_257(q, k, v):
    i = torch.arange(300, dtype=torch.int64).to(torch.bfloat16)
    return (F.silu(q @ k.mT) * (i >= 257)) @ v


def half_bias_below_257(q, k, v, bias):
    return torch.where(bias < 257, F.silu(q @ k.mT), 0.0) @ v


def half_bias_is_261(q, k, v, bias):
    return torch.where(bias == 261, F.silu(q @ k.mT), 0.0) @ v


def half_bias_and_full(q, k, v, bias):
    return torch.where(bias < torch.full((N, M), 257.0).bfloat16(), F.silu(q @ k.mT), 0.0) @ v


def half_bias_and_full_half(q, k, v, bias):
    bound = torch.full((N, M), 257.0, dtype=torch.bfloat16)
    return torch.where(bias < bound, F.silu(q @ k.mT), 0.0) @ v


def half_bias_and_number(q, k, v, bias, bound):
    return torch.where(bias > bound, F.silu(q @ k.mT), 0.0) @ v


def half_bias_above_a_tenth(q, k, v, bias, bound):
    return torch.where(bias > 0.1, F.silu(q @ k.mT), 0.0) @ v


def half_bias_above_exact(q, k, v, bias):
    return torch.where(bias > 256.5, F.silu(q @ k.mT), 0.0) @ v


def half_bias_clamped(q, k, v, bias):
    return torch.where(bias.clamp(max=257) == 256, F.silu(q @ k.mT), 0.0) @ v


# functions that are written as others, where a decision follows


def log2_bucket(q, k, v):
    return torch.log2((q @ k.mT).abs().clamp(min=1)).floor() @ v


def log10_bucket(q, k, v):
    return torch.log10((q @ k.mT).abs().clamp(min=1)).floor() @ v


def log10_is_whole(q, k, v):
    x = torch.log10((q @ k.mT).abs().clamp(min=1))
    return torch.where(x == x.trunc(), x, 0.0) @ v


def power_of_ten_is(q, k, v):
    s = q @ k.mT
    p = torch.pow(10.0, torch.where(s < 16, s, 0.0))
    return torch.where(p == 100.0, 1.0, s) @ v


def power_of_three(q, k, v):
    return (3.0 ** ((q @ k.mT) * 0.0625).clamp(max=40)) @ v


def sign_of_log2(q, k, v):
    x = torch.log2((q @ k.mT).abs().clamp(min=1))
    return torch.where(x % 1 == 0, x, 0.0).sign() @ v


def tangent_is_one(q, k, v):
    s = torch.tan((q @ k.mT) * (torch.pi / 4))
    return torch.where(s >= 1.0, s, 0.0) @ v


def smooth_of_log2(q, k, v):
    return torch.tanh(torch.log2((q @ k.mT).abs() + 1.0)) @ v


# literals past fp32


def times_past_fp32(q, k, v):
    return torch.sigmoid((q @ k.mT) * 1e39) @ v


def plus_past_fp32(q, k, v):
    return torch.tanh((q @ k.mT) - 1e40) @ v


def compare_past_fp32(q, k, v):
    s = q @ k.mT
    return torch.where(s < 1e300, F.silu(s), 0.0) @ v


def scale_below_fp32(q, k, v):
    return F.silu((q @ k.mT) * 1e-50) @ v


def large_integer_compare(q, k, v):
    s = q @ k.mT
    return torch.where(s < (1 << 62), F.silu(s), 0.0) @ v


# slices


def slice_from_before_the_start(q, k, v):
    return F.silu(q @ k.mT)[:, :, :, -12:4] @ v[:, :, :4]


def query_slice_from_before(q, k, v):
    return F.silu(q[:, :, -12:4] @ k.mT) @ v


def score_slice_last_half(q, k, v):
    return F.silu((q @ k.mT)[..., -4:]) @ v[:, :, -4:]


def score_slice_past_end(q, k, v):
    return F.silu((q @ k.mT)[..., 4:100]) @ v[:, :, 4:]


def head_slice_before(q, k, v):
    return F.silu((q @ k.mT)[:, -9:1]) @ v[:, :1]


CASES = [
    (seconds_in_double, with_seconds),
    (seconds_floor, with_seconds),
    (seconds_after_double, with_seconds_and_start),
    (tiny_doubles_are_true, with_tiny_doubles),
    (tiny_doubles_not_zero, with_tiny_doubles),
    (tiny_doubles_and, with_tiny_doubles),
    (tiny_doubles_fill, with_tiny_doubles),
    (fine_doubles, with_fine_doubles),
    (fine_doubles_each_other, with_fine_doubles),
    (half_positions_below_257, long_half),
    (half_positions_at_least_257, long_half),
    (half_bias_below_257, with_half_bias),
    (half_bias_is_261, with_half_bias),
    (half_bias_and_full, with_half_bias),
    (half_bias_and_full_half, with_half_bias),
    (half_bias_and_number, with_half_bias_and_bound),
    (half_bias_above_a_tenth, with_half_bias_and_bound),
    (half_bias_above_exact, with_half_bias),
    (half_bias_clamped, with_half_bias),
    (log2_bucket, whole_scores),
    (log10_bucket, thousands),
    (log2_bucket, double_whole_scores),
    (log10_bucket, double_thousands),
    (log10_is_whole, double_thousands),
    (sign_of_log2, double_whole_scores),
    (tangent_is_one, whole_scores),
    (smooth_of_log2, qkv),
    (log10_is_whole, thousands),
    (power_of_ten_is, whole_scores),
    (power_of_three, whole_scores),
    (times_past_fp32, qkv),
    (plus_past_fp32, qkv),
    (compare_past_fp32, qkv),
    (scale_below_fp32, qkv),
    (large_integer_compare, qkv),
    (slice_from_before_the_start, qkv),
    (query_slice_from_before, qkv),
    (score_slice_last_half, qkv),
    (score_slice_past_end, qkv),
    (head_slice_before, qkv),
]
