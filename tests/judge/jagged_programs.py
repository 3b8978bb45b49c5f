"""Such programs as `programs` has, with jagged sides."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.jagged import Pad, offsets_of, pad, unpad
from tests.judge.programs import D, program

aten = torch.ops.aten
LENGTHS = (3, 1, 5)
TOTAL, LONGEST = sum(LENGTHS), 6


def jagged(*more: Any, grad: bool = True) -> tuple:
    values = (torch.randn(TOTAL, D).requires_grad_(grad) for _ in range(3))
    return (*values, offsets_of(LENGTHS), *more)


def attend(q, k, v):
    return F.silu(q @ k.mT) @ v


@program(jagged)
def keys_padded_without_gradients(q, k, v, offsets):
    with torch.no_grad():
        k = aten._jagged_to_padded_dense_forward(k, [offsets], [LONGEST], 0.0)
    q, v = (pad(x, offsets, LONGEST) for x in (q, v))
    return unpad(attend(q, k, v), offsets, TOTAL)


@program(lambda: jagged(grad=False))
def values_written_after_padding(q, k, v, offsets):
    k = k * 1
    padded = pad(k, offsets, LONGEST)
    k.mul_(2)
    q, v = (pad(x, offsets, LONGEST) for x in (q, v))
    return unpad(attend(q, padded, v), offsets, TOTAL)


@program(lambda: jagged(torch.randn(TOTAL + 2, 1), grad=False))
def scales_of_another_number(q, k, v, offsets, scale):
    q, k, v, scale = (pad(x, offsets, LONGEST) for x in (q, k, v, scale))
    return unpad(F.silu(q @ k.mT * scale) @ v, offsets, TOTAL)


class PadUnlike(Pad):
    """Its gradient is taken by other offsets."""

    @staticmethod
    def forward(ctx, values, offsets, other):
        ctx.save_for_backward(other)
        return aten._jagged_to_padded_dense_forward(values, [offsets], [LONGEST], 0.0)

    @staticmethod
    def backward(ctx, grad):
        (other,) = ctx.saved_tensors
        return aten._padded_dense_to_jagged_forward(grad, [other], TOTAL), None, None


@program(lambda: jagged(offsets_of(LENGTHS[::-1])))
def pad_with_another_backward(q, k, v, offsets, other):
    k = PadUnlike.apply(k, offsets, other)
    q, v = (pad(x, offsets, LONGEST) for x in (q, v))
    return unpad(attend(q, k, v), offsets, TOTAL)


@program(lambda: jagged(torch.tensor([2, 0, 1])))
def sequences_in_another_order(q, k, v, offsets, order):
    q, k, v = (pad(x, offsets, LONGEST) for x in (q, k, v))
    return unpad(attend(q, k[order], v[order]), offsets, TOTAL)


@program(lambda: jagged(grad=False))
def offsets_through_truth_values(q, k, v, offsets):
    truth = offsets.to(torch.bool).to(torch.int64)
    q, k, v = pad(q, offsets, LONGEST), pad(k, truth, LONGEST), pad(v, truth, LONGEST)
    return unpad(attend(q, k, v), offsets, TOTAL)
