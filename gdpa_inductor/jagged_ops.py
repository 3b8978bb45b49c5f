"""gdpa::jagged_to_padded_dense and gdpa::dense_to_jagged: jagged rows to padded ones and back.

    jagged_to_padded_dense(values [L, …], offsets [B+1], max_length) -> [B, max_length, …]
    dense_to_jagged(dense [B, N, …], offsets [B+1], total) -> [total, …]

The names are those of fbgemm. Sequence b owns the values offsets[b]:offsets[b+1]. Values past
max_length are dropped, and come back as zeros. Missing values are zero, whatever is next to them in
memory. Each op is the gradient of the other. The host reads no length. So the ops run in CUDA
graphs, and compile for all lengths at once, on any device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._compat import operators
from .sequences import Sequences

_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define(
    "jagged_to_padded_dense(Tensor values, Tensor offsets, SymInt max_length) -> Tensor", tags=_TAGS
)
_LIBRARY.define("dense_to_jagged(Tensor dense, Tensor offsets, SymInt total) -> Tensor", tags=_TAGS)


@torch.library.impl(_LIBRARY, "jagged_to_padded_dense", "CompositeExplicitAutograd")
def _pad(values: Tensor, offsets: Tensor, max_length: int) -> Tensor:
    return Sequences(offsets, values.shape[0], max_length).pad(values)


@torch.library.impl(_LIBRARY, "dense_to_jagged", "CompositeExplicitAutograd")
def _unpad(dense: Tensor, offsets: Tensor, total: int) -> Tensor:
    return Sequences(offsets, total, dense.shape[1]).unpad(dense)


def _pad_fake(values: Tensor, offsets: Tensor, max_length: int) -> Tensor:
    return values.new_empty(offsets.shape[0] - 1, max_length, *values.shape[1:])


def _unpad_fake(dense: Tensor, offsets: Tensor, total: int) -> Tensor:
    return dense.new_empty(total, *dense.shape[2:])


operators.register_fake(_LIBRARY, "jagged_to_padded_dense", _pad_fake)
operators.register_fake(_LIBRARY, "dense_to_jagged", _unpad_fake)


def _save_for_pad(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, offsets, _ = inputs
    ctx.save_for_backward(offsets)
    ctx.total = values.shape[0]


def _save_for_unpad(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dense, offsets, _ = inputs
    ctx.save_for_backward(offsets)
    ctx.longest = dense.shape[1]


def _pad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.gdpa.dense_to_jagged(grad, *ctx.saved_tensors, ctx.total), None, None


def _unpad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.gdpa.jagged_to_padded_dense(grad, *ctx.saved_tensors, ctx.longest), None, None


torch.library.register_autograd(
    "gdpa::jagged_to_padded_dense", _pad_backward, setup_context=_save_for_pad, lib=_LIBRARY
)
torch.library.register_autograd(
    "gdpa::dense_to_jagged", _unpad_backward, setup_context=_save_for_unpad, lib=_LIBRARY
)
