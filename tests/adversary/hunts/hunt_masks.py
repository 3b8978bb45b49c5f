"""Masks of positions and integers: widths, signs, wraps, choices, and what is detached."""

import torch
import torch.nn.functional as F

from .rows import Programs, leaves, nothing, of_scores

CASES = Programs()
case, table = CASES.case, CASES.table


B, H, N, M, D = 2, 2, 8, 8, 4


def qkv(dtype=torch.float32, n=N, m=M):
    return leaves((B, H, n, D), (B, H, m, D), (B, H, m, D), dtype=dtype)


def _with(make, dtype=torch.float32, n=N):
    def operands():
        return (*qkv(dtype, n, n), *make())

    return operands


with_bytes = _with(lambda: (torch.randint(0, 256, (N,), dtype=torch.uint8),))
with_small = _with(lambda: (torch.tensor([-128, 127, -1, 0, 1, -127, 126, 5], dtype=torch.int8),))
with_shorts = _with(lambda: (torch.tensor([-32768, 32767, 0, -1, 1, 2, 3, 4], dtype=torch.int16),))
with_ints = _with(lambda: (torch.randint(-(2**31), 2**31, (N,), dtype=torch.int32),))
_EDGES = [-(2**63), 2**63 - 1, -1, 0, 1, 2**53 + 1, 2**53, -(2**62)]
with_longs = _with(lambda: (torch.tensor(_EDGES),))
with_flags = _with(lambda: (torch.rand(N) > 0.5,))
with_reals = _with(lambda: (torch.tensor([0.0, -0.0, 1, -1, 2.5, float("nan"), float("inf"), 3]),))
with_halves = _with(lambda: (torch.tensor([250.0, 252, 254, 256, 258, 260, 262, 264]).bfloat16(),))
with_columns = _with(lambda: (torch.randn(N).requires_grad_(), torch.randn(M).requires_grad_()))
half_with_number = _with(
    lambda: (torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]).bfloat16(), torch.tensor(0.3)),
    torch.bfloat16,
)
with_unsigned = _with(lambda: (torch.arange(N).to(torch.uint16),))
with_complex = _with(lambda: (torch.randn(N, dtype=torch.complex64),))


def masked(f):
    return lambda q, k, v, *more: torch.where(f(*more), F.silu(q @ k.mT), 0.0) @ v


table(
    with_bytes,
    of=masked,
    bytes_low_bits=lambda t: (t[:, None] & 15) == (t[None, :] & 15),
    bytes_shifted=lambda t: (t[:, None] << 3) < (t[None, :] >> 2),
    bytes_as_truth=lambda t: torch.logical_and(t[:, None] >> 6, t[None, :] & 1),
    bytes_plus_float=lambda t: (t[:, None] + 0.5) > t[None, :],
)
table(
    with_small,
    of=masked,
    small_abs=lambda t: t.abs()[:, None] <= t[None, :].abs(),
    small_wide=lambda t: (t[:, None].long() - t[None, :].long()).abs() < 3,
)
table(
    with_ints,
    of=masked,
    ints_apart_wide=lambda t: (t[:, None].long() - t[None, :]) >= 0,
    ints_product_wide=lambda t: (t[:, None].long() * t[None, :]) >> 20 > 7,
    ints_as_floats=lambda t: t[:, None].float() >= t[None, :],
)
table(
    with_longs,
    of=masked,
    longs_fmod=lambda t: torch.fmod(t[:, None], 3) <= torch.fmod(t[None, :], 5),
    longs_trunc=lambda t: (
        torch.div(t[:, None] - 0 * t[None, :], 3, rounding_mode="trunc")
        >= torch.div(t, 3, rounding_mode="trunc")
    ),
    longs_floor_of_product=lambda t: (t[:, None] * t[None, :]) // 1000 >= 0,
    longs_clamped=lambda t: (t[:, None] + t[None, :]).clamp(-5, 2**62) > 0,
    longs_chosen=lambda t: torch.where(t[:, None] > t[None, :], t[:, None], -t[None, :]) % 4 == 1,
)
table(
    with_flags,
    of=masked,
    flags_added=lambda f: (f[:, None] + f[None, :]) == 1,
    flags_compared=lambda f: f[:, None] <= f[None, :],
    flags_xor_not=lambda f: ~(f[:, None] ^ ~f[None, :]),
)
table(
    with_flags,
    of=of_scores,
    flags_in_scale=lambda s, f: F.silu(s * (2 - (f[:, None] & f[None, :]).int())),
)
table(
    with_reals,
    of=masked,
    reals_as_truth=lambda r: torch.logical_or(r[:, None], r[None, :] - 1),
    reals_not_greater=lambda r: ~(r[:, None] > r[None, :]),
    reals_clamped=lambda r: r[:, None].clamp(0, 2) >= torch.clamp(r[None, :], min=1),
)
table(
    with_halves,
    of=masked,
    halves_and_positions=lambda h: h[:, None] < 253 + torch.arange(M),
    halves_at_most_clamped=lambda h: torch.maximum(h[:, None], h[None, :]).clamp(max=257) >= 257,
    halves_chosen=lambda h: (
        torch.where(torch.arange(M) < 4, torch.maximum(h[:, None], h[None, :]), 257) == 256
    ),
)
table(
    nothing,
    of=masked,
    shorts_product_wide=(lambda t: t[:, None].int() * t[None, :].int() >= 0, with_shorts),
    unsigned_less=(lambda t: t[:, None].int() >= t[None, :].int(), with_unsigned),
    complex_differs=(lambda t: t[:, None] != t[None, :], with_complex),
    halves_against_number=(
        lambda h, bound: torch.maximum(h[:, None], h[None, :]) > bound,
        half_with_number,
    ),
    halves_equal_number=(
        lambda h, bound: torch.minimum(h[:, None], h[None, :]) == bound,
        half_with_number,
    ),
)


@case(with_columns)
def detached_after_spread(q, k, v, a, b):
    x = (a[:, None] + b[None, :]).exp()
    return F.silu(q @ k.mT + x - x.detach()) @ v
