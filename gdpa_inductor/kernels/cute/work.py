"""Where the sequences of a launch begin and how long they are, read on the device."""

from typing import Any

from cutlass import Int32

from .config import KernelConfig
from .values import larger, select, smaller


def totals(config: KernelConfig, sizes: Any) -> tuple[Any, Any]:
    """The total rows of queries and of keys, or (None, None).

    Kernels that clear rows themselves (`KernelConfig.clears`) must clamp offsets to these. In other
    kernels TMA clips accesses outside a matrix.
    """
    return (sizes[6], sizes[7]) if config.clears else (None, None)


def offset(offsets: Any, number: Any, total: Any = None) -> Any:
    """An element of `cu_seqlens`, clamped to [0, total] if the total rows are given."""
    row = Int32(offsets[number])
    return row if total is None else larger(smaller(row, Int32(total)), Int32(0))


def sequence_rows(offsets: Any, batch: Any, most: Any, total: Any = None) -> tuple[Any, Any]:
    """(first row, number of rows) of one side of a sequence.

    A sequence whose offsets decrease has no rows.

    Args:
        offsets: `cu_seqlens`, or None if the side is dense.
        most: The rows of a dense side, or `max_seqlen` of a jagged one.
        total: See `offset`.
    """
    if offsets is None:
        return Int32(0), Int32(most)
    start = offset(offsets, batch, total)
    rows = smaller(offset(offsets, batch + 1, total) - start, Int32(most))
    return start, select(rows < 0, 0, rows)
