"""Learned tables once more: indices that meet, wrap or are made again, tables that are made."""

import torch
import torch.nn.functional as F

from .rows import Programs, normal, of_scores

T, H, N, M = 5, 2, 40, 48
FOUND, TRIED = Programs(), Programs()
matrices = normal((2, H, N, 4), (2, H, M, 4), (2, H, M, 3))


def at(low=0, high=T, shape=(N, M), dtype=torch.int64):
    return lambda: (torch.randint(low, high, shape).to(dtype),)


def of_biases(f):
    return of_scores(lambda s, *more: F.silu(s + f(*more)))


def times():
    return (torch.randint(0, 60, (2, N)).cumsum(1),)


def apart(x):
    """[2, 1, N, M]"""
    return F.pad((x[:, :, None] - x[:, None, :]).abs(), (0, M - N))[:, None]


BOUNDS = torch.tensor([5, 60, 600, 3600])


FOUND.table(
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
        "buckets": (lambda t, x: t[torch.bucketize(apart(x), BOUNDS)], normal(T), times),
        "buckets_right": (
            lambda t, x: t[torch.bucketize(apart(x).float(), BOUNDS.float(), right=True)],
            normal(T), times,
        ),
        "searched": (lambda t, x: t[torch.searchsorted(BOUNDS, apart(x))], normal(T), times),
        "before_the_last": (
            lambda t, x: t[(apart(x) * 4 // x.max().clamp(min=1)).clamp(max=4)], normal(T), times,
        ),
    },
    of=of_biases,
)  # fmt: skip

TRIED.table(
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


CASES, MORE = FOUND, TRIED
