"""The epilogue: a warpgroup stores O_t, by way of shared memory.

TMA drops rows past the end of the sequence. A tile without key blocks has sums of zero.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from ...operands import Tiles
from ...values import Fixed
from ..config import ROWS
from ..wgmma import share
from .roles import together


@dataclass
class HopperEpilogue(Fixed):
    """The epilogue of all query tiles."""

    pv: Any  # the tiled product of the sums
    o: Tiles  # of O, with a buffer for each query tile
    dtype: Any
    factor: float  # O is the sums times this

    @cute.jit
    def store(self, tile, t, thread, sums):
        # Store all existing rows of query tile t. The TMA copy is still in flight afterwards.
        halves = cute.make_rmem_tensor(sums.layout, self.dtype)
        values = sums.load()
        if cutlass.const_expr(self.factor != 1.0):
            values = values * self.factor
        halves.store(values.to(self.dtype))
        self.stored(thread)
        together(t)
        share(self.pv, halves, self.o.sX, t, thread)
        together(t)
        row = tile.row + t * ROWS
        if (thread < 32) & (row < tile.q_rows):
            self.o.store((tile.q_start, row, tile.q_rows), tile.head, tile.batch, t)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def stored(self, thread):
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # the copy has read the buffer

    @cute.jit
    def finish(self, thread):
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0)
