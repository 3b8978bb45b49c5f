"""Where the sequences of a launch begin and how long they are, read on the device.

`Gaps` stores zeros in the rows of a jagged output or gradient that no tile covers:

- the rows before the first sequence and after the last one,
- the rows of a sequence past `max_seqlen`,
- in dQ, also the queries of sequences without keys.

Most calls have no gaps. So the host does not clear the matrix before the launch. A warp of each CTA
looks for gaps and stores the zeros. Offsets are clamped, so that none leads out of the matrix.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from .config import VECTOR, KernelConfig
from .operands import Matrix, numbers
from .ranges import LANES, lowest
from .values import Fixed, larger, select, smaller


def totals(config: KernelConfig, sizes) -> tuple[Any, Any]:
    """The total rows of queries and of keys, or (None, None)."""
    # Kernels that clear rows themselves (`KernelConfig.clears`) must clamp offsets to these. In
    # other kernels TMA clips accesses outside a matrix.
    return (sizes[6], sizes[7]) if config.clears else (None, None)


def offset(offsets, number, total=None):
    """An element of `cu_seqlens`, clamped to [0, total] if the total rows are given."""
    row = Int32(offsets[number])
    return row if total is None else larger(smaller(row, Int32(total)), Int32(0))


def sequence_rows(offsets, batch, most, total=None) -> tuple[Any, Any]:
    """(first row, number of rows) of one side of a sequence. If offsets decrease there are no rows.

    offsets: `cu_seqlens`, or None if the side is dense. most: The rows of a dense side, or
    `max_seqlen` of a jagged one.
    """
    if offsets is None:
        return Int32(0), Int32(most)
    start = offset(offsets, batch, total)
    rows = smaller(offset(offsets, batch + 1, total) - start, Int32(most))
    return start, select(rows < 0, 0, rows)


class Gaps(Fixed):
    """The gaps of one side, of which sequences have `most` rows that the kernel computes.

    others: (`cu_seqlens`, `max_seqlen`, total rows) of the other side, or None. If given, a
    sequence without rows on the other side is a gap as a whole.
    """

    def __init__(self, offsets, batch, most, others=None) -> None:
        self.offsets, self.batch, self.most, self.others = offsets, batch, most, others
        self.cta, self.ctas = (Int32(x()[0]) for x in (cute.arch.block_idx, cute.arch.grid_dim))

    @cute.jit
    def clear(self, matrix: Matrix):
        """Clear all gaps. One whole warp of each CTA calls it."""
        self.fill(matrix, self.cta, offset(self.offsets, 0, matrix.rows), self.ctas)
        self.inside(matrix)
        last = offset(self.offsets, self.batch, matrix.rows)
        self.fill(matrix, last + self.cta, Int32(matrix.rows), self.ctas)

    @cute.jit
    def inside(self, matrix: Matrix):
        """Clear the gaps within sequences. The CTAs share these; a lane looks at one of them."""
        for base in cutlass.range(self.cta, self.batch, LANES * self.ctas, unroll=1):
            number = base + cute.arch.lane_idx() * self.ctas
            begin, end = self.gap(smaller(number, self.batch - 1), matrix.rows)
            left = cute.arch.vote_ballot_sync((number < self.batch) & (begin < end))
            while left != 0:
                lane = lowest(left)
                ends = (cute.arch.shuffle_sync(x, lane) for x in (begin, end))
                self.fill(matrix, *ends, Int32(1))
                left = left & (left - 1)

    def gap(self, number, total) -> tuple[Any, Any]:
        """The gap of a sequence, as a half-open range of rows."""
        start, rows = sequence_rows(self.offsets, number, self.most, total)
        if self.others is not None:
            _, met = sequence_rows(self.others[0], number, *self.others[1:])
            rows = select(met == 0, 0, rows)
        return start + rows, offset(self.offsets, number + 1, total)

    @cute.jit
    def fill(self, matrix: Matrix, begin, end, step):
        """Store zeros in every `step`-th row of [begin, end)."""
        count = min(VECTOR, matrix.width)  # row sums have one number for each head
        zeros = cute.make_rmem_tensor(count, matrix.pointer.dtype)
        zeros.fill(0)
        width = matrix.width // count
        _, sh, sr = (Int64(s) for s in matrix.strides)
        for row in cutlass.range(begin, end, step, unroll=1):
            for i in cutlass.range(cute.arch.lane_idx(), matrix.heads * width, LANES, unroll=1):
                place = row * sr + i // width * sh + i % width * count
                cute.autovec_copy(zeros, numbers(matrix.pointer + place, count))
