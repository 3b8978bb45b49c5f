"""Masks of positions and integers: widths, signs, wraps, choices, and what is detached."""

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


def longer():
    return qkv(n=300, m=300)


def longer_half():
    return qkv(torch.bfloat16, 300, 300)


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
with_signed = _with(lambda: (torch.randint(-20, 20, (N,)),))
with_reals = _with(lambda: (torch.tensor([0.0, -0.0, 1, -1, 2.5, float("nan"), float("inf"), 3]),))
with_halves = _with(lambda: (torch.tensor([250.0, 252, 254, 256, 258, 260, 262, 264]).bfloat16(),))
with_columns = _with(lambda: (torch.randn(N).requires_grad_(), torch.randn(M).requires_grad_()))
half_with_number = _with(
    lambda: (torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]).bfloat16(), torch.tensor(0.3)),
    torch.bfloat16,
)
with_unsigned = _with(lambda: (torch.arange(N).to(torch.uint16),))
with_complex = _with(lambda: (torch.randn(N, dtype=torch.complex64),))


def _masked(q, k, v, mask):
    return torch.where(mask, F.silu(q @ k.mT), 0.0) @ v


# integers of each width, one against the other


def bytes_less(q, k, v, t):
    return _masked(q, k, v, t[:, None] < t[None, :])


def bytes_apart(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - t[None, :]) < 10)


def bytes_not(q, k, v, t):
    return _masked(q, k, v, ~(t[:, None] | t[None, :]) > 5)


def bytes_low_bits(q, k, v, t):
    return _masked(q, k, v, (t[:, None] & 15) == (t[None, :] & 15))


def bytes_shifted(q, k, v, t):
    return _masked(q, k, v, (t[:, None] << 3) < (t[None, :] >> 2))


def bytes_as_truth(q, k, v, t):
    return _masked(q, k, v, torch.logical_and(t[:, None] >> 6, t[None, :] & 1))


def bytes_minus(q, k, v, t):
    return _masked(q, k, v, -(t[:, None] * torch.ones_like(t)) < 100)


def bytes_below_300(q, k, v, t):
    return _masked(q, k, v, (t[:, None] // t[None, :].clamp(min=1)) < 300)


def bytes_plus_float(q, k, v, t):
    return _masked(q, k, v, (t[:, None] + 0.5) > t[None, :])


def small_apart(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - t[None, :]).abs() < 3)


def small_abs(q, k, v, t):
    return _masked(q, k, v, t.abs()[:, None] <= t[None, :].abs())


def small_neg(q, k, v, t):
    return _masked(q, k, v, (-t)[:, None] <= t[None, :])


def small_wide(q, k, v, t):
    return _masked(q, k, v, (t[:, None].long() - t[None, :].long()).abs() < 3)


def small_remainder(q, k, v, t):
    return _masked(q, k, v, (t[:, None].int() - t[None, :].int()) % 7 == 3)


def small_fmod(q, k, v, t):
    return _masked(q, k, v, torch.fmod(t[:, None].int() - t[None, :].int(), 7) == -3)


def small_remainder_negative(q, k, v, t):
    return _masked(q, k, v, (t[:, None].int() - t[None, :].int()) % -7 == -3)


def small_floor(q, k, v, t):
    return _masked(q, k, v, (t[:, None].int() - t[None, :].int()) // 50 == -1)


def small_floor_negative(q, k, v, t):
    return _masked(q, k, v, (t[:, None].int() - t[None, :].int()) // -50 == 1)


def small_trunc(q, k, v, t):
    x = t[:, None].int() - t[None, :].int()
    return _masked(q, k, v, torch.div(x, 50, rounding_mode="trunc") == -1)


def small_shift_right(q, k, v, t):
    return _masked(q, k, v, ((t[:, None].int() - t[None, :].int()) >> 4) == -2)


def small_bits_of_negative(q, k, v, t):
    return _masked(q, k, v, ((t[:, None].int() - t[None, :].int()) & 63) == 2)


def shorts_product(q, k, v, t):
    return _masked(q, k, v, t[:, None] * t[None, :] >= 0)


def shorts_product_wide(q, k, v, t):
    return _masked(q, k, v, t[:, None].int() * t[None, :].int() >= 0)


def ints_apart(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - t[None, :]) >= 0)


def ints_apart_wide(q, k, v, t):
    return _masked(q, k, v, (t[:, None].long() - t[None, :]) >= 0)


def ints_product_wide(q, k, v, t):
    return _masked(q, k, v, (t[:, None].long() * t[None, :]) >> 20 > 7)


def ints_as_floats(q, k, v, t):
    return _masked(q, k, v, t[:, None].float() >= t[None, :])


def ints_times_half(q, k, v, t):
    return _masked(q, k, v, t[:, None] * 0.5 >= t[None, :])


def longs_apart(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - t[None, :]) >= 0)


def longs_fmod(q, k, v, t):
    return _masked(q, k, v, torch.fmod(t[:, None], 3) <= torch.fmod(t[None, :], 5))


def longs_trunc(q, k, v, t):
    x = torch.div(t, 3, rounding_mode="trunc")
    y = torch.div(t[:, None] - 0 * t[None, :], 3, rounding_mode="trunc")
    return _masked(q, k, v, y >= x)


def longs_abs(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - 0 * t[None, :]).abs() >= t[None, :].abs())


def longs_floor_of_product(q, k, v, t):
    return _masked(q, k, v, (t[:, None] * t[None, :]) // 1000 >= 0)


def longs_as_floats(q, k, v, t):
    return _masked(q, k, v, t[:, None].float() > t[None, :].float())


def longs_against_float(q, k, v, t):
    return _masked(q, k, v, t[:, None] >= t[None, :].float())


def longs_sign(q, k, v, t):
    return _masked(q, k, v, torch.sign(t[:, None] - t[None, :]) == torch.sign(t[None, :]))


def longs_square(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - t[None, :]) ** 2 < 10)


def longs_square_method(q, k, v, t):
    return _masked(q, k, v, (t[:, None] - t[None, :]).square() < 10)


def longs_max_min(q, k, v, t):
    x = torch.maximum(t[:, None], t[None, :]) - torch.minimum(t[:, None], t[None, :])
    return _masked(q, k, v, x < 2**40)


def longs_clamped(q, k, v, t):
    return _masked(q, k, v, (t[:, None] + t[None, :]).clamp(-5, 2**62) > 0)


def longs_chosen(q, k, v, t):
    x = torch.where(t[:, None] > t[None, :], t[:, None], -t[None, :])
    return _masked(q, k, v, x % 4 == 1)


def unsigned_less(q, k, v, t):
    return _masked(q, k, v, t[:, None].int() >= t[None, :].int())


def complex_differs(q, k, v, t):
    return _masked(q, k, v, t[:, None] != t[None, :])


# truth values in arithmetic


def flags_added(q, k, v, f):
    return _masked(q, k, v, (f[:, None] + f[None, :]) == 1)


def flags_times(q, k, v, f):
    return F.silu(q @ k.mT) * (f[:, None] * f[None, :]) @ v


def flags_counted(q, k, v, f):
    return _masked(q, k, v, (f[:, None].int() + f[None, :]) == 1)


def flags_shifted(q, k, v, f):
    return _masked(q, k, v, (f[:, None].int() << 2) + f[None, :] > 3)


def flags_compared(q, k, v, f):
    return _masked(q, k, v, f[:, None] <= f[None, :])


def flags_max(q, k, v, f):
    return _masked(q, k, v, torch.maximum(f[:, None], f[None, :]))


def flags_xor_not(q, k, v, f):
    return _masked(q, k, v, ~(f[:, None] ^ ~f[None, :]))


def flags_and_one(q, k, v, f):
    return _masked(q, k, v, ((f[:, None] & 1) == f[None, :]))


def flags_as_bias(q, k, v, f):
    return F.silu(q @ k.mT + (f[:, None] | f[None, :])) @ v


def flags_minus_float(q, k, v, f):
    return F.silu(q @ k.mT + (1 - (f[:, None] & f[None, :]).float()) * -1e4) @ v


def flags_in_scale(q, k, v, f):
    return F.silu((q @ k.mT) * (2 - (f[:, None] & f[None, :]).int())) @ v


# real numbers in masks


def reals_as_truth(q, k, v, r):
    return _masked(q, k, v, torch.logical_or(r[:, None], r[None, :] - 1))


def reals_equal(q, k, v, r):
    return _masked(q, k, v, r[:, None] == r[None, :])


def reals_not_greater(q, k, v, r):
    return _masked(q, k, v, ~(r[:, None] > r[None, :]))


def reals_sum_is_finite(q, k, v, r):
    return _masked(q, k, v, torch.isfinite(r[:, None] + r[None, :]))


def reals_is_inf(q, k, v, r):
    return _masked(q, k, v, torch.isinf(torch.maximum(r[:, None], r[None, :])))


def reals_is_nan(q, k, v, r):
    return _masked(q, k, v, torch.isnan(r[:, None] * r[None, :]))


def reals_quotient(q, k, v, r):
    return _masked(q, k, v, (r[:, None] / r[None, :]) > 0)


def reals_clamped(q, k, v, r):
    return _masked(q, k, v, r[:, None].clamp(0, 2) >= torch.clamp(r[None, :], min=1))


def halves_below_odd(q, k, v, h):
    return _masked(q, k, v, torch.maximum(h[:, None], h[None, :]) < 257)


def halves_apart(q, k, v, h):
    return _masked(q, k, v, (h[:, None] - h[None, :]) >= 3)


def halves_and_positions(q, k, v, h):
    return _masked(q, k, v, h[:, None] < 253 + torch.arange(M))


def halves_at_most_clamped(q, k, v, h):
    return _masked(q, k, v, torch.maximum(h[:, None], h[None, :]).clamp(max=257) >= 257)


def halves_chosen(q, k, v, h):
    x = torch.where(torch.arange(M) < 4, torch.maximum(h[:, None], h[None, :]), 257)
    return _masked(q, k, v, x == 256)


def halves_against_number(q, k, v, h, bound):
    return _masked(q, k, v, torch.maximum(h[:, None], h[None, :]) > bound)


def halves_equal_number(q, k, v, h, bound):
    return _masked(q, k, v, torch.minimum(h[:, None], h[None, :]) == bound)


# gradients through what is detached


def detached_outer(q, k, v, a, b):
    return F.silu(q @ k.mT + (a[:, None] - b[None, :]).detach()) @ v


def detached_part(q, k, v, a, b):
    return F.silu(q @ k.mT + (a[:, None].detach() * b[None, :])) @ v


def detached_view(q, k, v, a, b):
    return F.silu(q @ k.mT + a.detach()[:, None] + b.data[None, :] * a[:, None]) @ v


def detached_twice(q, k, v, a, b):
    x = a[:, None] * b[None, :]
    return F.silu(q @ k.mT * x.detach() + x) @ v


def detached_score(q, k, v, a, b):
    s = q @ k.mT + a[:, None]
    return (F.silu(s) * s.detach().sigmoid() + b) @ v


def detached_after_spread(q, k, v, a, b):
    x = (a[:, None] + b[None, :]).exp()
    return F.silu(q @ k.mT + x - x.detach()) @ v


_GROUPS = {
    with_bytes: "bytes", with_small: "small", with_shorts: "shorts", with_ints: "ints",
    with_longs: "longs", with_unsigned: "unsigned", with_complex: "complex", with_flags: "flags",
    with_reals: "reals", half_with_number: "halves_against halves_equal",
    with_halves: "halves_below halves_apart halves_and halves_at halves_chosen",
    with_columns: "detached",
}  # fmt: skip
CASES = [
    (function, make)
    for make, names in _GROUPS.items()
    for name, function in list(globals().items())
    if any(f"{name}_".startswith(f"{start}_") for start in names.split())
]
