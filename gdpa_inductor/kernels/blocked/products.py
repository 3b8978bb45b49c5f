"""Matrix products of a block, and their sums over blocks in a fixed order.

Notation: as in `operands`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .chunks import Visit
from .operands import Block, MatrixSpec, Region
from .recording import Steps

_ALIGNED = 64  # bytes; torch.empty aligns so


def is_joint(operand: Tensor, batch: int, heads: int) -> bool:
    """Whether batches and heads can be viewed as one dim."""
    own_batch, own_heads = operand.shape[:2]
    if batch == 1 or heads == 1:
        return own_heads in (1, heads)
    if (own_batch, own_heads) == (batch, heads):
        return operand.stride(0) == heads * operand.stride(1)
    return own_batch == own_heads == 1


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left · right; of 16-bit factors, out may be in fp32."""
    if left.dtype == right.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    elif left.is_cuda:
        torch.ops.aten.bmm.dtype_out(left, right, out.dtype, out=out)
    else:
        torch.bmm(left.to(out.dtype), right.to(out.dtype), out=out)


def _add_product(left: Tensor, right: Tensor, total: Tensor) -> None:
    if left.dtype != total.dtype and left.is_cuda:
        torch.ops.aten.baddbmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total.baddbmm_(left.to(total.dtype), right.to(total.dtype))


@dataclass
class Sums:
    """Fills a target, region after region, with sums of products."""

    side: MatrixSpec
    target: Tensor
    visits: Iterator[Visit]  # of the blocks to come
    dtype: torch.dtype  # of sums
    steps: Steps
    onto: bool  # add to what the target holds, in place of replacing it
    totals: dict[Region, Tensor] = field(default_factory=dict)

    def add(self, block: Block, left: Tensor, right: Tensor) -> None:
        """left [units, ·, ·] · right [units, ·, width]; units that share a region are summed."""
        side, (region, first, last) = self.side, next(self.visits)
        target, shared = side.target(self.target, block), side.is_shared_in(block)
        size = (1 if shared else left.shape[0], left.shape[1], right.shape[2])
        direct = self._is_direct(target, alone=first and last and not shared)
        if direct:
            total = target.view(size)
        elif first:
            total = self.steps.empty(size, self.dtype, side.along)
        else:
            total = self.totals.pop(region)
        adds = not first or (direct and self.onto)
        if shared:
            self.steps.do(functools.partial(_sum_products, adds), left, right, total)
        else:
            self.steps.do(_add_product if adds else multiply, left, right, total)
        if last and not direct:
            store = Tensor.add_ if self.onto else Tensor.copy_
            self.steps.do(store, target, total.view(target.shape))
        elif not direct:
            self.totals[region] = total

    def _is_direct(self, target: Tensor, alone: bool) -> bool:
        """Whether products are summed in the target."""
        if self.side.folded is None:
            return alone or target.dtype == self.dtype
        # torch.baddbmm multiplies matrices one by one if they are not contiguous. The last bits of
        # a product depend on the alignment of its memory, which for rows is the sequence's place.
        aligned = self.side.along == "cols" or target.data_ptr() % _ALIGNED == 0
        return target.dtype == self.dtype and target.is_contiguous() and aligned


def _sum_products(adds: bool, left: Tensor, right: Tensor, total: Tensor) -> None:
    """total [1, ·, ·] = or += the sum of left · right over units that share it."""
    parts = total.new_empty(left.shape[0], *total.shape[1:])
    multiply(left, right, parts)
    if adds:
        total.add_(parts.sum(0, keepdim=True))
    else:
        torch.sum(parts, 0, keepdim=True, out=total)
