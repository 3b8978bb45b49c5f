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
        "transposed": (lambda t, i: t.T[:, i], normal((T, H)), at()),
        "none_and_integer": (
            lambda t, i: t[i, None, 1].squeeze(2).permute(2, 0, 1), normal((T, 3, H)), at(),
        ),
        "three_widths": (
            lambda t, i, j, k: t[i, j, k.long()].permute(2, 0, 1),
            normal((2, 2, 2, H)), at(0, 2, (N, 1)), at(0, 2, (M,)), at(-2, 2, dtype=torch.int32),
        ),
        "aten_index": (
            lambda t, i: torch.ops.aten.index.Tensor(t, [None, i])[1].permute(2, 0, 1),
            normal((3, T, H)), at(),
        ),
        "take_transposed": (
            lambda t, i: torch.take(torch.stack([t, t * 2]).T, i * 2), normal(T), at(),
        ),
        "normed_rows": (lambda t, i: (t / t.norm())[i], normal(T), at()),
        "strided_result": (
            lambda t, i: t[i].as_strided((H, N, M), (1, M * H, H)), normal((T, H)), at(),
        ),
        "root_of_time": (
            lambda t, x: t[apart(x).float().sqrt().long().clamp(max=4)], normal(T), times,
        ),
        "sign_of_time": (
            lambda t, x: t[torch.div(x[:, :, None] - x[:, None, :1], -60, rounding_mode="trunc")
                           .clamp(-2, 2)[:, None] + 2], normal(T), times,
        ),
    },
    of=of_biases,
)  # fmt: skip


CASES, MORE = FOUND, TRIED
