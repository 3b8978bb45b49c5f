"""Loads: Q_0 and Q_1 of a tile, then K and V of each of its key blocks, by TMA into rings."""

from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from ..barriers import Cursor, Each, Ring
from ..config import TILES, KernelConfig
from ..operands import Tiles
from ..values import Fixed


class ForwardLoads(Fixed):
    """channels: with the rings `queries` (one for each query tile) and `keys`. q, k, v: the tiles
    of the matrices."""

    def __init__(self, config: KernelConfig, channels: Any, q: Tiles, k: Tiles, v: Tiles) -> None:
        self.rows, self.cols = config.rows, config.cols
        self.channels, self.q, self.k, self.v = channels, q, k, v

    @cute.jit
    def run(self, scheduler):
        """The loop of the warp."""
        queries, keys = self.channels.queries, self.channels.keys
        at, q_at, k_at = scheduler.start(), Each(*(x.start() for x in queries)), keys.start()
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            for t in range_constexpr(TILES):
                if tile.first < tile.last(t):
                    rows = (tile.q_start, tile.row + t * self.rows, tile.q_rows)
                    stage = q_at[t].index * TILES + t
                    self.fetch(self.q, rows, tile.head, tile.batch, queries[t], q_at[t], stage)
                    q_at = q_at.but(t, q_at[t].next())
            for block in cutlass.range(tile.first, tile.end, unroll=1):
                rows = (tile.k_start, block * self.cols, tile.k_rows)
                self.fetch(self.k, rows, tile.key_head, tile.batch, keys, k_at, k_at.index)
                k_at = k_at.next()
                self.fetch(self.v, rows, tile.value_head, tile.batch, keys, k_at, k_at.index)
                k_at = k_at.next()
            tile, at = scheduler.take_busy(at)
        for t in range_constexpr(TILES):
            queries[t].wait_all(q_at[t])
        keys.wait_all(k_at)

    @cute.jit
    def fetch(self, tiles: Tiles, rows, head, batch, ring: Ring, at: Cursor, stage):
        start, row, end = rows
        ring.empty.wait_before(at)
        ring.full.expect(at, tiles.size)
        tiles.copy(start, row, end, head, batch, stage, ring.full.at(at))
