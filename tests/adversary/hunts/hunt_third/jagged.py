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


def bias(s, o, w):
    return F.silu(s + w)


def bias_of_keys(s, o, w, p=None):
    return F.silu(s + columns(pad(w, o if p is None else p, 5)))


table(
    plus(ROWS, OFFSETS),
    prefix="jagged_",
    plain=attend,
    cut=lambda q, k, v, o: attend(q, k, v, o, n=3),
    cut_to_one=lambda q, k, v, o: attend(q, k, v, o, n=1),
    long=lambda q, k, v, o: attend(q, k, v, o, n=12),
    two_offsets_alike=(lambda q, k, v, o, p: attend(q, k, v, o, kv=p), OFFSETS),
    two_offsets_differ=(lambda q, k, v, o, p: attend(q, k, v, o, kv=p), OTHERS),
    unpadded_by_others=(lambda q, k, v, o, p: attend(q, k, v, o, out=p), OTHERS),
    unpadded_longer=lambda q, k, v, o: attend(q, k, v, o, total=12),
    unpadded_shorter=lambda q, k, v, o: attend(q, k, v, o, total=7),
    offsets_cloned=lambda q, k, v, o: attend(q, k, v, o.clone(), kv=o.int(), out=o + 0),
    two_layers=lambda q, k, v, o: attend(attend(q, k, v, o), attend(k, q, v, o), v, o),
)
table(
    plus(ROWS, OFFSETS),
    of=weights,
    prefix="jagged_",
    sigmoid=lambda s, o: torch.sigmoid(s),
    exp=lambda s, o: torch.exp(s),
    reciprocal=lambda s, o: 1 / (s * s + 1),
    log=lambda s, o: torch.log(s.abs() + 1),
    abs_sqrt=lambda s, o: (s.abs() + 1e-6).sqrt(),
    masked_by_offsets_else_seven=lambda s, o: torch.where(
        columns(within(o[1:] - o[:-1])), F.silu(s), 7.0
    ),
    masked_where_it_is=lambda s, o: torch.where(
        columns(within((o[:-1] - o[1:]).neg())), 7.0, F.silu(s)
    ),
    masked_by_diff=lambda s, o: F.silu(s) * columns(within(o.diff().to(torch.int8))) + 1,
    causal=lambda s, o: F.silu(s).tril(),
    bias_dense=(bias, normal((5, 5))),
    bias_dense_batch=(bias, normal((4, 1, 5, 5))),
    bias_infinite=(lambda s, o, w: F.silu(s + (w + w.detach().sign() * 0)), normal((5, 5))),
    bias_of_keys=(bias_of_keys, normal(9)),
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
    value_plus_one_after_padding=lambda a, b, c, o: torch.sigmoid(a @ b.mT) @ (c + 1),
    value_doubled_after_padding=lambda a, b, c, o: torch.sigmoid(a @ b.mT) @ (c * 2),
    query_detached_after_padding=lambda a, b, c, o: torch.sigmoid(a.detach() @ b.mT) @ c,
    dense_keys=(
        lambda a, b, c, o, keys: torch.sigmoid(a @ keys.mT) @ keys,
        normal((4, 2, 6, 4)),
    ),
    dense_keys_shared=(
        lambda a, b, c, o, keys: torch.sigmoid(a @ keys.mT) @ keys,
        normal((1, 2, 6, 4)),
    ),
    attends_over_samples=lambda a, b, c, o: (
        torch.sigmoid(a.permute(2, 1, 0, 3) @ b.permute(2, 1, 3, 0)) @ c.permute(2, 1, 0, 3)
    ).permute(2, 1, 0, 3),
    attends_over_heads=lambda a, b, c, o: (
        torch.sigmoid(a.transpose(1, 2) @ b.permute(0, 2, 3, 1)) @ c.transpose(1, 2)
    ).transpose(1, 2),
)


@case(plus(ROWS, OFFSETS))
def jagged_output_used_padded(q, k, v, o):
    a, b, c = (heads_first(x, o) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT) @ c
    return unpad(s.transpose(1, 2), o, q.shape[0]), s.sum()


@case(plus(ROWS, OFFSETS, normal((2, 3, 4))))
def jagged_seeds(q, k, v, o, seeds):
    a, b, c = (heads_first(x, o) for x in (q, k, v))
    return torch.sigmoid(seeds @ b.mT) @ c, torch.sigmoid(a @ b.mT + 1) @ c


@case(plus(ROWS, OFFSETS), of=padded)
def jagged_padded_value_written(a, b, c, o):
    c = c.clone()
    c[:, :, 4] = 3.0
    return torch.sigmoid(a @ b.mT) @ c


@case(plus(ROWS, OFFSETS))
def jagged_values_written_between(q, k, v, o):
    v = v * 1
    a, b, c = (heads_first(x, o) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT)
    v.mul_(3)
    return unpad((s @ c).transpose(1, 2), o, q.shape[0]) + v.sum()


@case(plus(ROWS, OFFSETS))
def jagged_offsets_copied_and_written(q, k, v, o):
    p = o.clone()
    p[1] = 2
    return attend(q, k, v, o, torch.sigmoid, out=p)


@case(plus(ROWS, OFFSETS))
def jagged_query_padded_without_gradient(q, k, v, o):
    with torch.no_grad():
        a = heads_first(q, o)
    s = torch.sigmoid(a @ heads_first(k, o).mT) @ heads_first(v, o)
    return unpad(s.transpose(1, 2), o, q.shape[0])


table(
    ROWS,
    prefix="jagged_",
    offsets_begin_late=(lambda q, k, v, o: attend(q, k, v, o + 1), offsets_of(3, 0, 2, 2)),
    rows_behind_the_last=(attend, offsets_of(2, 0, 2, 2)),
    offsets_fall=(attend, values([0, 5, 3, 9])),
    offsets_overlap=(attend, values([0, 6, 4, 9])),
    offsets_int32=(attend, offsets_of(3, 0, 4, 2, dtype=torch.int32)),
    all_empty=(attend, offsets_of(0, 0, 0)),
)
table(
    plus(ROWS, LENGTHS),
    prefix="jagged_",
    offsets_of_lengths=lambda q, k, v, l: attend(
        q, k, v, ends(l), kv=torch.cat([torch.zeros(1, dtype=l.dtype), l.cumsum(0)])
    ),
    offsets_of_lengths_padded_with_one=lambda q, k, v, l: attend(q, k, v, ends(l, value=1)),
    offsets_of_two_lengths=(
        lambda q, k, v, l, m: attend(q, k, v, ends(l), kv=ends(m)),
        values([1, 4, 2, 2]),
    ),
    offsets_after_zero_written=lambda q, k, v, l: attend(
        q, k, v, torch.cat([torch.zeros(1, dtype=l.dtype).add_(1), l.cumsum(0)]), kv=ends(l)
    ),
    masked_by_lengths=lambda q, k, v, l: weights(
        lambda s, o: F.silu(s) * columns(within(l)) * rows(within(l))
    )(q, k, v, ends(l)),
    masked_by_other_lengths=lambda q, k, v, l: weights(
        lambda s, o: F.silu(s) * columns(within(l - 1)) * rows(within(l - 1).flip(0))
    )(q, k, v, ends(l)),
)


@case(plus(ROWS, LENGTHS))
def jagged_lengths_changed(q, k, v, l):
    o = ends(l)
    l.copy_(torch.tensor([1, 4, 2, 2]))
    return attend(q, k, v, o, kv=ends(l))
