"""Jagged rows by functions of autograd's over ATen's operators, and nested tensors."""

import torch

from ..paddings import pad_function, unpad_function
from ..rows import INF, Programs, plus
from .jagged import OFFSETS, OTHERS, ROWS

PROGRAMS = Programs()
table = PROGRAMS.table
Pad, Unpad = pad_function(5), unpad_function(9, 5)


def by_aten(pad=Pad, unpad=Unpad, fills=(0.0, 0.0, 0.0)):
    def program(q, k, v, o):
        a, b, c = (
            pad.apply(x.flatten(1), o, f).view(4, 5, 2, 4).transpose(1, 2)
            for x, f in zip((q, k, v), fills)
        )
        s = torch.sigmoid(a @ b.mT) @ c
        return unpad.apply(s.transpose(1, 2).reshape(4, 5, 8), o)

    return program


def nested(*fills):
    """Keys and values may have offsets of their own."""

    def program(q, k, v, o, kv=None):
        kv = o if kv is None else kv
        a, b, c = (
            torch.nested.nested_tensor_from_jagged(x, p).to_padded_tensor(fill).transpose(1, 2)
            for x, p, fill in zip((q, k, v), (o, kv, kv), fills)
        )
        return torch.sigmoid(a @ b.mT) @ c

    return program


table(
    plus(ROWS, OFFSETS),
    prefix="jagged_",
    aten=by_aten(),
    aten_double_gradient=by_aten(pad=pad_function(5, lambda g: g * 2)),
    aten_unpad_pads_ones=by_aten(unpad=unpad_function(9, 5, fill=1.0)),
    aten_query_of_ones=by_aten(fills=(1.0, 0.5, 0.0)),
    aten_value_of_ones=by_aten(fills=(0.0, 0.0, 1.0)),
    aten_query_infinite=by_aten(fills=(INF, 0.0, 0.0)),
    aten_key_of_minus_two=by_aten(fills=(0.0, -2.0, 0.0)),
    aten_value_minus_zero=by_aten(fills=(0.0, 0.0, -0.0)),
    nested_padded=nested(0.0, 0.0, 0.0),
    nested_padded_with_a_half=nested(0.0, 1.0, 0.5),
    nested_of_two_offsets=(nested(0.0, 0.0, 0.0), OTHERS),
)
