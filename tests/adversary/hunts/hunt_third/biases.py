"""Masks, biases and learned tables that are operands; lengths."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, ikv, normal, of_scores, plus, qkv, values

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def per_batch(x):
    return x[:, None, None, None]


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


table(
    large,
    of=of_biases,
    prefix="table_",
    int32=(lambda a, i: a[i], normal(5), at(dtype=torch.int32)),
    select=(lambda a, i: a.index_select(0, i.flatten()).view(40, 48), normal(5), at()),
)


@case(plus(qkv(), values([3, 5]), values([1, 2])))
def targets_and_context(q, k, v, n, targets):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    last = (n - targets)[:, None, None]
    a, b = torch.minimum(i, last), torch.minimum(j, last)
    m = ((a - b) > 0) | (i == j)
    m = m & (j < n[:, None, None])
    return (F.silu(q @ k.mT) / 7 * m[:, None]) @ v
