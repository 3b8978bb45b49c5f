"""Padding and unpadding by functions of autograd's over ATen's operators, right and wrong ones."""

import torch

aten = torch.ops.aten


def same(x):
    return x


def pad_function(n, change=same):
    """Pads to `n` rows. change: what is done to the gradient, which the right one leaves alone."""

    class Pad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, o, fill=0.0):
            ctx.save_for_backward(o)
            ctx.total = x.shape[0]
            return aten._jagged_to_padded_dense_forward(x, [o], [n], fill)

        @staticmethod
        def backward(ctx, g):
            (o,) = ctx.saved_tensors
            g = change(g.contiguous())
            return aten._padded_dense_to_jagged_forward(g, [o], ctx.total), None, None

    return Pad


def unpad_function(total, n, change=same, fill=0.0, offsets=same):
    """Unpads to `total` rows. fill: what the gradient is padded with to `n`. offsets: by which
    offsets, of those given.
    """

    class Unpad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, o):
            ctx.save_for_backward(offsets(o))
            return aten._padded_dense_to_jagged_forward(x, [o], total)

        @staticmethod
        def backward(ctx, g):
            (o,) = ctx.saved_tensors
            g = change(g.contiguous())
            return aten._jagged_to_padded_dense_forward(g, [o], [n], fill), None

    return Unpad


class NoGradientPad(torch.autograd.Function):
    """To 7 rows, without a gradient."""

    @staticmethod
    def forward(ctx, x, o):
        return aten._jagged_to_padded_dense_forward(x, [o], [7], 0.0)

    @staticmethod
    def backward(ctx, g):
        return None, None
