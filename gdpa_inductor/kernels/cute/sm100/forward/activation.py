"""The activation warps: compute the weights P_t from the scores S_t, one warpgroup for each t.

With one query tile (`Sm100Config.tiles`) a warpgroup takes every other key block.

A thread owns one query row. Scores come from tensor memory 32 columns at a time, and the next 32
are in flight while these are computed. Weights go back as 16-bit numbers to the first half of the
columns of S_t. Those of part c take 16 columns from 16c on. Part c / 2 of the scores was there, and
is in registers by then.
"""

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute, range_constexpr

from ...barriers import Cursor
from ...forward.ranges import KeyRanges
from ...program import Program, Row
from ...values import Fixed, Pair, choose, pair
from ..config import COLS, ROWS, Sm100Config
from ..tensor_memory import ColumnLoads, ColumnStores, TensorMemoryRow, scores_done, scores_ready
from .roles import HANDED_OVER, Channels, scores_column

PART = 32  # columns of S_t in registers at a time
PARTS = COLS // PART


def weights_of(scores, row: Row, fetched, column, end):
    """The weights of `PART` scores from key `column` on."""
    weights, column = cute.make_rmem_tensor(PART, Float32), row.program.position(column)
    for i in range(0, PART, 2):
        kv_idx = Pair(column + i, column + (i + 1))
        (weight,) = row(Pair(scores[i], scores[i + 1]), kv_idx, fetched, i)
        if end is not None:  # program(0) may differ from 0
            weight = choose(Pair(*(x < end for x in kv_idx.lanes)), weight, 0.0)
        weights[i], weights[i + 1] = pair(weight).lanes
    return weights


@dataclass
class ForwardActivation(Fixed):
    """The role of the activation warps."""

    config: Sm100Config
    channels: Channels
    memory: TensorMemoryRow
    ranges: KeyRanges
    plain: Program  # for key blocks that need no mask
    careful: Program  # for all others

    @cute.jit
    def run(self, scheduler, t, thread):
        loads = ColumnLoads(self.memory, scores_column(t), PART, COLS)
        stores = ColumnStores(self.memory, scores_column(t), PART // 2, COLS // 2)
        at, s, one = scheduler.start(), Cursor(1), self.config.tiles == 1
        # turn: With one query tile, the warpgroup that takes the first block of the work tile.
        turn, query_tile = Int32(0), 0 if one else t
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            first = tile.row + query_tile * ROWS
            plain = Row(self.plain, tile, first + thread)
            careful = Row(self.careful, tile, first + thread)
            begin, step = (tile.first + (t ^ turn), 2) if one else (tile.first, 1)
            for block in cutlass.range(begin, tile.last(query_tile), step, unroll=1):
                column = block * COLS
                self.channels.scores.of(t).wait(s)
                scores_ready()
                if self.ranges.needs_no_mask(tile, first, column):
                    self.weigh(loads, stores, plain, t, s, column, None)
                else:
                    self.weigh(loads, stores, careful, t, s, column, tile.k_rows)
                s = s.next()
            if cutlass.const_expr(one):
                turn = turn ^ (tile.end - tile.first & 1)
            tile, at = scheduler.take_busy(at)

    @cute.jit
    def weigh(self, loads: ColumnLoads, stores: ColumnStores, row, t, s: Cursor, column, end):
        """Compute the weights of one key block, part by part, and hand them to the product warp."""
        following = loads.load(0)
        for part in range_constexpr(PARTS):
            first = column + part * PART
            operands = row.fetch(first, PART) if cutlass.const_expr(end is None) else {}
            cute.arch.fence_view_async_tmem_load()
            now = following
            if cutlass.const_expr(part + 1 < PARTS):
                following = loads.load(part + 1)
            stores.store(part, weights_of(now, row, operands, first, end))
            if cutlass.const_expr(part + 1 in HANDED_OVER):
                scores_done(stored=True)
                self.channels.weights[HANDED_OVER.index(part + 1)].of(t).arrive(s)
