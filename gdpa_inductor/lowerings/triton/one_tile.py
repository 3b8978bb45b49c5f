"""The one-kernel backward for few queries: when it is chosen, and the size of its dQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._compat import shapes
from ...kernels.triton import one_tile, splits
from ...problem import Problem, Size
from .. import gpu

if TYPE_CHECKING:
    from .inputs import Inputs


def applies(o: Inputs) -> bool:
    """Whether this kernel runs a backward that wants dQ, dK and dV."""
    return not (o.grouped or o.shared - {"Q"}) and fits(o.problem)


def fits(p: Problem) -> bool:
    """Whether a problem fits this kernel. Symbolic sizes count by their hints, without a guard."""
    keys, dims = shapes.size_hint(p.cols), [shapes.size_hint(x) for x in (p.head_dim, p.value_dim)]
    if p.jagged or p.dtype.itemsize != 2 or keys is None or None in dims:
        return False
    most = one_tile.most_rows(max(dim or 0 for dim in dims))
    return keys >= one_tile.LEAST_KEYS and shapes.statically_known_true(p.rows <= most)


def tile_rows(p: Problem) -> int:
    """The rows of the tile: all that a sequence may have, also in later calls with other sizes."""
    lengths = (1 << power for power in range(4, 8))
    return next(rows for rows in lengths if shapes.statically_known_true(p.rows <= rows))


def shares(p: Problem) -> int:
    """Into how many shares the keys of a (batch, head) are cut."""
    known = [shapes.size_hint(x) for x in (p.batch, p.heads, p.rows, p.cols)]
    batch, heads, rows, keys = (size or 0 for size in known)
    if None in known:
        return 1
    partial = 4 * batch * heads * rows * int(p.head_dim)
    return splits.shares(batch * heads, keys, gpu.processors(p.device), partial)


def query_size(o: Inputs) -> tuple[tuple[Size, ...], torch.dtype]:
    """(size, dtype) of dQ as the kernel stores it: a part for each share, fp32 if summed later."""
    p, count = o.problem, shares(o.problem)
    dtype = torch.float32 if count > 1 or "Q" in o.shared else p.dtype
    return (count, p.batch, p.heads, p.rows, p.head_dim), dtype
