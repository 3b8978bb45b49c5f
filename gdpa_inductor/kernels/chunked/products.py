"""Matrix products of a chunk, and their sums over chunks in fp32 and in a fixed order."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cpu.blocks import Block
from .chunks import MatrixSpec, Region
from .recording import Steps


@dataclass(frozen=True)
class Matrices:
    """The matrices [units, rows, width] of an operand [B|1, H/group, L, width] that a chunk reads.

    They are views with one stride for each dim. `chunks` chooses batches and heads so.
    """

    operand: Tensor
    side: MatrixSpec

    def of(self, block: Block) -> Tensor:
        batches, heads, *_ = block.shape
        span, side, t = self.side.span(block), self.side, self.operand
        by_batch, by_head, by_row, by_column = t.stride()
        per_batch = 0 if side.shared else by_batch
        per_head = by_head if side.group == 1 else 0
        start = t.storage_offset() + per_batch * block.b.start
        start += by_head * (block.h.start // side.group) + by_row * span.start
        size = (batches * heads, span.stop - span.start, side.width)
        return t.as_strided(size, (per_head if heads > 1 else per_batch, by_row, by_column), start)

    def own(self, block: Block) -> Tensor:
        """The matrices without repetitions: one matrix if the units share it."""
        found = self.of(block)
        return found[:1] if self.side.is_shared_in(block) else found


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


def add_product(left: Tensor, right: Tensor, total: Tensor) -> None:
    """total += left · right. For 16-bit factors, total may be fp32."""
    if left.dtype != total.dtype and left.is_cuda:
        torch.ops.aten.baddbmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total.baddbmm_(left.to(total.dtype), right.to(total.dtype))


class RegionSums:
    """Fills `target`, region after region, with sums of products. Sums are fp32 or wider.

    visits: How many products each region sums.
    """

    def __init__(
        self, target: Tensor, side: MatrixSpec, visits: Counter[Region], steps: Steps
    ) -> None:
        self._places, self._side, self._visits = Matrices(target, side), side, visits
        self._dtype = torch.promote_types(target.dtype, torch.float32)
        self._sums: dict[Region, Tensor] = {}
        self._seen: Counter[Region] = Counter()
        self._steps = steps

    def add(self, block: Block, left: Tensor, right: Tensor) -> None:
        """left [units, ·, ·] · right [units, ·, width]; units that share a region are summed."""
        region, place = self._side.region(block), self._places.own(block)
        shared = self._side.is_shared_in(block)
        first = self._seen[region] == 0
        self._seen[region] += 1
        last = self._seen[region] == self._visits[region]
        if place.dtype == self._dtype:
            total = place
        elif first and last and not shared:
            self._steps.do(multiply, left, right, place)
            return
        elif first:
            total = self._sums[region] = self._steps.empty(tuple(place.shape), self._dtype)
        else:
            total = self._sums[region]
        add = functools.partial(_accumulate, first=first, shared=shared)
        self._steps.do(add, left, right, total)
        if last and total is not place:
            self._steps.do(Tensor.copy_, place, self._sums.pop(region))


def _accumulate(left: Tensor, right: Tensor, total: Tensor, first: bool, shared: bool) -> None:
    if not shared:
        (multiply if first else add_product)(left, right, total)
        return
    parts = total.new_empty(left.shape[0], *total.shape[1:])
    multiply(left, right, parts)
    if first:
        torch.sum(parts, 0, keepdim=True, out=total)
    else:
        total.add_(parts.sum(0, keepdim=True))
