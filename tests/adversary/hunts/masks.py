"""Masks of positions and integers; masks, biases and lengths that are operands."""

import torch
import torch.nn.functional as F

from .rows import D64, INF, Programs, ikv, leaves, normal, nothing, of_scores, plus, qkv, values

CASES, MORE = Programs(), Programs()


B, H, N, M, D = 2, 2, 8, 8, 4


def of_fp32(dtype=torch.float32, n=N, m=M):
    return leaves((B, H, n, D), (B, H, m, D), (B, H, m, D), dtype=dtype)


def _with(make, dtype=torch.float32, n=N):
    def operands():
        return (*of_fp32(dtype, n, n), *make())

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


CASES.table(
    with_bytes,
    of=masked,
    bytes_low_bits=lambda t: (t[:, None] & 15) == (t[None, :] & 15),
    bytes_shifted=lambda t: (t[:, None] << 3) < (t[None, :] >> 2),
    bytes_as_truth=lambda t: torch.logical_and(t[:, None] >> 6, t[None, :] & 1),
    bytes_plus_float=lambda t: (t[:, None] + 0.5) > t[None, :],
)
CASES.table(
    with_small,
    of=masked,
    small_abs=lambda t: t.abs()[:, None] <= t[None, :].abs(),
    small_wide=lambda t: (t[:, None].long() - t[None, :].long()).abs() < 3,
)
CASES.table(
    with_ints,
    of=masked,
    ints_apart_wide=lambda t: (t[:, None].long() - t[None, :]) >= 0,
    ints_product_wide=lambda t: (t[:, None].long() * t[None, :]) >> 20 > 7,
    ints_as_floats=lambda t: t[:, None].float() >= t[None, :],
)
CASES.table(
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
CASES.table(
    with_flags,
    of=masked,
    flags_added=lambda f: (f[:, None] + f[None, :]) == 1,
    flags_compared=lambda f: f[:, None] <= f[None, :],
    flags_xor_not=lambda f: ~(f[:, None] ^ ~f[None, :]),
)
CASES.table(
    with_flags,
    of=of_scores,
    flags_in_scale=lambda s, f: F.silu(s * (2 - (f[:, None] & f[None, :]).int())),
)
CASES.table(
    with_reals,
    of=masked,
    reals_as_truth=lambda r: torch.logical_or(r[:, None], r[None, :] - 1),
    reals_not_greater=lambda r: ~(r[:, None] > r[None, :]),
    reals_clamped=lambda r: r[:, None].clamp(0, 2) >= torch.clamp(r[None, :], min=1),
)
CASES.table(
    with_halves,
    of=masked,
    halves_and_positions=lambda h: h[:, None] < 253 + torch.arange(M),
    halves_at_most_clamped=lambda h: torch.maximum(h[:, None], h[None, :]).clamp(max=257) >= 257,
    halves_chosen=lambda h: (
        torch.where(torch.arange(M) < 4, torch.maximum(h[:, None], h[None, :]), 257) == 256
    ),
)
CASES.table(
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


@CASES.case(with_columns)
def detached_after_spread(q, k, v, a, b):
    x = (a[:, None] + b[None, :]).exp()
    return F.silu(q @ k.mT + x - x.detach()) @ v


# Masks of positions and odd integers.


def rows(s):
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None]


def a8(s, dtype):
    return torch.arange(s.shape[-2], dtype=dtype)[:, None], torch.arange(s.shape[-1], dtype=dtype)[
        None
    ]


def m(f):
    return lambda s: s.sigmoid() * f(*rows(s))


MASKS = {
    "int16_square": lambda s: s.sigmoid() * ((a8(s, torch.int16)[0] * 100) ** 2 > 0),
    "invert_int": m(lambda i, j: ~i < -j),
    "nan_to_int": lambda s: s.sigmoid() * (torch.full_like(s, float("nan")).to(torch.int64) < 0),
    "inf_to_int": lambda s: s.sigmoid() * (torch.full_like(s, INF).to(torch.int64) == 0),
    "arange_fp16": lambda s: s.sigmoid() * torch.arange(s.shape[-1], dtype=torch.float16),
    "above_transposed": lambda s: s * (s[..., :5] > s[..., :5].mT).any(),
    "argsort_mask": lambda s: s * (s.argsort(-1) < 3),
    "max_of_neighbours": lambda s: torch.maximum(s, s.roll(1, -1)),
    "meshgrid_xy": lambda s: (
        s.sigmoid()
        * torch.ge(
            *torch.meshgrid(torch.arange(s.shape[-1]), torch.arange(s.shape[-2]), indexing="xy")
        )
    ),
    "kron": lambda s: (
        s.sigmoid()
        * torch.kron(torch.tensor([[1, 0], [1, 1]]), torch.ones(3, 4, dtype=torch.int64))[
            : s.shape[-2], : s.shape[-1]
        ]
    ),
    "band_part": lambda s: (
        s.sigmoid()
        * torch.where(torch.tril(torch.ones(s.shape[-2:], dtype=torch.int8), 1) == 1, 1.0, 0.25)
    ),
    "masked_fill_tensor": lambda s: s.masked_fill(
        rows(s)[0] > rows(s)[1], torch.tensor(0.1, dtype=torch.float32)
    ),
}


MORE.table(ikv(), MASKS, of=of_scores, prefix="mask_")


# Masks, biases and learned tables that are operands; lengths.


def per_batch(x):
    return x[:, None, None, None]


MORE.table(
    ikv(),
    of=of_scores,
    prefix="given_",
    uint8_lengths_minus_one=(
        lambda s, n: s.sigmoid() * (torch.arange(7) <= per_batch(n - 1)),
        values([0, 3], dtype=torch.uint8),
    ),
    int8_lengths_neg=(
        lambda s, n: s.sigmoid() * (-torch.arange(7) > per_batch(-n)),
        values([-128, 3], dtype=torch.int8),
    ),
    lengths_half=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)),
        values([2.5, 3.0], dtype=torch.float16),
    ),
    lengths_nan=(
        lambda s, n: s.sigmoid() * ~(torch.arange(7) < per_batch(n)),
        values([float("nan"), 3.0], dtype=D64),
    ),
    bool_lengths=(
        lambda s, n: s.sigmoid() * (torch.arange(7) <= per_batch(n)),
        values([True, False]),
    ),
    segments_uint8_difference=(
        lambda s, a, b: s.sigmoid() * (a[:, None, :, None] - b[:, None, None] < 2),
        lambda: (torch.randint(0, 3, (2, 5), dtype=torch.uint8),),
        lambda: (torch.randint(0, 3, (2, 7), dtype=torch.uint8),),
    ),
    times_int64_to_float=(
        lambda s, a, b: torch.sigmoid(s - (a[:, None, :, None] - b[:, None, None]).float() / 60),
        lambda: (torch.randint(0, 10**9, (2, 5)),),
        lambda: (torch.randint(0, 10**9, (2, 7)),),
    ),
    bias_of_size_one_dims=(lambda s, m: torch.sigmoid(s + m), normal((1, 1, 1, 7))),
    bias_bf16=(lambda s, a: torch.sigmoid(s + a) * a, normal((5, 7), dtype=torch.bfloat16)),
    bias_used_thrice=(
        lambda s, a: torch.sigmoid(s + a + a[:, :, :1]) * a[:, :1],
        normal((2, 2, 5, 7)),
    ),
    bias_diagonal_view=(lambda s, a: torch.sigmoid(s + a.diagonal(0, 0, 1)), normal((7, 7, 5))),
    bias_index_put=(
        lambda s, a, i: torch.sigmoid(
            s + torch.zeros(5, 7, dtype=D64).index_put((i,), a, accumulate=True)
        ),
        normal((3, 7)),
        values([1, 1, 4]),
    ),
    bias_scatter_add=(
        lambda s, a, i: torch.sigmoid(s + torch.zeros(5, 7, dtype=D64).scatter_add(1, i, a)),
        normal((5, 7)),
        lambda: (torch.randint(0, 3, (5, 7)),),
    ),
)


large = normal((2, 2, 40, 4), (2, 2, 48, 4), (2, 2, 48, 3))


def at(low=0, high=5, shape=(40, 48), dtype=torch.int64):
    """Indices into the table."""
    return lambda: (torch.randint(low, high, shape).to(dtype),)


def of_biases(f):
    return of_scores(lambda s, *more: torch.sigmoid(s + f(*more)))


MORE.table(
    large,
    of=of_biases,
    prefix="table_",
    int32=(lambda a, i: a[i], normal(5), at(dtype=torch.int32)),
    select=(lambda a, i: a.index_select(0, i.flatten()).view(40, 48), normal(5), at()),
)


@MORE.case(plus(qkv(), values([3, 5]), values([1, 2])))
def targets_and_context(q, k, v, n, targets):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    last = (n - targets)[:, None, None]
    a, b = torch.minimum(i, last), torch.minimum(j, last)
    m = ((a - b) > 0) | (i == j)
    m = m & (j < n[:, None, None])
    return (F.silu(q @ k.mT) / 7 * m[:, None]) @ v
