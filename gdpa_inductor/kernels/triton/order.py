"""Which tile of a jagged side each CTA owns: a table that the device makes for itself.

No length is known on the host, so the grid is an upper bound and what is left over ends at once.
The tiles of one sequence are neighbours. The longest sequences may come first, so that no long one
is left at the end while the other multiprocessors are idle. Where nearly all sequences have the
greatest length there is no table: `Plan.direct`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WORK_TILE = 128  # rows per entry; the tiles of kernels are whole parts of it


def tile_order(cu_seqlens: Tensor, total: Any, longest: Any, few: bool) -> Tensor:
    """[total // WORK_TILE + B] int64: 2³² times the sequence, plus the work tile in it; or -1.

    cu_seqlens [B+1] over `total` rows, at most `longest` of a sequence take part. The work tiles of
    a sequence hold the rows that do. One is listed also where there are only rows that do not, so
    that these find a CTA which writes zeros. Rows that no sequence owns count as those of the last
    one.

    few: place the sequences by counting, B comparisons for each entry, in two small kernels. Then
    the longest come first, and what is left over is -1. Else by a search, in the order of the
    sequences; what is left over are work tiles behind a sequence's own.
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
    taken = (offsets[1:] - starts).clamp(max=longest)
    work_tiles = torch.maximum((taken + (WORK_TILE - 1)) // WORK_TILE, (owned > 0).to(torch.int64))
    # No two are equal, so to count what comes before takes one pass.
    rank = work_tiles * batch - number
    ends = torch.where(rank >= rank[:, None], work_tiles, 0).sum(1)
    begins, slots = ends - work_tiles, slot[:, None]
    entry = (number << 32) + slots - begins
    return torch.where((begins <= slots) & (slots < ends), entry, -1).amax(1)


def likely_offsets(batch: int, total: int, longest: int, device: torch.device | str) -> Tensor:
    """[batch+1] int64: sequences of the mean length, and as far around it, evenly, as `longest`
    allows, within `total` rows. For timing, where the lengths to come are not known."""
    mean = max(1, min(total // batch, longest))
    places = torch.arange(batch, dtype=torch.float64, device=device)
    around = 2 * (places * _GOLDEN % 1) - 1
    lengths = (mean + min(mean, longest - mean) * around).long()
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).clamp(max=total)


_GOLDEN = 0.618034  # its multiples, modulo 1, are spread evenly, however many there are
