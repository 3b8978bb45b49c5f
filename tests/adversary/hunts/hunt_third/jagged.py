"""Jagged rows: padded, attended over, and unpadded."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, plus, values

PROGRAMS = Programs()
table = PROGRAMS.table
ROWS = normal(*[(9, 2, 4)] * 3)


def offsets_of(*lengths, dtype=torch.int64):
    return values([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=dtype)


OFFSETS, OTHERS = offsets_of(3, 0, 4, 2), offsets_of(1, 4, 2, 2)
LENGTHS = values([3, 0, 4, 2])


def pad(x, offsets, n):
    return torch.ops.gdpa.jagged_to_padded_dense(x, offsets, n)


def unpad(x, offsets, total):
    return torch.ops.gdpa.dense_to_jagged(x, offsets, total)


def attend(q, k, v, o, act=F.silu, n=5, o2=None, o3=None, total=None):
    a, b, c = (
        pad(x, p, n).transpose(1, 2)
        for x, p in zip((q, k, v), (o, o2 if o2 is not None else o, o2 if o2 is not None else o))
    )
    s = act(a @ b.mT) @ c
    return unpad(
        s.transpose(1, 2), o3 if o3 is not None else o, q.shape[0] if total is None else total
    )


def lengths_changed(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    l.copy_(torch.tensor([1, 4, 2, 2]))
    return attend(q, k, v, o, o2=F.pad(l.cumsum(0), (1, 0)))


def masked_by_lengths(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < l[:, None]
    s = F.silu(a @ b.mT) * m[:, None, None] * m[:, None, :, None]
    return unpad((s @ c).transpose(1, 2), o, q.shape[0])


def masked_by_wrong_lengths(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < (l - 1)[:, None]
    s = F.silu(a @ b.mT) * m[:, None, None] * m.flip(0)[:, None, :, None]
    return unpad((s @ c).transpose(1, 2), o, q.shape[0])


def masked_by_offsets(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < (o[1:] - o[:-1])[:, None]
    s = torch.where(m[:, None, None], F.silu(a @ b.mT), 7.0)
    return unpad((s @ c).transpose(1, 2), o, q.shape[0])


def masked_by_offsets_swapped(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < (o[:-1] - o[1:]).neg()[:, None]
    s = torch.where(m[:, None, None], 7.0, F.silu(a @ b.mT))
    return unpad((s @ c).transpose(1, 2), o, q.shape[0])


def masked_by_diff(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < o.diff().to(torch.int8)[:, None]
    s = F.silu(a @ b.mT) * m[:, None, None] + 1
    return unpad((s @ c).transpose(1, 2), o, q.shape[0])


def causal(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return unpad((F.silu(a @ b.mT).tril() @ c).transpose(1, 2), o, q.shape[0])


def bias_dense(q, k, v, o, w):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return unpad((F.silu(a @ b.mT + w) @ c).transpose(1, 2), o, q.shape[0])


def bias_jagged(q, k, v, o, w):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    p = pad(w, o, 5)
    return unpad(
        (F.silu(a @ b.mT + p[:, None, :, None] + p[:, None, None]) @ c).transpose(1, 2),
        o,
        q.shape[0],
    )


def bias_jagged_functions(q, k, v, o, w):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    p = pad(w, o, 5).cos()
    r = pad(w.sin(), o, 5)
    return unpad(
        (F.silu(a @ b.mT / (r[:, None, :, None] + 2) + p[:, None, None]) @ c).transpose(1, 2),
        o,
        q.shape[0],
    )


def bias_divides(q, k, v, o, w):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    p = pad(w, o, 5)
    return unpad((F.silu(a @ b.mT / p[:, None, :, None]) @ c).transpose(1, 2), o, q.shape[0])


def bias_other_offsets(q, k, v, o, w, p):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    w = pad(w, p, 5)
    return unpad((F.silu(a @ b.mT + w[:, None, None]) @ c).transpose(1, 2), o, q.shape[0])


def bias_longer(q, k, v, o, w):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    w = pad(w, o, 5)
    return unpad((F.silu(a @ b.mT + w[:, None, None]) @ c).transpose(1, 2), o, q.shape[0])


def output_used_padded(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT) @ c
    return unpad(s.transpose(1, 2), o, q.shape[0]), s.sum()


def output_padded_only(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return torch.sigmoid(a @ b.mT + 1) @ c


def value_plus_one(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return unpad((torch.sigmoid(a @ b.mT) @ (c + 1)).transpose(1, 2), o, q.shape[0])


def value_doubled(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return unpad((torch.sigmoid(a @ b.mT) @ (c * 2)).transpose(1, 2), o, q.shape[0])


def padded_written(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    c = c.clone()
    c[:, :, 4] = 3.0
    return unpad((torch.sigmoid(a @ b.mT) @ c).transpose(1, 2), o, q.shape[0])


def values_written(q, k, v, o):
    v = v * 1
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT)
    v.mul_(3)
    return unpad((s @ c).transpose(1, 2), o, q.shape[0]) + v.sum()


def offsets_written(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT) @ c
    p = o.clone()
    p[1] = 2
    return unpad(s.transpose(1, 2), p, q.shape[0])


def seeds(q, k, v, o, seeds):
    b, c = (pad(x, o, 5).transpose(1, 2) for x in (k, v))
    return torch.sigmoid(seeds @ b.mT) @ c


def dense_keys(q, k, v, o, keys):
    a = pad(q, o, 5).transpose(1, 2)
    return unpad((torch.sigmoid(a @ keys.mT) @ keys).transpose(1, 2), o, q.shape[0])


def keys_are_the_batch(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))  # [B, H, N, D]
    a, b, c = (x.permute(2, 1, 0, 3) for x in (a, b, c))  # attends over samples
    return unpad((torch.sigmoid(a @ b.mT) @ c).permute(2, 0, 1, 3), o, q.shape[0])


def heads_are_rows(q, k, v, o):
    a, b, c = (pad(x, o, 5) for x in (q, k, v))  # [B, N, H, D]: attends over heads
    return unpad(torch.sigmoid(a @ b.mT) @ c, o, q.shape[0])


def two_layers(q, k, v, o):
    x = attend(q, k, v, o)
    return attend(x, x, v, o) + attend(x, k, x, o)


def under_no_grad(q, k, v, o):
    with torch.no_grad():
        a = pad(q, o, 5).transpose(1, 2)
    b, c = (pad(x, o, 5).transpose(1, 2) for x in (k, v))
    return unpad((torch.sigmoid(a @ b.mT) @ c).transpose(1, 2), o, q.shape[0])


def detached_pad(q, k, v, o):
    a, b, c = (pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return unpad((torch.sigmoid(a.detach() @ b.mT) @ c).transpose(1, 2), o, q.shape[0])


table(
    plus(ROWS, OFFSETS),
    prefix="jagged_",
    plain=attend,
    cut=lambda q, k, v, o: attend(q, k, v, o, n=3),
    cut_to_one=lambda q, k, v, o: attend(q, k, v, o, n=1),
    long=lambda q, k, v, o: attend(q, k, v, o, n=12),
    sigmoid=lambda q, k, v, o: attend(q, k, v, o, act=torch.sigmoid),
    exp=lambda q, k, v, o: attend(q, k, v, o, act=torch.exp),
    reciprocal=lambda q, k, v, o: attend(q, k, v, o, act=lambda s: 1 / (s * s + 1)),
    log=lambda q, k, v, o: attend(q, k, v, o, act=lambda s: torch.log(s.abs() + 1)),
    abs_sqrt=lambda q, k, v, o: attend(q, k, v, o, act=lambda s: (s.abs() + 1e-6).sqrt()),
    two_offsets_alike=(lambda q, k, v, o, p: attend(q, k, v, o, o2=p), OFFSETS),
    two_offsets_differ=(lambda q, k, v, o, p: attend(q, k, v, o, o2=p), OTHERS),
    unpadded_by_others=(lambda q, k, v, o, p: attend(q, k, v, o, o3=p), OTHERS),
    unpadded_longer=lambda q, k, v, o: attend(q, k, v, o, total=12),
    unpadded_shorter=lambda q, k, v, o: attend(q, k, v, o, total=7),
    offsets_cloned=lambda q, k, v, o: attend(q, k, v, o.clone(), o2=o.int(), o3=o + 0),
    masked_by_offsets_else_seven=masked_by_offsets,
    masked_where_it_is=masked_by_offsets_swapped,
    masked_by_diff=masked_by_diff,
    causal=causal,
    bias_dense=(bias_dense, normal((5, 5))),
    bias_dense_batch=(bias_dense, normal((4, 1, 5, 5))),
    bias_infinite=(
        lambda q, k, v, o, w: bias_dense(q, k, v, o, w + w.detach().sign() * 0),
        normal((5, 5)),
    ),
    bias_of_tokens=(bias_jagged, normal(9)),
    bias_of_tokens_through_functions=(bias_jagged_functions, normal(9)),
    tokens_divide_rows=(bias_divides, normal(9)),
    bias_by_other_offsets=(bias_other_offsets, normal(9), OTHERS),
    bias_of_more_values=(bias_longer, normal(12)),
    output_used_padded=output_used_padded,
    output_padded_only=output_padded_only,
    value_plus_one_after_padding=value_plus_one,
    value_doubled_after_padding=value_doubled,
    padded_value_written=padded_written,
    values_written_between=values_written,
    offsets_copied_and_written=offsets_written,
    seeds=(seeds, normal((2, 3, 4))),
    dense_keys=(dense_keys, normal((4, 2, 6, 4))),
    dense_keys_shared=(dense_keys, normal((1, 2, 6, 4))),
    attends_over_samples=keys_are_the_batch,
    attends_over_heads=heads_are_rows,
    two_layers=two_layers,
    query_padded_without_gradient=under_no_grad,
    query_detached_after_padding=detached_pad,
)


table(
    ROWS,
    prefix="jagged_",
    offsets_begin_late=(lambda q, k, v, o: attend(q, k, v, o + 1), offsets_of(3, 0, 2, 2)),
    rows_behind_the_last=(attend, offsets_of(2, 0, 2, 2)),
    offsets_fall=(attend, values([0, 5, 3, 9])),
    offsets_overlap=(attend, values([0, 6, 4, 9])),
    offsets_int32=(attend, offsets_of(3, 0, 4, 2, dtype=torch.int32)),
    all_empty=(attend, offsets_of(0, 0, 0)),
    offsets_of_lengths=(
        lambda q, k, v, l: attend(
            q,
            k,
            v,
            F.pad(l.cumsum(0), (1, 0)),
            o2=torch.cat([torch.zeros(1, dtype=l.dtype), l.cumsum(0)]),
        ),
        LENGTHS,
    ),
    offsets_of_lengths_padded_with_one=(
        lambda q, k, v, l: attend(q, k, v, F.pad(l.cumsum(0), (1, 0), value=1)),
        LENGTHS,
    ),
    offsets_of_two_lengths=(
        lambda q, k, v, l, m: attend(
            q, k, v, F.pad(l.cumsum(0), (1, 0)), o2=F.pad(m.cumsum(0), (1, 0))
        ),
        LENGTHS,
        values([1, 4, 2, 2]),
    ),
    offsets_after_zero_written=(
        lambda q, k, v, l: attend(
            q,
            k,
            v,
            torch.cat([torch.zeros(1, dtype=l.dtype).add_(1), l.cumsum(0)]),
            o2=F.pad(l.cumsum(0), (1, 0)),
        ),
        LENGTHS,
    ),
    lengths_changed=(lengths_changed, LENGTHS),
    masked_by_lengths=(masked_by_lengths, LENGTHS),
    masked_by_other_lengths=(masked_by_wrong_lengths, LENGTHS),
)
