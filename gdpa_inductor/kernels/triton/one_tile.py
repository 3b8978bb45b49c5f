"""The backward in one kernel for few queries, which fit into one tile: when it is faster.

Measured on an H100 (torch 2.11, Triton 3.6), gelu, in ms beside "rows" and "keys", and CuTe:

    256 × 4 × 48 × 1024 × 128    0.40, 1.03, 0.87; a copy of as many bytes takes 0.36
    256 × 4 × 16 × 1024 × 128    0.39, 0.77
    4 × 4 × 48 × 8192 × 128      0.12, 0.48, 0.69
    512 × 4 × 96 × 1024 × 64     0.56, 0.62, 0.75, with a mask of keys
"""

from __future__ import annotations

# (widest head dim, the most rows of a sequence). More rows do not fit into registers.
ROWS = ((64, 128), (128, 64))
LEAST_KEYS = 256  # the fewest keys of a sequence


def most_rows(widest: int) -> int:
    """The most queries of a sequence at this head dim, or 0 if the kernel does not take it."""
    return next((rows for dim, rows in ROWS if widest <= dim), 0)
