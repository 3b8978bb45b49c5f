"""Jagged rows by ATen's operators, nested tensors, and functions that pad."""

import torch
import torch.nn.functional as F

from ..paddings import pad_function, unpad_function
from ..rows import D64, Programs, normal, nothing, plus, values
from .operands import T

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


def lengths(o):
    return (o[1:] - o[:-1])[:, None, None]


table(
    jag(),
    of=weights,
    jag_causal=lambda s, o: torch.sigmoid(s) * (torch.arange(5)[:, None] >= torch.arange(5)),
    jag_scale_batch=lambda s, o: torch.sigmoid(s) / lengths(o),
    jag_mask_lengths=lambda s, o: torch.sigmoid(s) * (torch.arange(5) < lengths(o) - 1),
    jag_pad_scores=lambda s, o: F.elu(s.masked_fill(torch.arange(5) >= lengths(o), -1e9)) + 1,
)
table(
    jag(),
    of=output,
    jag_layernorm_between=lambda p, o: unpad(F.layer_norm(p, (4,)), o),
)
table(
    jag(),
    jag_value_padding_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o), pad(v, o, p=1.0), o),
    jag_other_offsets_v=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o), pad(v, o2), o), OTHERS),
)
table(
    nothing,
    of=padded,
    jag_roll_queries=(lambda a, b, c, o: plain(a.roll(1, 1), b, c, o), jag()),
    jag_other_offsets_out=(lambda a, b, c, o, o2: plain(a, b, c, o2), jag(), OTHERS),
    jag_heads_wrong_order=(
        lambda a, b, c, o: unpad(
            (F.silu(a.view(3, 2, 5, 4) @ T(b.view(3, 2, 5, 4))) @ c.view(3, 2, 5, 4)).reshape(
                3, 5, 8
            ),
            o,
        ),
        jag(d=8),
    ),
)


@case(jag())
def jag_offsets_written(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    o[1] = 3
    return plain(a, b, c, o)


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


OFFSETS = values([0, 2, 5, 9])
rows = lambda *shape: normal(*[(9, *shape)] * 3, dtype=torch.float32)


def from_nested(x, offsets, fill=0.0, most=5):
    nested = torch.nested.nested_tensor_from_jagged(x, offsets, max_seqlen=most, min_seqlen=2)
    return nested.to_padded_tensor(fill)


@case(plus(rows(4), OFFSETS, values([0, 3, 6, 9])))
def nested_two_offsets(q, k, v, o, o2):
    return torch.sigmoid(from_nested(q, o) @ T(from_nested(k, o2, 0.5))) @ from_nested(v, o2, 1.0)


@case(plus(rows(4), OFFSETS))
def nested_there_and_back(q, k, v, o):
    from torch.nested._internal.nested_tensor import nested_from_padded

    a, b, c = (from_nested(x, o, most=4) for x in (q, k, v))
    p = torch.sigmoid(a @ T(b)) @ c
    return nested_from_padded(p, o, ragged_idx=1, sum_S=9).values()


def padded_and_unpadded(pad, unpad):
    def program(q, k, v, o):
        w = torch.sigmoid(pad.apply(q, o) @ T(pad.apply(k, o)))
        return unpad.apply(w @ pad.apply(v, o), o)

    return program


PADS = {"PadF": pad_function(5), "PadF2": pad_function(5, lambda g: g * 2)}
UNPADS = {
    "UnpadF": unpad_function(9, 5),
    "UnpadF1": unpad_function(9, 5, fill=1.0),
    "UnpadFd": unpad_function(9, 5, lambda g: g.detach() * 2),
    "UnpadFo": unpad_function(
        9, 5, offsets=lambda o: F.pad(o.flip(0).diff().abs().cumsum(0), (1, 0))
    ),
}
for one, pads in PADS.items():
    for other, unpads in UNPADS.items():
        PROGRAMS.add(f"func_{one}_{other}", padded_and_unpadded(pads, unpads), jag(grad=True))
