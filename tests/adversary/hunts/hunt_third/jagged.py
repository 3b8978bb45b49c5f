"""Jagged rows: padded, attended over, and unpadded."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, plus, values

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

ROWS = normal(*[(9, 2, 4)] * 3)


def offsets_of(*lengths, dtype=torch.int64):
    return values([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=dtype)


OFFSETS, OTHERS = offsets_of(3, 0, 4, 2), offsets_of(1, 4, 2, 2)
LENGTHS = values([3, 0, 4, 2])


def pad(x, offsets, n):
    return torch.ops.gdpa.jagged_to_padded_dense(x, offsets, n)


def unpad(x, offsets, total):
    return torch.ops.gdpa.dense_to_jagged(x, offsets, total)


def heads_first(x, offsets, n=5):
    """[B, H, n, D]"""
    return pad(x, offsets, n).transpose(1, 2)


def padded(f):
    """The program that is `f` of query, key and value as they are padded, and is unpadded."""

    def program(q, k, v, o, *more):
        a, b, c = (heads_first(x, o) for x in (q, k, v))
        return unpad(f(a, b, c, o, *more).transpose(1, 2), o, q.shape[0])

    return program


def weights(f):
    """The weights are `f` of the scores."""
    return padded(lambda a, b, c, o, *more: f(a @ b.mT, o, *more) @ c)


def attend(q, k, v, o, act=F.silu, n=5, kv=None, out=None, total=None):
    """kv, out: other offsets of keys and values, and of the output."""
    kv = o if kv is None else kv
    s = act(heads_first(q, o, n) @ heads_first(k, kv, n).mT) @ heads_first(v, kv, n)
    return unpad(s.transpose(1, 2), o if out is None else out, total or q.shape[0])


def ends(lengths, **fill):
    return F.pad(lengths.cumsum(0), (1, 0), **fill)


def within(lengths):
    return torch.arange(5) < lengths[:, None]


def columns(mask):
    return mask[:, None, None]


def rows(mask):
    return mask[:, None, :, None]


def bias_of_keys(s, o, w, p=None):
    return F.silu(s + columns(pad(w, o if p is None else p, 5)))


table(
    plus(ROWS, OFFSETS),
    prefix="jagged_",
    cut_to_one=lambda q, k, v, o: attend(q, k, v, o, n=1),
    unpadded_shorter=lambda q, k, v, o: attend(q, k, v, o, total=7),
)
table(
    plus(ROWS, OFFSETS),
    of=weights,
    prefix="jagged_",
    exp=lambda s, o: torch.exp(s),
    log=lambda s, o: torch.log(s.abs() + 1),
    abs_sqrt=lambda s, o: (s.abs() + 1e-6).sqrt(),
    masked_by_diff=lambda s, o: F.silu(s) * columns(within(o.diff().to(torch.int8))) + 1,
    bias_by_other_offsets=(bias_of_keys, normal(9), OTHERS),
    bias_of_more_values=(bias_of_keys, normal(12)),
    bias_of_tokens=(
        lambda s, o, w: F.silu(s + rows(pad(w, o, 5)) + columns(pad(w, o, 5))),
        normal(9),
    ),
    bias_of_tokens_through_functions=(
        lambda s, o, w: F.silu(s / (rows(pad(w.sin(), o, 5)) + 2) + columns(pad(w, o, 5).cos())),
        normal(9),
    ),
    tokens_divide_rows=(lambda s, o, w: F.silu(s / rows(pad(w, o, 5))), normal(9)),
)
table(
    plus(ROWS, OFFSETS),
    of=padded,
    prefix="jagged_",
    attends_over_samples=lambda a, b, c, o: (
        torch.sigmoid(a.permute(2, 1, 0, 3) @ b.permute(2, 1, 3, 0)) @ c.permute(2, 1, 0, 3)
    ).permute(2, 1, 0, 3),
)


@case(plus(ROWS, OFFSETS), of=padded)
def jagged_padded_value_written(a, b, c, o):
    c = c.clone()
    c[:, :, 4] = 3.0
    return torch.sigmoid(a @ b.mT) @ c


@case(plus(ROWS, OFFSETS))
def jagged_query_padded_without_gradient(q, k, v, o):
    with torch.no_grad():
        a = heads_first(q, o)
    s = torch.sigmoid(a @ heads_first(k, o).mT) @ heads_first(v, o)
    return unpad(s.transpose(1, 2), o, q.shape[0])


table(
    plus(ROWS, LENGTHS),
    prefix="jagged_",
    masked_by_other_lengths=lambda q, k, v, l: weights(
        lambda s, o: F.silu(s) * columns(within(l - 1)) * rows(within(l - 1).flip(0))
    )(q, k, v, ends(l)),
)
