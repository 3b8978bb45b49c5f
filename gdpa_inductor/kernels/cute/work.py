"""What every kernel asks of the sequences of a launch, on the device."""

from typing import Any

from cutlass import Int32

from .values import select, smaller


def sequence_rows(offsets: Any, batch: Any, most: Any) -> tuple[Any, Any]:
    """(first row, rows) of one side of a sequence.

    offsets: `cu_seqlens`, None where the side is dense. most: the rows of a dense side, and the
    most that a sequence may have on a jagged one. Offsets that decrease own nothing.
    """
    if offsets is None:
        return Int32(0), Int32(most)
    start = Int32(offsets[batch])
    rows = smaller(Int32(offsets[batch + 1]) - start, Int32(most))
    return start, select(rows < 0, 0, rows)
