"""Learned tables: padding, sparse gradients, writes, indices that are made again."""

import torch
import torch.nn.functional as F
from torch import nn

from .rows import Programs, normal, nothing, of_scores, plus

CASES, MORE = Programs(), Programs()


F32 = torch.float32


def operands(*shape, dtype=F32):
    """Query, key and value, and a table of this shape."""
    return normal(*[(2, 3, 32, 8)] * 3, shape, dtype=dtype)


def places(low=0, dtype=torch.int64):
    return lambda: (torch.randint(low, low + 4, (32, 32), dtype=dtype),)


def of_biases(f):
    """A bias that is `f` of the table and of what follows it."""
    return of_scores(lambda s, *more: F.silu(s + f(*more)))


def of_rows(f):
    """The rows that `f` looks up have a number for each head."""
    return of_biases(lambda *more: f(*more).permute(2, 0, 1))


tab = plus(operands(4, 3), places())
tab16 = plus(operands(4, 3, dtype=torch.bfloat16), places())
CASES.table(
    operands(4, 3),
    of=of_rows,
    table_indexed_by_bytes=(lambda t, i: t[i.long()], places(dtype=torch.uint8)),
)
CASES.table(
    tab,
    of=of_rows,
    table_embedding_padding=lambda t, i: F.embedding(i, t, padding_idx=1),
    table_embedding_last_padding=lambda t, i: F.embedding(i, t, padding_idx=-1),
    table_embedding_freq=lambda t, i: F.embedding(i, t, scale_grad_by_freq=True),
    table_embedding_max_norm=lambda t, i: F.embedding(i, t.detach().clone(), max_norm=0.5),
    table_sparse=lambda t, i: F.embedding(i, t, sparse=True),
    table_gather_sparse_leaf=lambda t, i: torch.gather(
        t, 0, i.view(-1, 1).expand(-1, 3), sparse_grad=True
    ).view(32, 32, 3),
    table_double_use=lambda t, i: t[i] * t[i.T] + t.sum(),
)
CASES.table(
    tab,
    table_indexed_by_bool=of_biases(
        lambda t, i: t[torch.tensor([True, False, False, False])].view(3, 1, 1)
    ),
    table_hard=of_scores(lambda s, t, i: F.silu(s) * (t[i].permute(2, 0, 1) > 0)),
)
CASES.table(
    nothing,
    of=of_biases,
    table_gather=(lambda t, i: torch.gather(t, 1, i), operands(32, 4), places()),
    table_take=(torch.take, operands(4), places()),
)


class Emb(nn.Module):
    def __init__(s, **k):
        super().__init__()
        s.e = nn.Embedding(4, 3, **k)
        s.register_buffer("i", torch.randint(0, 4, (32, 32)))

    def forward(s, q, k, v):
        return F.silu(q @ k.mT + s.e(s.i).permute(2, 0, 1)) @ v


CASES += [
    (Emb(**options), normal(*[(2, 3, 32, 8)] * 3, dtype=F32))
    for options in ({}, {"padding_idx": 2}, {"sparse": True})
]


# Writes into what was looked up


@CASES.case(tab)
def table_in_place_on_lookup(q, k, v, t, i):
    b = t[i]
    b.mul_(2)
    b[0, 0] = 0
    return F.silu(q @ k.mT + b.permute(2, 0, 1)) @ v, b


@CASES.case(tab16)
def table_lookup_resized(q, k, v, t, i):
    b = t[i]
    b.transpose_(0, 1)
    return F.silu(q @ k.mT + b.permute(2, 0, 1)) @ v, b


# Indices that the backward makes again


stamps = plus(operands(5), lambda: (torch.randint(0, 40, (2, 32)).cumsum(1),))


def apart(at):
    return (at[:, :, None] - at[:, None, :]).abs()


def by_time(index):
    """The bias of each pair is at the place `index` of the table, a function of the times."""
    return of_biases(lambda t, at: t[index(at)].unsqueeze(1))


def minutes(at):
    return (apart(at) // 60).clamp(max=4)


def logarithms(at):
    return (apart(at) + 1).double().log().mul(0.7).add(0.1).long().clamp(max=4)


def before_a_write_to_a_view(at):
    late = at[:, 1:]
    index = minutes(at)
    late.mul_(3)
    return index


def under_another_switch(at):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (apart(at).float().sqrt() / 3).long().clamp(max=4)


CASES.table(
    stamps,
    of=by_time,
    table_by_time=minutes,
    table_by_log_time=logarithms,
    table_by_time_of_a_view=before_a_write_to_a_view,
    table_by_random_places=lambda at: torch.randint(0, 5, (2, 32, 32)),
    table_under_another_switch=under_another_switch,
)


def step_on_the_table(q, k, v, t, at):
    with torch.no_grad():
        t.mul_(-2.0)


for name, index in {"time": minutes, "log_time": logarithms}.items():
    CASES.add(f"table_by_{name}", by_time(index), stamps, lambda q, k, v, t, at: at.zero_())
CASES.add("table_by_time", by_time(minutes), stamps, step_on_the_table)


# Indices that meet, wrap or are made again; tables that are made

T, H, N, M = 5, 2, 40, 48
matrices = normal((2, H, N, 4), (2, H, M, 4), (2, H, M, 3))


def at(low=0, high=T, shape=(N, M), dtype=torch.int64):
    return lambda: (torch.randint(low, high, shape).to(dtype),)


def times():
    return (torch.randint(0, 60, (2, N)).cumsum(1),)


def times_apart(x):
    """[2, 1, N, M]"""
    return F.pad((x[:, :, None] - x[:, None, :]).abs(), (0, M - N))[:, None]


BOUNDS = torch.tensor([5, 60, 600, 3600])


CASES.table(
    matrices,
    {
        "one_index_twice": (lambda t, i: t[i, i], normal((T, T)), at()),
        "one_index_around": (lambda t, i: t[i, :, i].sum(-1), normal((T, 3, T)), at()),
        "one_index_of_three": (
            lambda t, i, j: t[i, j, i],
            normal((2, 2, 2)), at(0, 2, (N, 1)), at(0, 2, (1, M)),
        ),
        "along_a_dim_past_its_end": (
            lambda t, i: torch.take_along_dim(t, i, 1), normal((N, T)), at(-3 * T, 3 * T),
        ),
        "along_a_dim_of_one_row": (
            lambda t, i: torch.take_along_dim(t, i, -1), normal((1, T)), at(),
        ),
        "buckets": (lambda t, x: t[torch.bucketize(times_apart(x), BOUNDS)], normal(T), times),
        "buckets_right": (
            lambda t, x: t[torch.bucketize(times_apart(x).float(), BOUNDS.float(), right=True)],
            normal(T), times,
        ),
        "searched": (lambda t, x: t[torch.searchsorted(BOUNDS, times_apart(x))], normal(T), times),
        "before_the_last": (
            lambda t, x: t[(times_apart(x) * 4 // x.max().clamp(min=1)).clamp(max=4)],
            normal(T), times,
        ),
    },
    of=of_biases,
)  # fmt: skip

MORE.table(
    matrices,
    {
        "none_and_integer": (
            lambda t, i: t[i, None, 1].squeeze(2).permute(2, 0, 1), normal((T, 3, H)), at(),
        ),
        "aten_index": (
            lambda t, i: torch.ops.aten.index.Tensor(t, [None, i])[1].permute(2, 0, 1),
            normal((3, T, H)), at(),
        ),
    },
    of=of_biases,
)  # fmt: skip
