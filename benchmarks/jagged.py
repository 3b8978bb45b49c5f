"""Jagged attention: its operands, and the formula with padding, as users write it.

The formula pads operands [L, H, D] by ATen's jagged operators, computes attention, and removes the
padding. Either queries, keys and values share offsets, or keys and values are short and dense, with
shape [B, N, H, D]. The variant "causal" is that of HSTU: its weights are masked and divided by the
padded length.

Notation: L rows of all sequences, n the padded length, E channels of a row.
"""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cases import ACTIVATIONS, Case, Function, Subject

aten = torch.ops.aten


def offsets(counts: Tensor) -> Tensor:
    """The offsets of sequences, int32 [B + 1], from their lengths [B]."""
    return torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()])


def scale(case: Case) -> float:
    """The factor of the scores. It is 1 for gelu_tanh, as in the public kernels' benchmark.

    These kernels leave scaling to the caller.
    """
    return 1.0 if case.activation == "gelu_tanh" else case.head_dim**-0.5


class Pad(torch.autograd.Function):
    """Padding, [L, E] to [B, n, E]. ATen's operator has no derivative."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ends: Tensor, n: int) -> Tensor:
        ctx.save_for_backward(ends)
        ctx.total = values.shape[0]
        return aten._jagged_to_padded_dense_forward(values, [ends], [n], 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (ends,) = ctx.saved_tensors
        return aten._padded_dense_to_jagged_forward(grad, [ends], ctx.total), None, None


class Unpad(torch.autograd.Function):
    """The inverse of `Pad`, [B, n, E] to [L, E]."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, ends: Tensor, total: int) -> Tensor:
        ctx.save_for_backward(ends)
        ctx.n = padded.shape[1]
        return aten._padded_dense_to_jagged_forward(padded, [ends], total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (ends,) = ctx.saved_tensors
        return aten._jagged_to_padded_dense_forward(grad, [ends], [ctx.n], 0.0), None, None


def pad(values: Tensor, ends: Tensor, n: int) -> Tensor:
    """Pad rows [L, H, D] to [B, H, n, D]."""
    padded = Pad.apply(values.flatten(1), ends, n)
    return padded.view(-1, n, *values.shape[1:]).transpose(1, 2)


def formula(case: Case) -> Function:
    """The formula of a jagged case: a function of query, key, value and int64 offsets."""
    activation, n, factor = ACTIVATIONS[case.activation], case.length, scale(case)

    def attend(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
        q = pad(query, ends, n)
        k, v = (x.transpose(1, 2) if case.keys else pad(x, ends, n) for x in (key, value))
        score = q @ k.transpose(-2, -1)
        weight = activation(score if factor == 1.0 else score * factor)
        if case.variant == "causal":
            places = torch.arange(n, device=q.device)
            weight = torch.where(places[:, None] >= places, weight / n, 0.0)
        out = (weight @ v).transpose(1, 2)
        flat = Unpad.apply(out.reshape(out.shape[0], n, -1), ends, query.shape[0])
        return flat.view(query.shape[0], *value.shape[-2:])

    return attend


class JaggedLayer(torch.nn.Module):
    """A layer of HSTU: one projection, padded causal attention and a gate. [L, H·D] to [L, H·D]."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.heads = case.heads
        self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.project = torch.nn.Linear(width, 4 * width, bias=False)
        self.out = torch.nn.Linear(width, width)
        self.attend = formula(dataclasses.replace(case, variant="causal"))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        mixed = F.silu(self.project(self.before(x))).unflatten(-1, (4 * self.heads, -1))
        gate, value, query, key = mixed.chunk(4, dim=1)
        attended = self.attend(query, key, value, ends).flatten(1)
        return x + self.out(self.after(attended) * gate.flatten(1))


def layer_subject(case: Case, ends: Tensor, total: int) -> Subject:
    dtype = getattr(torch, case.dtype)
    layer = JaggedLayer(case).to(case.device, dtype)
    shape = (total, case.heads * case.head_dim)
    x = torch.randn(shape, device=case.device, dtype=dtype, requires_grad=True)
    direction = torch.randn(shape, device=case.device, dtype=dtype)
    return Subject(layer, (x, ends), (x, *layer.parameters()), direction)


def subject(case: Case) -> Subject:
    dtype = getattr(torch, case.dtype)
    counts = case.lengths()
    ends = offsets(counts).to(case.device, torch.int64)
    if case.variant == "layer":
        return layer_subject(case, ends, int(counts.sum()))
    jagged = (int(counts.sum()), case.heads, case.head_dim)
    short = (case.batch, case.keys, case.heads, case.head_dim)
    shapes = (jagged, *([short if case.keys else jagged] * 2))
    leaves = tuple(
        torch.randn(shape, device=case.device, dtype=dtype, requires_grad=True) for shape in shapes
    )
    direction = torch.randn(jagged, device=case.device, dtype=dtype)
    return Subject(formula(case), (*leaves, ends), leaves, direction)
