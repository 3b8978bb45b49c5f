"""The backward in one kernel for few rows, which a tile holds: when it is the faster one.

Measured on an H100 (torch 2.11, Triton 3.6), gelu, in ms beside "rows" and "keys", and CuTe:

    256 × 4 × 48 × 1024 × 128    0.40, 1.03, 0.87; a copy of as many bytes takes 0.36
    256 × 4 × 16 × 1024 × 128    0.39, 0.77
    4 × 4 × 48 × 8192 × 128      0.12, 0.48, 0.69
    512 × 4 × 96 × 1024 × 64     0.56, 0.62, 0.75, with a mask of keys
"""

from __future__ import annotations

# Of a sequence at most, by the widest head dim up to which. More do not fit into registers.
ROWS = ((64, 128), (128, 64))
LEAST_KEYS = 256  # of a sequence


def most_rows(widest: int) -> int:
    """Of a sequence; 0 where the kernel is not for such heads."""
    return next((rows for dim, rows in ROWS if widest <= dim), 0)
