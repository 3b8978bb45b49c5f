"""Which tile of a jagged side each program owns: a table that the device makes for itself.

No length is known on the host, so the grid is an upper bound and what is left over ends at once.
The tiles of one sequence are neighbours; the longest sequences may come first, so that no long one
is left at the end while the other multiprocessors are idle.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GRANULE = 128  # rows per entry; tiles are whole parts of it


def tile_order(cu_seqlens: Tensor, total: Any, longest: Any, longest_first: bool) -> Tensor:
    """[total // GRANULE + B] int64: 2³² times the sequence, plus the granule in it; -1 for none.

    cu_seqlens [B+1] over `total` rows, at most `longest` of a sequence take part. The granules of a
    sequence hold the rows that do; one is listed also where there are only rows that do not, so
    that these find a program which writes zeros. Rows that no sequence owns count as the last's.
    """
    offsets = cu_seqlens.to(torch.int64)
    batch = offsets.shape[0] - 1
    starts, number = offsets[:-1], torch.arange(batch, device=offsets.device)
    owned = torch.where(number == batch - 1, total + offsets[0], offsets[1:]) - starts
    taken = (offsets[1:] - starts).clamp(max=longest)
    granules = torch.maximum((taken + (GRANULE - 1)) // GRANULE, (owned > 0).to(torch.int64))
    if longest_first:
        number = torch.argsort(granules, descending=True, stable=True)
        granules = granules[number]
    ends = granules.cumsum(0)
    slot = torch.arange(total // GRANULE + batch, device=offsets.device)
    place = torch.searchsorted(ends, slot, right=True)
    known = place.clamp(max=batch - 1)
    entry = (number[known] << 32) + slot - (ends - granules)[known]
    return torch.where(place < batch, entry, -1)
