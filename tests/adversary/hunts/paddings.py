"""Padding and unpadding by functions of autograd's over ATen's operators, right and wrong ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class Library:
    """Programs whose query, key and value a library pads.

    pad: of values [L, ...] and offsets. unpad: of what is padded and offsets.
    """

    pad: Callable
    unpad: Callable

    def padded(self, f: Callable) -> Callable:
        """The program that is `f` of query, key and value as they are padded."""
        pad = self.pad
        return lambda q, k, v, o, *more: f(pad(q, o), pad(k, o), pad(v, o), o, *more)

    def rows(self, f: Callable) -> Callable:
        """The same, unpadded."""
        return self.padded(lambda a, b, c, o, *more: self.unpad(f(a, b, c, o, *more), o))

    def weights(self, f: Callable) -> Callable:
        """The program whose weights are `f` of the scores, unpadded."""
        return self.rows(lambda a, b, c, o, *more: f(a @ b.mT, o, *more) @ c)


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
