"""Jagged rows by ATen's operators."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, plus, values
from .given import T

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
OTHERS = values([0, 3, 6, 9])


def jag(offsets=(0, 2, 5, 9), grad=False, d=4):
    return plus(normal(*[(9, d)] * 3, grad=grad), values(offsets))


def pad(x, o, n=5, p=0.0):
    return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], p)


def unpad(x, o, total=9):
    return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], total)


def plain(a, b, c, o):
    return unpad(torch.sigmoid(a @ T(b)) @ c, o)


def padded(f):
    """The program that is `f` of query, key and value as they are padded."""
    return lambda q, k, v, o, *more: f(pad(q, o), pad(k, o), pad(v, o), o, *more)


def weights(f):
    """Its weights are `f` of the scores, and its output is unpadded."""
    return padded(lambda a, b, c, o: unpad(f(a @ T(b), o) @ c, o))


def output(f):
    """It returns `f` of the padded output."""
    return padded(lambda a, b, c, o: f(torch.sigmoid(a @ T(b)) @ c, o))


def split(x):
    return x.view(3, 5, 2, 4).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(3, 5, 8)


def lengths(o):
    return (o[1:] - o[:-1])[:, None, None]


table(
    jag(),
    of=weights,
    jag_plain=lambda s, o: F.silu(s),
    jag_causal=lambda s, o: torch.sigmoid(s) * (torch.arange(5)[:, None] >= torch.arange(5)),
    jag_scale_batch=lambda s, o: torch.sigmoid(s) / lengths(o),
    jag_mask_lengths=lambda s, o: torch.sigmoid(s) * (torch.arange(5) < lengths(o) - 1),
    jag_bias_positions_end=lambda s, o: torch.sigmoid(s + torch.arange(5).flip(0).to(D64)),
    jag_pad_scores=lambda s, o: F.elu(s.masked_fill(torch.arange(5) >= lengths(o), -1e9)) + 1,
)
table(
    jag(),
    of=output,
    jag_bias_after=lambda p, o: unpad(p + 1, o),
    jag_norm_between=lambda p, o: unpad(p - p.mean((0, 1), keepdim=True), o),
    jag_layernorm_between=lambda p, o: unpad(F.layer_norm(p, (4,)), o),
    jag_padded_returned=lambda p, o: (unpad(p, o), p.sum()),
)
table(
    jag(),
    of=padded,
    jag_sigmoid=plain,
    jag_value_plus_one=lambda a, b, c, o: plain(a, b, c + 1, o),
    jag_value_exp=lambda a, b, c, o: plain(a, b, c.exp(), o),
    jag_flip_keys=lambda a, b, c, o: plain(a, b.flip(1), c.flip(1), o),
    jag_roll_queries=lambda a, b, c, o: plain(a.roll(1, 1), b, c, o),
    jag_other_offsets_out=(lambda a, b, c, o, o2: plain(a, b, c, o2), OTHERS),
    jag_total_smaller=lambda a, b, c, o: unpad(F.silu(a @ T(b)) @ c, o.clamp(max=7), 7),
    jag_grad_at_padding=lambda a, b, c, o: (unpad(F.silu(a @ T(b)) @ c, o), a.sum() * c.sum()),
)
table(jag((0, 0, 5, 9)), of=padded, jag_empty_sequence=plain)
table(
    jag(),
    jag_value_padding_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o), pad(v, o, p=1.0), o),
    jag_key_padding_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o, p=1.0), pad(v, o), o),
    jag_short_keys=lambda q, k, v, o: plain(pad(q, o, 5), pad(k, o, 3), pad(v, o, 3), o),
    jag_other_offsets=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o2), pad(v, o2), o), OTHERS),
    jag_other_offsets_v=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o), pad(v, o2), o), OTHERS),
    jag_nested_matmul=lambda *qkv: torch.stack(
        [(F.silu(a @ b.t()) @ c).sum(0) for a, b, c in zip(*(x.split([2, 3, 4]) for x in qkv[:3]))]
    ),
)
table(
    jag(d=8),
    of=padded,
    jag_heads=lambda a, b, c, o: unpad(joined(F.silu(split(a) @ T(split(b))) @ split(c)), o),
    jag_heads_wrong_order=lambda a, b, c, o: unpad(
        (F.silu(a.view(3, 2, 5, 4) @ T(b.view(3, 2, 5, 4))) @ c.view(3, 2, 5, 4)).reshape(3, 5, 8),
        o,
    ),
)


@case(jag())
def jag_offsets_written(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    o[1] = 3
    return plain(a, b, c, o)


@case(jag())
def jag_manual_index(q, k, v, o):
    l = o[1:] - o[:-1]
    i = torch.arange(5)
    ix = (o[:-1, None] + i).clamp(max=8)
    m = i < l[:, None]
    a, b, c = q[ix], k[ix], v[ix]
    return ((F.silu(a @ T(b)) * m[:, None]) @ c) * m[..., None]


@case(jag())
def jag_manual_scatter(q, k, v, o):
    m = (torch.arange(5) < (o[1:] - o[:-1])[:, None])[..., None]
    z = torch.zeros(3, 5, 4, dtype=D64)
    a, b, c = (z.masked_scatter(m, x) for x in (q, k, v))
    return (F.silu(a @ T(b)) @ c).masked_select(m).view(9, 4)


@case(jag())
def jag_packed_segment(q, k, v, o):
    s = torch.searchsorted(o, torch.arange(9), right=True)
    return (torch.sigmoid(q @ k.t()) * (s[:, None] == s))[None] @ v


@case(jag())
def jag_nested(q, k, v, o):
    nested = torch.nested.nested_tensor_from_jagged
    a, b, c = (nested(x, o, max_seqlen=5, min_seqlen=2).to_padded_tensor(0.0) for x in (q, k, v))
    return F.silu(a @ T(b)) @ c


@case(plus(normal((9, 24), grad=False), values([0, 2, 5, 9])))
def jag_qkv_together(x, o):
    a, b, c = (split(y) for y in pad(x, o).chunk(3, -1))
    return unpad(joined(F.silu(a @ T(b)) @ c), o)


@case(jag(), of=padded)
def jag_two_layers(a, b, c, o):
    p = pad(unpad(F.silu(a @ T(b)) @ c, o), o)
    return unpad(torch.tanh(p @ T(p)) @ p, o)
