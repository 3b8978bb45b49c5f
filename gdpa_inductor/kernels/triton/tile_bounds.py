"""Bounds of an operand between the products, for kernels that tell the tiles of the scores apart.

A mask that comes as a tensor says nothing by its formula; what it holds on a tile has to be looked
at. The device does so once for each graph. It reads the operand and keeps the smallest and largest
element of every block of BOUNDS_TILE rows and columns: a thousandth of its size.
"""

from __future__ import annotations

import torch
from torch import Tensor

BOUNDS_TILE = 32  # no tile that is worth leaving out is smaller


def tile_bounds(operand: Tensor, rows: int | None, columns: int | None) -> Tensor:
    """[2, ...] smallest and largest elements: `operand` with its dimensions `rows` and `columns`,
    where it has them, in blocks; NaN where a block has one.
    """
    found = operand.to(torch.uint8) if operand.dtype == torch.bool else operand
    inside: list[int] = []
    for dim in sorted(dim for dim in (rows, columns) if dim is not None):
        at = dim + len(inside)
        found = _filled(found, at)
        found = found.unflatten(at, (found.shape[at] // BOUNDS_TILE, BOUNDS_TILE))
        inside.append(at + 1)
    # One reduction of both dimensions, and the cast before the stack: Inductor makes one kernel.
    return torch.stack([end(found, inside).to(operand.dtype) for end in (torch.amin, torch.amax)])


def _filled(operand: Tensor, dim: int) -> Tensor:
    """The last block filled up by the last element."""
    length = operand.shape[dim]
    count = (length + BOUNDS_TILE - 1) // BOUNDS_TILE
    index = torch.arange(count * BOUNDS_TILE, device=operand.device).clamp(max=length - 1)
    found: Tensor = torch.ops.aten.index.Tensor(operand, [None] * dim + [index])
    return found
