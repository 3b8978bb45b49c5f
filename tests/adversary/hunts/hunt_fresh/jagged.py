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


def unpad(x, o, total):
    return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], total)


def plain(a, b, c, o):
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


def padded(f):
    """The program that is `f` of query, key and value as they are padded."""
    return lambda q, k, v, o, *more: f(pad(q, o), pad(k, o), pad(v, o), o, *more)


@case(jag())
def jag_padded_returned(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    return unpad(p, o, 9), p.sum()


@case(jag())
def jag_norm_between(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    p = torch.sigmoid(a @ T(b)) @ c
    p = p - p.mean((0, 1), keepdim=True)
    return unpad(p, o, 9)


table(
    jag((0, 0, 5, 9)),
    of=padded,
    jag_empty_sequence=plain,
)


@case(jag())
def jag_offsets_written(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    o[1] = 3
    return unpad(torch.sigmoid(a @ T(b)) @ c, o, 9)


@case(jag())
def jag_causal(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    i = torch.arange(5)
    return unpad((torch.sigmoid(a @ T(b)) * (i[:, None] >= i)) @ c, o, 9)


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
    l = o[1:] - o[:-1]
    i = torch.arange(5)
    m = i < l[:, None]
    z = torch.zeros(3, 5, 4, dtype=D64)
    a, b, c = (z.masked_scatter(m[..., None], x) for x in (q, k, v))
    return (F.silu(a @ T(b)) @ c).masked_select(m[..., None]).view(9, 4)


@case(jag())
def jag_packed_segment(q, k, v, o):
    s = torch.searchsorted(o, torch.arange(9), right=True)
    return (torch.sigmoid(q @ k.t()) * (s[:, None] == s))[None] @ v


@case(jag())
def jag_nested(q, k, v, o):
    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x, o, max_seqlen=5, min_seqlen=2) for x in (q, k, v)
    )
    a, b, c = (x.to_padded_tensor(0.0) for x in (a, b, c))
    return F.silu(a @ T(b)) @ c


table(
    jag(),
    jag_value_padding_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o), pad(v, o, p=1.0), o),
    jag_key_padding_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o, p=1.0), pad(v, o), o),
    jag_short_keys=lambda q, k, v, o: plain(pad(q, o, 5), pad(k, o, 3), pad(v, o, 3), o),
    jag_value_plus_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o), pad(v, o) + 1, o),
    jag_value_exp=lambda q, k, v, o: plain(pad(q, o), pad(k, o), pad(v, o).exp(), o),
    jag_other_offsets=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o2), pad(v, o2), o), OTHERS),
    jag_other_offsets_v=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o), pad(v, o2), o), OTHERS),
    jag_flip_keys=lambda q, k, v, o: plain(pad(q, o), pad(k, o).flip(1), pad(v, o).flip(1), o),
    jag_roll_queries=lambda q, k, v, o: plain(pad(q, o).roll(1, 1), pad(k, o), pad(v, o), o),
    jag_nested_matmul=lambda q, k, v, o: torch.stack(
        [
            (F.silu(a @ b.t()) @ c).sum(0)
            for a, b, c in zip(q.split([2, 3, 4]), k.split([2, 3, 4]), v.split([2, 3, 4]))
        ]
    ),
)


@case(jag())
def jag_pad_scores(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    s = a @ T(b)
    l = o[1:] - o[:-1]
    i = torch.arange(5)
    s = s.masked_fill((i >= l[:, None])[:, None], -1e9)
    return unpad((F.elu(s) + 1) @ c, o, 9)


@case(jag(d=8))
def jag_heads(q, k, v, o):
    a, b, c = (pad(x, o).view(3, 5, 2, 4).transpose(1, 2) for x in (q, k, v))
    return unpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o, 9)


@case(jag(d=8))
def jag_heads_wrong_order(q, k, v, o):
    a, b, c = (pad(x, o).view(3, 2, 5, 4) for x in (q, k, v))
    return unpad((F.silu(a @ T(b)) @ c).reshape(3, 5, 8), o, 9)


@case(plus(normal((9, 24), grad=False), values([0, 2, 5, 9])))
def jag_qkv_together(x, o):
    a, b, c = (y.view(3, 5, 2, 4).transpose(1, 2) for y in pad(x, o).chunk(3, -1))
    return unpad((F.silu(a @ T(b)) @ c).transpose(1, 2).reshape(3, 5, 8), o, 9)


@case(jag())
def jag_two_layers(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    x = unpad(F.silu(a @ T(b)) @ c, o, 9)
    p = pad(x, o)
    return unpad(torch.tanh(p @ T(p)) @ p, o, 9)


table(
    jag(),
    of=padded,
    jag_plain=lambda a, b, c, o: unpad(F.silu(a @ T(b)) @ c, o, 9),
    jag_sigmoid=plain,
    jag_bias_after=lambda a, b, c, o: unpad(torch.sigmoid(a @ T(b)) @ c + 1, o, 9),
    jag_other_offsets_out=(
        lambda a, b, c, o, o2: unpad(torch.sigmoid(a @ T(b)) @ c, o2, 9),
        OTHERS,
    ),
    jag_scale_batch=lambda a, b, c, o: unpad(
        torch.sigmoid(a @ T(b)) / (o[1:] - o[:-1])[:, None, None] @ c, o, 9
    ),
    jag_total_smaller=lambda a, b, c, o: unpad(F.silu(a @ T(b)) @ c, o.clamp(max=7), 7),
    jag_layernorm_between=lambda a, b, c, o: unpad(
        F.layer_norm(torch.sigmoid(a @ T(b)) @ c, (4,)), o, 9
    ),
    jag_mask_lengths=lambda a, b, c, o: unpad(
        (torch.sigmoid(a @ T(b)) * (torch.arange(5) < (o[1:] - o[:-1])[:, None, None] - 1)) @ c,
        o,
        9,
    ),
    jag_bias_positions_end=lambda a, b, c, o: unpad(
        torch.sigmoid(a @ T(b) + torch.arange(5).flip(0).to(D64)) @ c, o, 9
    ),
    jag_grad_at_padding=lambda a, b, c, o: (unpad(F.silu(a @ T(b)) @ c, o, 9), a.sum() * c.sum()),
)
