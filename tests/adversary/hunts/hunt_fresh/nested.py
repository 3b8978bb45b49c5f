"""Nested tensors, and functions of autograd's that pad and unpad."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, plus, values
from .given import T
from .jagged import jag

PROGRAMS = Programs()
case = PROGRAMS.case


@case(plus(normal((9, 2, 4), (9, 2, 4), (9, 2, 4), dtype=torch.float32), values([0, 2, 5, 9])))
def nested_padded_grad(q, k, v, o):
    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x.flatten(1), o, max_seqlen=5, min_seqlen=2)
        .to_padded_tensor(0.0)
        .view(3, 5, 2, 4)
        .transpose(1, 2)
        for x in (q, k, v)
    )
    return F.silu(a @ T(b)) @ c


@case(
    plus(
        normal((9, 4), (9, 4), (9, 4), dtype=torch.float32),
        values([0, 2, 5, 9]),
        values([0, 3, 6, 9]),
    )
)
def nested_two_offsets(q, k, v, o, o2):
    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x, f, max_seqlen=5, min_seqlen=2).to_padded_tensor(p)
        for x, f, p in ((q, o, 0.0), (k, o2, 0.5), (v, o2, 1.0))
    )
    return torch.sigmoid(a @ T(b)) @ c


@case(plus(normal((9, 4), (9, 4), (9, 4), dtype=torch.float32), values([0, 2, 5, 9])))
def nested_there_and_back(q, k, v, o):
    from torch.nested._internal.nested_tensor import nested_from_padded

    a, b, c = (
        torch.nested.nested_tensor_from_jagged(x, o, max_seqlen=4, min_seqlen=2).to_padded_tensor(
            0.0
        )
        for x in (q, k, v)
    )
    p = torch.sigmoid(a @ T(b)) @ c
    return nested_from_padded(p, o, ragged_idx=1, sum_S=9).values()


class PadF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        ctx.save_for_backward(o)
        ctx.n = x.shape[0]
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [5], 0.0)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._padded_dense_to_jagged_forward(g, [o], ctx.n), None


class PadF2(PadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._padded_dense_to_jagged_forward(g * 2, [o], ctx.n), None


class PadF3(PadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._padded_dense_to_jagged_forward(g, [o], ctx.n) * 3, None


class UnpadF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        ctx.save_for_backward(o)
        return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], 9)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g, [o], [5], 0.0), None


class UnpadF1(UnpadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g, [o], [5], 1.0), None


class UnpadFd(UnpadF):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g.detach() * 2, [o], [5], 0.0), None


class UnpadFo(UnpadF):
    @staticmethod
    def forward(ctx, x, o):
        ctx.save_for_backward(o.flip(0).diff().abs().cumsum(0))
        return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], 9)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return torch.ops.aten._jagged_to_padded_dense_forward(g, [F.pad(o, (1, 0))], [5], 0.0), None


def padded_and_unpadded(pad, unpad):
    def program(q, k, v, o):
        w = torch.sigmoid(pad.apply(q, o) @ T(pad.apply(k, o)))
        return unpad.apply(w @ pad.apply(v, o), o)

    return program


for pad in (PadF, PadF2, PadF3):
    for unpad in (UnpadF, UnpadF1, UnpadFd, UnpadFo):
        name = f"func_{pad.__name__}_{unpad.__name__}"
        PROGRAMS.add(name, padded_and_unpadded(pad, unpad), jag(grad=True))
