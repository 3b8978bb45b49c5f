"""Masks, biases and learned tables that are operands; lengths."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, ikv, integral, normal, nothing, of_scores, plus, qkv, values

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def per_batch(x):
    return x[:, None, None, None]


FLAGS = lambda: (torch.rand(5, 7) > 0.5,)


table(
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
    lengths_floordiv=(
        lambda s, n: s.sigmoid() * (torch.arange(7) // per_batch(n) == 1),
        values([-2, 3]),
    ),
    lengths_mod=(lambda s, n: s.sigmoid() * (torch.arange(7) % per_batch(n) == 1), values([-2, 3])),
    lengths_float=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)),
        values([2.5, 3.0], dtype=D64),
    ),
    lengths_half=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)),
        values([2.5, 3.0], dtype=torch.float16),
    ),
    lengths_nan=(
        lambda s, n: s.sigmoid() * ~(torch.arange(7) < per_batch(n)),
        values([float("nan"), 3.0], dtype=D64),
    ),
    lengths_with_gradient=(
        lambda s, n: s.sigmoid() * (torch.arange(7) < per_batch(n)) / per_batch(n),
        normal(2),
    ),
    soft_length=(
        lambda s, n: s.sigmoid() * torch.sigmoid(per_batch(n) - torch.arange(7)),
        normal(2),
    ),
    bool_lengths=(
        lambda s, n: s.sigmoid() * (torch.arange(7) <= per_batch(n)),
        values([True, False]),
    ),
    segments=(
        lambda s, a, b: s.sigmoid() * (a[:, None, :, None] == b[:, None, None]),
        lambda: (torch.randint(0, 3, (2, 5)),),
        lambda: (torch.randint(0, 3, (2, 7)),),
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
    times_log=(
        lambda s, a, b: torch.sigmoid(
            s - (a[:, None, :, None] - b[:, None, None]).abs().clamp(min=1).double().log()
        ),
        lambda: (torch.randint(0, 10**9, (2, 5)),),
        lambda: (torch.randint(0, 10**9, (2, 7)),),
    ),
    uint8_mask_multiplied=(
        lambda s, m: s.sigmoid() * m * m,
        lambda: (torch.randint(0, 255, (5, 7), dtype=torch.uint8),),
    ),
    int_bias=(lambda s, m: torch.sigmoid(s + m), lambda: (torch.randint(-3, 3, (5, 7)),)),
    int_bias_huge=(
        lambda s, m: torch.sigmoid((s + m) * 1e-16),
        lambda: (torch.randint(2**60, 2**62, (5, 7)),),
    ),
    bool_bias=(lambda s, m: torch.sigmoid(s + m), FLAGS),
    bias_of_size_one_dims=(lambda s, m: torch.sigmoid(s + m), normal((1, 1, 1, 7))),
    bias_per_row_expanded=(lambda s, m: torch.sigmoid(s + m[:, :1].expand(5, 7)), normal((5, 7))),
    scalar_learned=(lambda s, a, b: torch.sigmoid(s * a + b) * a, normal(()), normal(1)),
    scalar_fp32_learned=(lambda s, a: torch.sigmoid(s * a), normal((), dtype=torch.float32)),
    bias_bf16=(lambda s, a: torch.sigmoid(s + a) * a, normal((5, 7), dtype=torch.bfloat16)),
    bias_in_where=(lambda s, a: torch.where(a > 0, s, a), normal((5, 7))),
    bias_ties=(lambda s, a: torch.maximum(s, a) + torch.minimum(s, a), integral((5, 7))),
    bias_clamp_bounds=(lambda s, a, b: s.clamp(a, b), integral((5, 7)), integral((5, 7))),
    bias_clamp_bounds_same=(lambda s, a: s.clamp(a, a), integral((5, 1))),
    bias_pow=(lambda s, a: s.abs().add(1).pow(a), normal(7)),
    lerp_gate=(lambda s, a: torch.lerp(s.relu(), s.sigmoid(), a), normal((2, 1, 1))),
    bias_used_thrice=(
        lambda s, a: torch.sigmoid(s + a + a[:, :, :1]) * a[:, :1],
        normal((2, 2, 5, 7)),
    ),
    bias_transposed_and_not=(
        lambda s, a: torch.sigmoid(s[..., :5] + a + a.mT) @ torch.ones(5, 7, dtype=s.dtype),
        normal((2, 2, 5, 5)),
    ),
    bias_selected=(lambda s, a: torch.sigmoid(s + a[1] + a[0, :, :1]), normal((3, 5, 7))),
    bias_diagonal_view=(lambda s, a: torch.sigmoid(s + a.diagonal(0, 0, 1)), normal((7, 7, 5))),
    bias_take=(
        lambda s, a, i: torch.sigmoid(s + a.take(i)),
        normal((5, 3)),
        lambda: (torch.randint(0, 15, (5, 7)),),
    ),
    bias_embedding_max_norm=(
        lambda s, a, i: torch.sigmoid(s + F.embedding(i, a, max_norm=0.5).permute(2, 0, 1)),
        normal((4, 2), grad=False),
        lambda: (torch.randint(0, 4, (5, 7)),),
    ),
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


table(
    large,
    of=of_biases,
    prefix="table_",
    new_dim=(lambda a, i: a[None, i], normal(5), at()),
    int32=(lambda a, i: a[i], normal(5), at(dtype=torch.int32)),
    select=(lambda a, i: a.index_select(0, i.flatten()).view(40, 48), normal(5), at()),
    select_last=(lambda a, i: torch.index_select(a, -1, i[0]), normal((40, 5)), at()),
    gather_=(lambda a, i: a.expand(40, 5).gather(1, i), normal((1, 5)), at()),
    bf16=(lambda a, i: a[i], normal(5, dtype=torch.bfloat16), at(0, 5, (40, 48))),
    table_of_function=(lambda a, i: torch.sin(a * 2)[i], normal(5), at()),
    per_batch=(lambda a, i: a[i][:, None], normal(5), at(shape=(2, 40, 48))),
)


@case(plus(qkv(), values([3, 5]), values([1, 2])))
def targets_and_context(q, k, v, n, targets):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    last = (n - targets)[:, None, None]
    a, b = torch.minimum(i, last), torch.minimum(j, last)
    m = ((a - b) > 0) | (i == j)
    m = m & (j < n[:, None, None])
    return (F.silu(q @ k.mT) / 7 * m[:, None]) @ v


@case(plus(qkv(), values([3, 5])))
def positions_modulo_period(q, k, v, n):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    m = (i - j) % n[:, None, None] == 0
    return (F.silu(q @ k.mT) * m[:, None]) @ v


table(
    nothing,
    of=of_scores,
    time_decay_from_nanoseconds=(
        lambda s, t: F.silu(s) * torch.exp(-(t[:, -1:] - t).float() * 1e-12)[:, None, None],
        plus(
            normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), dtype=torch.float32),
            lambda: (torch.randint(0, 2**40, (2, 7)),),
        ),
    ),
    time_window_in_floats=(
        lambda s, t, u: (
            F.silu(s)
            * (
                ((u[:, :, None].float() - t[:, None].float()).abs() < 3e11)
                | (u[:, :, None].float() // 1e9 == t[:, None].float() // 1e9)
            )[:, None]
        ),
        plus(
            normal((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), dtype=torch.float32),
            lambda: (torch.randint(0, 2**40, (2, 7)), torch.randint(0, 2**40, (2, 5))),
        ),
    ),
    lengths_in_floordiv_of_positions=(
        lambda s, n: F.silu(s) * (torch.arange(7) // n[:, None] == 0)[:, None, None],
        plus(qkv(), values([3, 5])),
    ),
    divided_by_lengths=(
        lambda s, n: F.silu(s) / n[:, None, None, None],
        qkv(),
        values([3.0, 5.0], dtype=D64),
    ),
    divided_by_integer_lengths=(
        lambda s, n: F.silu(s) / n[:, None, None, None],
        qkv(),
        values([3, 5]),
    ),
)
