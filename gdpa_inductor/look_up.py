"""gdpa::look_up and gdpa::look_up_backward: elements of a learned table, and the table's gradient.

    look_up(table [*P, T, *Q], index [*I], dim) -> [*P, *I, *Q]
    look_up_backward(grad [*P, *I, *Q], index [*I], dim, size T) -> [*P, T, *Q]

P are the dims before `dim`, Q those after it, I those of the index. The index is int32 or int64,
and a negative place counts from the end. A place past an end is an error.

A bias that is looked up has an element for each score, and its table has a few hundred. So the
gradient of a table element is a sum of thousands or millions of terms. Sums of 16-bit gradients are
computed in fp32 and rounded once. A sum in 16 bits would stop growing after a few hundred terms.

`lowerings/tables.py` says how compiled code sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._compat import operators

aten = torch.ops.aten
NARROW = (torch.float16, torch.bfloat16)
# Measured on an H200: more copies gain nothing, and fewer are not worth their index.
_MOST_COPIES, _FEWEST_COPIES = 2048, 16
_MOST_ELEMENTS = 1 << 20  # of all copies together, so that they stay in the cache
_LEAST_SHARE = 4  # at least so many times as many elements are looked up as all copies have


def copies(size: int, count: int) -> int:
    """How many copies of a table of `size` elements get the gradients of `count` elements."""
    most = min(_MOST_COPIES, _MOST_ELEMENTS // size, count // (_LEAST_SHARE * size))
    return 1 if most < _FEWEST_COPIES else 1 << (most.bit_length() - 1)


def at(index: Tensor, dim: int) -> list[Tensor | None]:
    """The indices of ATen's `index` and `index_put`, with which dims before `dim` are whole."""
    return [*[None] * dim, index]


def summed(grad: Tensor, index: Tensor, dim: int, size: int, copies: int = 1) -> Tensor:
    """The gradient of a table, in the dtype of `grad`.

    copies: Neighbours in the index add to so many copies of the table.
    """
    wide = torch.float32 if grad.dtype in NARROW else grad.dtype
    before, after = grad.shape[:dim], grad.shape[dim + index.dim() :]
    # Additions to one address wait for each other. Copies of an element are neighbours in memory,
    # so negative places keep their meaning.
    if copies > 1:
        count = torch.arange(index.numel(), device=index.device).view(index.shape)
        index = index * copies + count % copies
    sums = torch.zeros([*before, size * copies, *after], dtype=wide, device=grad.device)
    sums = aten.index_put(sums, at(index, dim), grad.to(wide), True)
    if copies > 1:
        sums = sums.view([*before, size, copies, *after]).sum(dim + 1)
    return sums.to(grad.dtype)


def _look_up(table: Tensor, index: Tensor, dim: int) -> Tensor:
    return aten.index(table, at(index, dim))


def _fake_backward(grad: Tensor, index: Tensor, dim: int, size: int) -> Tensor:
    return grad.new_empty([*grad.shape[:dim], size, *grad.shape[dim + index.dim() :]])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, index, ctx.dim = inputs
    ctx.save_for_backward(index)
    ctx.size = table.shape[ctx.dim]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (index,) = ctx.saved_tensors
    return torch.ops.gdpa.look_up_backward(grad, index, ctx.dim, ctx.size), None, None


def _save_of_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, index, ctx.dim, _ = inputs
    ctx.save_for_backward(index)


def _double_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (index,) = ctx.saved_tensors
    return torch.ops.gdpa.look_up(grad, index, ctx.dim), None, None, None


_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_FORWARD = "look_up(Tensor table, Tensor index, int dim) -> Tensor"
_BACKWARD = "look_up_backward(Tensor grad, Tensor index, int dim, SymInt size) -> Tensor"
operators.define(_LIBRARY, _FORWARD, _look_up, _look_up, backward=_backward, save=_save)
operators.define(
    _LIBRARY, _BACKWARD, summed, _fake_backward, backward=_double_backward, save=_save_of_backward
)
