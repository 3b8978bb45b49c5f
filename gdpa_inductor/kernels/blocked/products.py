"""Matrix products of a block, and their sums over blocks in a fixed order.

Notation: as in `operands`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .operands import WHOLE, Block, MatrixSpec, Region
from .recording import Steps

_ALIGNED = 64  # bytes; torch.empty aligns so


@dataclass(frozen=True)
class Matrices:
    """The matrices [units, rows, width] of an operand [B|1, H/group, L, width] that a block reads.

    folded: How many query heads read a head of the key (or value) that these are multiplied with.
    On the CPU the rows of these heads are one matrix. None for chunks: there a unit is one (batch,
    head), and the matrices are views with one stride for each dim. `chunks` chooses batches and
    heads so.
    """

    operand: Tensor
    side: MatrixSpec
    folded: int | None = None

    def of(self, block: Block) -> Tensor:
        if self.folded is not None:
            heads = (block.h.stop - 1) // self.folded - block.h.start // self.folded + 1
            units = (block.b.stop - block.b.start) * heads
            return self._part(block).reshape(units, -1, self.side.width)
        batches, heads, *_ = block.shape
        span, side, t = self.side.span(block), self.side, self.operand
        by_batch, by_head, by_row, by_column = t.stride()
        per_batch = 0 if side.shared else by_batch
        per_head = by_head if side.group == 1 else 0
        start = t.storage_offset() + per_batch * block.b.start
        start += by_head * (block.h.start // side.group) + by_row * span.start
        size = (batches * heads, span.stop - span.start, side.width)
        return t.as_strided(size, (per_head if heads > 1 else per_batch, by_row, by_column), start)

    def _part(self, block: Block) -> Tensor:
        """What the block reads, with four dims; a view."""
        group, t = self.side.group, self.operand
        heads = slice(block.h.start // group, (block.h.stop - 1) // group + 1)
        return t[block.b if t.shape[0] != 1 else WHOLE, heads, self.side.span(block)]

    def target(self, block: Block) -> Tensor:
        """The memory to which the block adds: one matrix if its units share it. It is a view."""
        if self.folded is not None:
            return self._part(block)
        matrices = self.of(block)
        return matrices[:1] if self.side.is_shared_in(block) else matrices

    def region(self, block: Block) -> Region:
        """Blocks with equal regions are summed before they are stored."""
        if self.folded is None:
            return self.side.region(block)
        # Those of a band are, if they add to its rows. They follow each other.
        axes = block[:3] if self.side.along == "rows" else block
        return tuple(span.start for span in axes)


def is_joint(operand: Tensor, batch: int, heads: int) -> bool:
    """Whether batches and heads can be viewed as one dim."""
    own_batch, own_heads = operand.shape[:2]
    if batch == 1 or heads == 1:
        return own_heads in (1, heads)
    if (own_batch, own_heads) == (batch, heads):
        return operand.stride(0) == heads * operand.stride(1)
    return own_batch == own_heads == 1


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left · right. For 16-bit factors, out may be fp32."""
    if left.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    elif left.is_cuda:
        torch.ops.aten.bmm.dtype_out(left, right, out.dtype, out=out)
    else:
        torch.bmm(left.to(out.dtype), right.to(out.dtype), out=out)


def _add_product(left: Tensor, right: Tensor, total: Tensor) -> None:
    """total += left · right. For 16-bit factors, total may be fp32."""
    if left.dtype != total.dtype and left.is_cuda:
        torch.ops.aten.baddbmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total.baddbmm_(left.to(total.dtype), right.to(total.dtype))


class Sums:
    """Fills a target, region after region, with sums of products.

    dtype: The dtype of sums. onto: Add to the content of the target; otherwise replace it.
    """

    def __init__(
        self,
        target: Matrices,
        blocks: Iterable[Block],
        dtype: torch.dtype,
        steps: Steps,
        onto: bool,
    ) -> None:
        self._matrices, self._dtype, self._steps, self._onto = target, dtype, steps, onto
        self._left = Counter(map(target.region, blocks))
        self._begun: set[Region] = set()
        self._totals: dict[Region, Tensor] = {}

    def add(self, block: Block, left: Tensor, right: Tensor) -> None:
        """left [units, ·, ·] · right [units, ·, width]; units that share a region are summed."""
        matrices = self._matrices
        region, target = matrices.region(block), matrices.target(block)
        shared = matrices.folded is None and matrices.side.is_shared_in(block)
        first = region not in self._begun
        self._begun.add(region)
        self._left[region] -= 1
        last = self._left[region] == 0
        size = (1 if shared else left.shape[0], left.shape[1], right.shape[2])
        direct = self._is_direct(target, alone=first and last and not shared)
        if direct:
            total = target.view(size)
        elif first:
            total = self._steps.empty(size, self._dtype, matrices.side.along)
        else:
            total = self._totals.pop(region)
        adds = not first or (direct and self._onto)
        if shared:
            self._steps.do(functools.partial(_sum_products, adds), left, right, total)
        else:
            self._steps.do(_add_product if adds else multiply, left, right, total)
        if last and not direct:
            store = Tensor.add_ if self._onto else Tensor.copy_
            self._steps.do(store, target, total.view(target.shape))
        elif not direct:
            self._totals[region] = total

    def _is_direct(self, target: Tensor, alone: bool) -> bool:
        """Whether products are summed in the target. alone: It is a single product."""
        if self._matrices.folded is None:
            return alone or target.dtype == self._dtype
        # torch.baddbmm multiplies matrices one by one if they are not contiguous. The last bits of
        # a product depend on the alignment of its memory, which for rows is the sequence's place.
        aligned = self._matrices.side.along == "cols" or target.data_ptr() % _ALIGNED == 0
        return target.dtype == self._dtype and target.is_contiguous() and aligned


def _sum_products(adds: bool, left: Tensor, right: Tensor, total: Tensor) -> None:
    """total [1, ·, ·] = or += the sum of left · right over units that share it."""
    parts = total.new_empty(left.shape[0], *total.shape[1:])
    multiply(left, right, parts)
    if adds:
        total.add_(parts.sum(0, keepdim=True))
    else:
        torch.sum(parts, 0, keepdim=True, out=total)
