"""Epilogue: O_t -> global memory, through shared memory, by the warpgroup that has the sums.

TMA drops the rows past the end of the sequence. Without key blocks the sums are zeros.
"""

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warp

from ...operands import Tiles
from ...values import Fixed
from ..config import ROWS
from .roles import together


class HopperEpilogue(Fixed):
    """pv: the product that makes the sums. o: the tiles of O, with a buffer for each query tile.
    factor: O over the sums."""

    def __init__(self, pv: Any, o: Tiles, dtype: Any, factor: float) -> None:
        self.pv, self.o, self.dtype, self.factor = pv, o, dtype, factor

    @cute.jit
    def store(self, tile, t, thread, sums):
        """All rows of query tile t that there are. The copy is on its way afterwards."""
        halves = cute.make_rmem_tensor(sums.layout, self.dtype)
        found = sums.load()
        if cutlass.const_expr(self.factor != 1.0):
            found = found * self.factor
        halves.store(found.to(self.dtype))
        self.stored(thread)
        together(t)
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_C(atom, self.pv)
        part = copy.get_slice(thread)
        cute.copy(copy, part.retile(halves), part.partition_D(self.o.sX)[None, None, None, t])
        cute.arch.fence_view_async_shared()
        together(t)
        row = tile.row + t * ROWS
        if (thread < 32) & (row < tile.q_rows):
            self.o.store(tile.q_start, row, tile.q_rows, tile.head, tile.batch, t)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def stored(self, thread):
        """Until the copy has read the buffer."""
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def finish(self, thread):
        """Until all is stored."""
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0)
