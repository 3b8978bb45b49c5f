"""What every kernel asks of the sequences of a launch, on the device."""

from typing import Any

from cutlass import Int32

from .config import KernelConfig
from .values import larger, select, smaller


def totals(config: KernelConfig, sizes: Any) -> tuple[Any, Any]:
    """The rows of both sides, where kernels clear rows themselves: no offset may lead past them.
    Otherwise TMA clips what leaves a matrix."""
    return (sizes[6], sizes[7]) if config.clears else (None, None)


def offset(offsets: Any, number: Any, total: Any = None) -> Any:
    """One of `cu_seqlens`. total: the rows of the matrix, which it is kept within if known."""
    found = Int32(offsets[number])
    return found if total is None else larger(smaller(found, Int32(total)), Int32(0))


def sequence_rows(offsets: Any, batch: Any, most: Any, total: Any = None) -> tuple[Any, Any]:
    """(first row, rows) of one side of a sequence.

    offsets: `cu_seqlens`, None where the side is dense. most: the rows of a dense side, and the
    most that a sequence may have on a jagged one. total: see `offset`. Offsets that decrease own
    nothing.
    """
    if offsets is None:
        return Int32(0), Int32(most)
    start = offset(offsets, batch, total)
    rows = smaller(offset(offsets, batch + 1, total) - start, Int32(most))
    return start, select(rows < 0, 0, rows)
