"""Jagged rows by ATen and by the package, nested tensors, and functions that pad."""

import torch
import torch.nn.functional as F

import gdpa_inductor  # noqa: F401  registers torch.ops.gdpa

from .paddings import Library, pad_function, unpad_function
from .rows import D64, Programs, normal, nothing, plus, values

CASES, MORE = Programs(), Programs()


OTHERS = values([0, 3, 6, 9])


def jag(offsets=(0, 2, 5, 9), grad=False, d=4):
    return plus(normal(*[(9, d)] * 3, grad=grad), values(offsets))


def pad(x, o, n=5, p=0.0):
    return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], p)


def unpad(x, o, total=9):
    return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], total)


def plain(a, b, c, o):
    return unpad(torch.sigmoid(a @ b.mT) @ c, o)


ATEN = Library(pad, unpad)


def lengths(o):
    return (o[1:] - o[:-1])[:, None, None]


CASES.table(
    jag(),
    of=ATEN.weights,
    jag_causal=lambda s, o: torch.sigmoid(s) * (torch.arange(5)[:, None] >= torch.arange(5)),
    jag_scale_batch=lambda s, o: torch.sigmoid(s) / lengths(o),
    jag_mask_lengths=lambda s, o: torch.sigmoid(s) * (torch.arange(5) < lengths(o) - 1),
    jag_pad_scores=lambda s, o: F.elu(s.masked_fill(torch.arange(5) >= lengths(o), -1e9)) + 1,
)
CASES.table(
    jag(),
    jag_layernorm_between=ATEN.rows(
        lambda a, b, c, o: F.layer_norm(torch.sigmoid(a @ b.mT) @ c, (4,))
    ),
    jag_value_padding_one=lambda q, k, v, o: plain(pad(q, o), pad(k, o), pad(v, o, p=1.0), o),
    jag_other_offsets_v=(lambda q, k, v, o, o2: plain(pad(q, o), pad(k, o), pad(v, o2), o), OTHERS),
)
CASES.table(
    nothing,
    of=ATEN.padded,
    jag_roll_queries=(lambda a, b, c, o: plain(a.roll(1, 1), b, c, o), jag()),
    jag_other_offsets_out=(lambda a, b, c, o, o2: plain(a, b, c, o2), jag(), OTHERS),
    jag_heads_wrong_order=(
        lambda a, b, c, o: unpad(
            (F.silu(a.view(3, 2, 5, 4) @ b.view(3, 2, 5, 4).mT) @ c.view(3, 2, 5, 4)).reshape(
                3, 5, 8
            ),
            o,
        ),
        jag(d=8),
    ),
)


@CASES.case(jag())
def jag_offsets_written(q, k, v, o):
    a, b, c = pad(q, o), pad(k, o), pad(v, o)
    o[1] = 3
    return plain(a, b, c, o)


@CASES.case(jag())
def jag_manual_scatter(q, k, v, o):
    m = (torch.arange(5) < (o[1:] - o[:-1])[:, None])[..., None]
    z = torch.zeros(3, 5, 4, dtype=D64)
    a, b, c = (z.masked_scatter(m, x) for x in (q, k, v))
    return (F.silu(a @ b.mT) @ c).masked_select(m).view(9, 4)


@CASES.case(jag())
def jag_packed_segment(q, k, v, o):
    s = torch.searchsorted(o, torch.arange(9), right=True)
    return (torch.sigmoid(q @ k.t()) * (s[:, None] == s))[None] @ v


OFFSETS = values([0, 2, 5, 9])
of_floats = lambda *shape: normal(*[(9, *shape)] * 3, dtype=torch.float32)


def from_nested(x, offsets, fill=0.0, most=5):
    nested = torch.nested.nested_tensor_from_jagged(x, offsets, max_seqlen=most, min_seqlen=2)
    return nested.to_padded_tensor(fill)


@CASES.case(plus(of_floats(4), OFFSETS, values([0, 3, 6, 9])))
def nested_two_offsets(q, k, v, o, o2):
    return torch.sigmoid(from_nested(q, o) @ from_nested(k, o2, 0.5).mT) @ from_nested(v, o2, 1.0)


@CASES.case(plus(of_floats(4), OFFSETS))
def nested_there_and_back(q, k, v, o):
    from torch.nested._internal.nested_tensor import nested_from_padded

    a, b, c = (from_nested(x, o, most=4) for x in (q, k, v))
    p = torch.sigmoid(a @ b.mT) @ c
    return nested_from_padded(p, o, ragged_idx=1, sum_S=9).values()


def padded_and_unpadded(pad, unpad):
    def program(q, k, v, o):
        w = torch.sigmoid(pad.apply(q, o) @ pad.apply(k, o).mT)
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
        CASES.add(f"func_{one}_{other}", padded_and_unpadded(pads, unpads), jag(grad=True))


# By the package

ROWS = normal(*[(9, 2, 4)] * 3)


def offsets_of(*lengths, dtype=torch.int64):
    return values([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=dtype)


OWN_OFFSETS, OWN_OTHERS = offsets_of(3, 0, 4, 2), offsets_of(1, 4, 2, 2)
LENGTHS = values([3, 0, 4, 2])


own_pad, own_unpad = torch.ops.gdpa.jagged_to_padded_dense, torch.ops.gdpa.dense_to_jagged


def heads_first(x, offsets, n=5):
    """[B, H, n, D]"""
    return own_pad(x, offsets, n).transpose(1, 2)


OWN = Library(heads_first, lambda x, o: own_unpad(x.transpose(1, 2), o, 9))


def attend(q, k, v, o, n=5, total=9):
    a, b, c = (heads_first(x, o, n) for x in (q, k, v))
    return own_unpad((F.silu(a @ b.mT) @ c).transpose(1, 2), o, total)


def within(lengths):
    return torch.arange(5) < lengths[:, None]


def columns(mask):
    return mask[:, None, None]


def rows(mask):
    return mask[:, None, :, None]


def bias_of_keys(s, o, w, p=None):
    return F.silu(s + columns(own_pad(w, o if p is None else p, 5)))


MORE.table(
    plus(ROWS, OWN_OFFSETS),
    prefix="jagged_",
    cut_to_one=lambda q, k, v, o: attend(q, k, v, o, n=1),
    unpadded_shorter=lambda q, k, v, o: attend(q, k, v, o, total=7),
)
MORE.table(
    plus(ROWS, OWN_OFFSETS),
    of=OWN.weights,
    prefix="jagged_",
    exp=lambda s, o: torch.exp(s),
    log=lambda s, o: torch.log(s.abs() + 1),
    abs_sqrt=lambda s, o: (s.abs() + 1e-6).sqrt(),
    masked_by_diff=lambda s, o: F.silu(s) * columns(within(o.diff().to(torch.int8))) + 1,
    bias_by_other_offsets=(bias_of_keys, normal(9), OWN_OTHERS),
    bias_of_more_values=(bias_of_keys, normal(12)),
    bias_of_tokens=(
        lambda s, o, w: F.silu(s + rows(own_pad(w, o, 5)) + columns(own_pad(w, o, 5))),
        normal(9),
    ),
    bias_of_tokens_through_functions=(
        lambda s, o, w: F.silu(
            s / (rows(own_pad(w.sin(), o, 5)) + 2) + columns(own_pad(w, o, 5).cos())
        ),
        normal(9),
    ),
    tokens_divide_rows=(lambda s, o, w: F.silu(s / rows(own_pad(w, o, 5))), normal(9)),
)
MORE.table(
    plus(ROWS, OWN_OFFSETS),
    of=OWN.rows,
    prefix="jagged_",
    attends_over_samples=lambda a, b, c, o: (
        torch.sigmoid(a.permute(2, 1, 0, 3) @ b.permute(2, 1, 3, 0)) @ c.permute(2, 1, 0, 3)
    ).permute(2, 1, 0, 3),
)


@MORE.case(plus(ROWS, OWN_OFFSETS), of=OWN.rows)
def jagged_padded_value_written(a, b, c, o):
    c = c.clone()
    c[:, :, 4] = 3.0
    return torch.sigmoid(a @ b.mT) @ c


@MORE.case(plus(ROWS, OWN_OFFSETS))
def jagged_query_padded_without_gradient(q, k, v, o):
    with torch.no_grad():
        a = heads_first(q, o)
    s = torch.sigmoid(a @ heads_first(k, o).mT) @ heads_first(v, o)
    return own_unpad(s.transpose(1, 2), o, q.shape[0])


MORE.table(
    plus(ROWS, LENGTHS),
    prefix="jagged_",
    masked_by_other_lengths=lambda q, k, v, l: OWN.weights(
        lambda s, o: F.silu(s) * columns(within(l - 1)) * rows(within(l - 1).flip(0))
    )(q, k, v, F.pad(l.cumsum(0), (1, 0))),
)
