"""The backward of few rows in one kernel: whether it is taken, and where its dQ goes."""

from __future__ import annotations

from typing import Any

import torch

from ..._compat import lowering, shapes
from ...kernels.triton import one_tile, splits
from ...problem import Problem, Size
from .. import gpu
from .inputs import Inputs, block_dim


def taken(o: Inputs) -> bool:
    """Sizes count as they were at capture; no guard is added."""
    p = o.problem
    rows, keys = shapes.size_hint(p.rows), shapes.size_hint(p.cols)
    if p.jagged or o.grouped or o.shared - {"Q"} or not rows or not keys:
        return False
    if not shapes.statically_known_true(p.rows <= one_tile.ROWS):
        return False
    return one_tile.taken(rows, keys, max(map(int, (p.head_dim, p.value_dim))), p.dtype.itemsize)


def shares(p: Problem) -> int:
    """Into how many the keys of a (batch, head) are parted."""
    known = [shapes.size_hint(x) for x in (p.batch, p.heads, p.rows, p.cols)]
    batch, heads, rows, keys = (size or 0 for size in known)
    if None in known:
        return 1
    partial = 4 * batch * heads * rows * int(p.head_dim)
    return splits.shares(batch * heads, keys, gpu.processors(p.device), partial)


def query_size(o: Inputs) -> tuple[tuple[Size, ...], torch.dtype]:
    """Of dQ as the kernel stores it: a part for each share, in fp32 where they are added."""
    p, count = o.problem, shares(o.problem)
    dtype = torch.float32 if count > 1 or "Q" in o.shared else p.dtype
    return (count, p.batch, p.heads, p.rows, p.head_dim), dtype
