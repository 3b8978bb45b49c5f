"""The backward in one kernel for few queries, which fit into one tile: when it is faster.

Measured on an H100 (torch 2.11, Triton 3.6), gelu, in ms beside "rows" and "keys", and CuTe:

    256 × 4 × 48 × 1024 × 128    0.40, 1.03, 0.87; a copy of as many bytes takes 0.36
    256 × 4 × 16 × 1024 × 128    0.39, 0.77
    4 × 4 × 48 × 8192 × 128      0.12, 0.48, 0.69
    512 × 4 × 96 × 1024 × 64     0.56, 0.62, 0.75, with a mask of keys
"""

from __future__ import annotations

from ..._compat import shapes
from ...kernels import devices
from ...kernels.triton import splits
from ...operands import Size
from ...problem import Problem

# (widest head dim, the most rows of a sequence). More rows do not fit into registers.
ROWS = ((64, 128), (128, 64))
LEAST_KEYS = 256  # the fewest keys of a sequence


def fits(p: Problem) -> bool:
    """Whether a problem fits this kernel. Symbolic sizes count by their hints, without a guard."""
    keys, dims = shapes.size_hint(p.cols), [shapes.size_hint(x) for x in (p.head_dim, p.value_dim)]
    if p.jagged or p.dtype.itemsize != 2 or keys is None or None in dims:
        return False
    widest = max(dim or 0 for dim in dims)
    most = next((rows for dim, rows in ROWS if widest <= dim), 0)
    return keys >= LEAST_KEYS and shapes.statically_known_true(p.rows <= most)


def tile_rows(p: Problem) -> int:
    """The rows of the tile: all that a sequence may have, also in later calls with other sizes."""
    lengths = (1 << power for power in range(4, 8))
    return next(rows for rows in lengths if shapes.statically_known_true(p.rows <= rows))


def shares(p: Problem, width: Size = 0) -> int:
    """Into how many shares the keys are cut, if all queries of a sequence are in one tile.

    Symbolic sizes count by their hints, without a guard. width: That of partial sums: by default
    the head dim, as those of dQ.
    """
    batch, heads, rows, keys = map(shapes.size_hint, p.sizes.values())
    if batch is None or heads is None or rows is None or keys is None:
        return 1
    written = shapes.size_hint(p.total_rows) if p.jagged_query else None
    partial = 4 * (written or batch * rows) * heads * int(width or p.head_dim)
    return splits.shares(batch * heads, keys, devices.processors(p.device), partial)
