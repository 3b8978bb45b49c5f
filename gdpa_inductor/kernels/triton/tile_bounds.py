"""Tables of tile bounds for the Triton kernels: the smallest and largest element of each block.

A mask that is a tensor has no formula, so a kernel has to look at its elements to find empty tiles.
The device reads it once for each graph. It stores the smallest and largest element of every block
of BOUNDS_TILE rows and columns: a thousandth of the mask's size.
"""

from __future__ import annotations

import torch
from torch import Tensor

BOUNDS_TILE = 32  # a smaller tile is not worth skipping


def tile_bounds(operand: Tensor, rows: int | None, columns: int | None) -> Tensor:
    """The smallest and the largest elements, [2, ...], by blocks of the dims `rows` and `columns`.

    rows, columns: The dims of the operand for queries and keys, or None if it lacks them. A block
    with a NaN has NaN.
    """
    blocks = operand.to(torch.uint8) if operand.dtype == torch.bool else operand
    inside: list[int] = []
    for dim in sorted(dim for dim in (rows, columns) if dim is not None):
        at = dim + len(inside)
        blocks = _filled(blocks, at)
        blocks = blocks.unflatten(at, (blocks.shape[at] // BOUNDS_TILE, BOUNDS_TILE))
        inside.append(at + 1)
    # One reduction of both dimensions, and the cast before the stack: Inductor makes one kernel.
    return torch.stack([end(blocks, inside).to(operand.dtype) for end in (torch.amin, torch.amax)])


def _filled(operand: Tensor, dim: int) -> Tensor:
    """The last block is filled up by the last element."""
    length = operand.shape[dim]
    count = (length + BOUNDS_TILE - 1) // BOUNDS_TILE
    index = torch.arange(count * BOUNDS_TILE, device=operand.device).clamp(max=length - 1)
    filled: Tensor = torch.ops.aten.index.Tensor(operand, [None] * dim + [index])
    return filled
