"""Tables that the device makes for the kernels: which tile a CTA owns, and bounds of tiles.

`tile_order` says which tile of a jagged side each CTA owns. The host knows no length, so the grid
is an upper bound, and CTAs without a tile end at once. The tiles of a sequence are neighbours. The
longest sequences may come first. Otherwise a long one could be left at the end, while other
multiprocessors are idle. If nearly all sequences have the greatest length, there is no table
(`Plan.direct`).

`tile_bounds` has the smallest and the largest element of each block of an aux operand. A mask that
is a tensor has no formula, so a kernel has to look at its elements to find empty tiles. The device
reads it once for each graph. It stores the bounds of every block of BOUNDS_TILE rows and columns: a
thousandth of the mask's size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WORK_TILE = 128  # rows of an entry; the tile sizes of kernels divide it
BOUNDS_TILE = 32  # a smaller tile is not worth skipping
_GOLDEN = 0.618034  # its multiples, modulo 1, are spread evenly, however many there are


def tile_order(cu_seqlens: Tensor, total: Any, longest: Any, few: bool) -> Tensor:
    """The table, int64 [total // WORK_TILE + B]. An entry is 2³² · sequence + its work tile, or -1.

    The work tiles of a sequence hold its first `longest` rows. A sequence has at least one work
    tile, so that a CTA writes zeros to its other rows. Rows that no sequence owns count as rows of
    the last one.

    Args:
        cu_seqlens: The offsets, [B+1].
        total: All rows.
        longest: How many rows of a sequence are computed.
        few: Sort the sequences by counting, with B comparisons for each entry, in two small
            kernels. Then the longest come first, and unused entries are -1. Otherwise a search
            keeps the order of the sequences, and unused entries are past the end of a sequence.
    """
    offsets = cu_seqlens.to(torch.int64)
    batch = offsets.shape[0] - 1
    starts, number = offsets[:-1], torch.arange(batch, device=offsets.device)
    slot = torch.arange(total // WORK_TILE + batch, device=offsets.device)
    if not few:  # from one of these to the next there is room for the work tiles of any length
        begins = (starts - offsets[0]) // WORK_TILE + number
        place = torch.searchsorted(begins, slot, right=True) - 1
        return (place << 32) + slot - begins[place]
    owned = torch.where(number == batch - 1, total + offsets[0], offsets[1:]) - starts
    computed = (offsets[1:] - starts).clamp(max=longest)
    work_tiles = torch.maximum(
        (computed + (WORK_TILE - 1)) // WORK_TILE, (owned > 0).to(torch.int64)
    )
    # No two are equal, so to count what comes before takes one pass.
    rank = work_tiles * batch - number
    ends = torch.where(rank >= rank[:, None], work_tiles, 0).sum(1)
    begins, slots = ends - work_tiles, slot[:, None]
    entry = (number << 32) + slots - begins
    return torch.where((begins <= slots) & (slots < ends), entry, -1).amax(1)


def likely_offsets(batch: int, total: int, longest: int, device: torch.device | str) -> Tensor:
    """Offsets for timing kernels, when the real lengths are not known. int64 [batch + 1]."""
    # Lengths are spread evenly around the mean, as far as `longest` allows.
    mean = max(1, min(total // batch, longest))
    places = torch.arange(batch, dtype=torch.float64, device=device)
    around = 2 * (places * _GOLDEN % 1) - 1
    lengths = (mean + min(mean, longest - mean) * around).long()
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).clamp(max=total)


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
