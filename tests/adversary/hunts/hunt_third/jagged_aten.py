"""Jagged rows by functions of autograd's over ATen's operators, and nested tensors."""

import torch
import torch.nn.functional as F

from ..rows import INF, Programs, plus
from .jagged import OFFSETS, OTHERS, ROWS

PROGRAMS = Programs()
table = PROGRAMS.table


class PadAten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o, n, fill):
        ctx.save_for_backward(o)
        ctx.total = x.shape[0]
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], fill)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._padded_dense_to_jagged_forward(g.contiguous(), [o], ctx.total),
            None,
            None,
            None,
        )


class PadAtenDouble(PadAten):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._padded_dense_to_jagged_forward(g.contiguous() * 2, [o], ctx.total),
            None,
            None,
            None,
        )


class UnpadAten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o, total):
        ctx.save_for_backward(o)
        ctx.n = x.shape[1]
        return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], total)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._jagged_to_padded_dense_forward(g.contiguous(), [o], [ctx.n], 0.0),
            None,
            None,
        )


class UnpadAtenOnes(UnpadAten):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._jagged_to_padded_dense_forward(g.contiguous(), [o], [ctx.n], 1.0),
            None,
            None,
        )


def by_aten(pad, unpad, fills=(0.0, 0.0, 0.0)):
    def program(q, k, v, o):
        a, b, c = (
            pad.apply(x.flatten(1), o, 5, f).view(4, 5, 2, 4).transpose(1, 2)
            for x, f in zip((q, k, v), fills)
        )
        s = torch.sigmoid(a @ b.mT) @ c
        return unpad.apply(s.transpose(1, 2).reshape(4, 5, 8), o, q.shape[0])

    return program


def nested(q, k, v, o):
    a, b, c = (torch.nested.nested_tensor_from_jagged(x, o) for x in (q, k, v))
    a, b, c = (x.to_padded_tensor(0.0).transpose(1, 2) for x in (a, b, c))
    return torch.sigmoid(a @ b.mT) @ c


def nested_fill(q, k, v, o):
    a, b, c = (torch.nested.nested_tensor_from_jagged(x, o) for x in (q, k, v))
    a, b, c = (x.to_padded_tensor(f).transpose(1, 2) for x, f in ((a, 0.0), (b, 1.0), (c, 0.5)))
    return torch.sigmoid(a @ b.mT) @ c


def nested_different(q, k, v, o, p):
    a = torch.nested.nested_tensor_from_jagged(q, o)
    b, c = (torch.nested.nested_tensor_from_jagged(x, p) for x in (k, v))
    a, b, c = (x.to_padded_tensor(0.0).transpose(1, 2) for x in (a, b, c))
    return F.relu(a @ b.mT) @ c


table(
    plus(ROWS, OFFSETS),
    prefix="jagged_",
    aten=by_aten(PadAten, UnpadAten),
    aten_double_gradient=by_aten(PadAtenDouble, UnpadAten),
    aten_unpad_pads_ones=by_aten(PadAten, UnpadAtenOnes),
    aten_query_of_ones=by_aten(PadAten, UnpadAten, (1.0, 0.5, 0.0)),
    aten_value_of_ones=by_aten(PadAten, UnpadAten, (0.0, 0.0, 1.0)),
    aten_query_infinite=by_aten(PadAten, UnpadAten, (INF, 0.0, 0.0)),
    aten_key_of_minus_two=by_aten(PadAten, UnpadAten, (0.0, -2.0, 0.0)),
    aten_value_minus_zero=by_aten(PadAten, UnpadAten, (0.0, 0.0, -0.0)),
    nested_padded=nested,
    nested_padded_with_a_half=nested_fill,
    nested_of_two_offsets=(nested_different, OTHERS),
)
