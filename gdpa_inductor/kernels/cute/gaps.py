"""Zeros where no sequence is: the rows of a jagged output or gradient that no tile covers.

They lie before the first sequence, behind the last, and in a sequence past `max_seqlen` rows. Of dQ
they are also the queries of sequences without keys. Most calls have none. So nothing is cleared
ahead: a warp of each CTA looks, and stores what is missing. No offset leads out of the matrix.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from .config import VECTOR
from .operands import Matrix, vector
from .ranges import LANES, lowest
from .values import Fixed, select, smaller
from .work import offset, sequence_rows


class Gaps(Fixed):
    """Of one side. offsets: `cu_seqlens`. batch: the sequences. most: the rows of one that take
    part. others: `cu_seqlens` of the other side, its most and all its rows, if sequences that have
    none there take no part at all."""

    def __init__(self, offsets: Any, batch: Any, most: Any, others: Any = None) -> None:
        self.offsets, self.batch, self.most, self.others = offsets, batch, most, others
        self.cta, self.ctas = (Int32(x()[0]) for x in (cute.arch.block_idx, cute.arch.grid_dim))

    @cute.jit
    def clear(self, matrix: Matrix):
        """By a whole warp of each CTA."""
        self.fill(matrix, self.cta, offset(self.offsets, 0, matrix.rows), self.ctas)
        self.inside(matrix)
        last = offset(self.offsets, self.batch, matrix.rows)
        self.fill(matrix, last + self.cta, Int32(matrix.rows), self.ctas)

    @cute.jit
    def inside(self, matrix: Matrix):
        """The rows of sequences. Each lane looks at one; the CTAs share them."""
        for base in cutlass.range(self.cta, self.batch, LANES * self.ctas, unroll=1):
            number = base + cute.arch.lane_idx() * self.ctas
            begin, end = self.gap(smaller(number, self.batch - 1), matrix.rows)
            left = cute.arch.vote_ballot_sync((number < self.batch) & (begin < end))
            while left != 0:
                lane = lowest(left)
                ends = (cute.arch.shuffle_sync(x, lane) for x in (begin, end))
                self.fill(matrix, *ends, Int32(1))
                left = left & (left - 1)

    def gap(self, number: Any, total: Any) -> tuple[Any, Any]:
        """The rows of a sequence that take no part, half open."""
        start, rows = sequence_rows(self.offsets, number, self.most, total)
        if self.others is not None:
            _, met = sequence_rows(self.others[0], number, *self.others[1:])
            rows = select(met == 0, 0, rows)
        return start + rows, offset(self.offsets, number + 1, total)

    @cute.jit
    def fill(self, matrix: Matrix, begin, end, step):
        """Zeros in every `step`-th row from `begin` on."""
        zeros = cute.make_rmem_tensor(VECTOR, matrix.pointer.dtype)
        zeros.fill(0)
        width = matrix.width // VECTOR
        _, sh, sr = (Int64(s) for s in matrix.strides)
        for row in cutlass.range(begin, end, step, unroll=1):
            for i in cutlass.range(cute.arch.lane_idx(), matrix.heads * width, LANES, unroll=1):
                place = row * sr + i // width * sh + i % width * VECTOR
                cute.autovec_copy(zeros, vector(matrix.pointer + place))
