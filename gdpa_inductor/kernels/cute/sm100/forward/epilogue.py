"""The epilogue: a warpgroup of its own stores O_t in global memory.

A thread owns one query row. Rows past the end of the sequence are not stored. A tile without key
blocks has no sums, so zeros are stored.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Int64, cute, range_constexpr

from ...barriers import but
from ...config import VECTOR
from ...values import Fixed
from ..config import ROWS, Sm100Config
from ..tensor_memory import ColumnLoads, TensorMemoryRow, scores_done, scores_ready
from .roles import Channels, sums_column

PART = 32  # columns of O_t in registers at a time


@dataclass
class OutputMatrix(Fixed):
    """O in global memory."""

    pointer: Any
    strides: Any  # (batch, head, row)
    width: int
    dtype: Any

    def row(self, tile, q_idx, jagged: bool):
        sb, sh, sr = (Int64(s) for s in self.strides)
        place = sh * tile.head + sr * (tile.q_start + q_idx)
        if not jagged:
            place += sb * tile.batch
        return cute.make_ptr(
            self.dtype, (self.pointer + place).toint(), cute.AddressSpace.gmem, assumed_align=16
        )

    def store(self, row, part: int, sums) -> None:
        """Store 32 columns of a row, from 32·part on. sums: fp32 registers, or None for zeros."""
        values = cute.make_rmem_tensor(PART, self.dtype)
        values.fill(0.0) if sums is None else values.store(sums.load().to(self.dtype))
        for first in range(0, min(PART, self.width - part * PART), VECTOR):
            target = cute.make_tensor(row + (part * PART + first), cute.make_layout(VECTOR))
            source = cute.make_tensor(values.iterator + first, cute.make_layout(VECTOR))
            cute.autovec_copy(source, target)


@dataclass
class Epilogue(Fixed):
    """The role of the epilogue warps."""

    channels: Channels
    memory: TensorMemoryRow
    output: OutputMatrix
    config: Sm100Config

    @cute.jit
    def run(self, scheduler, thread):
        # All tiles are seen, as a tile without keys has to store zeros.
        sums = self.channels.sums
        at, o = scheduler.start(), tuple(x.start() for x in sums)
        tile, at = scheduler.take(at)
        while tile.valid == 1:
            for t in range_constexpr(self.config.tiles):
                if tile.first < tile.last(t):
                    sums[t].full.wait(o[t])
                    scores_ready()
                    self.store(tile, t, o[t], thread, True)
                    scores_done(stored=False)
                    sums[t].empty.arrive(o[t])
                    o = but(o, t, o[t].next())
                else:
                    self.store(tile, t, o[t], thread, False)
            tile, at = scheduler.take(at)

    @cute.jit
    def store(self, tile, t: Constexpr, o, thread, summed: Constexpr):
        q_idx = tile.row + t * ROWS + thread
        row = self.output.row(tile, q_idx, self.config.jagged_q)
        width = self.config.padded_value_dim
        column = sums_column(self.config, t, o.index)
        sums = ColumnLoads(self.memory, column, PART, width)
        for part in range_constexpr(width // PART):
            values = None
            if cutlass.const_expr(summed):
                values = sums.load(part)
                cute.arch.fence_view_async_tmem_load()
            if q_idx < tile.q_rows:
                self.output.store(row, part, values)
