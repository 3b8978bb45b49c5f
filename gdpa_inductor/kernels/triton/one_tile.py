"""The backward in one kernel for few rows, which a tile holds. When it is taken, and its shares."""

from __future__ import annotations

ROWS = 64  # of a sequence, at most
LEAST_KEYS = 256  # of a sequence
WIDEST = 128  # head dim


def taken(rows: int, keys: int, widest: int, itemsize: int) -> bool:
    """Whether K and V are worth reading once only."""
    return rows <= ROWS and keys >= LEAST_KEYS and widest <= WIDEST and itemsize == 2
