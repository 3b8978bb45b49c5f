"""The load warp at wide head dims: K and V come in parts, each with a buffer of its own.

With one query tile K of the next key block comes before V of this one. That is the order in which
the products read them (`AlternatingProducts`).
"""

from dataclasses import dataclass

import cutlass
from cutlass import cute, range_constexpr

from ...barriers import Cursor
from ...forward.loads import ForwardLoads
from ..config import COLS, Sm100Config


@dataclass
class PartLoads(ForwardLoads):
    """The load warp at wide head dims."""

    config: Sm100Config

    @cute.jit
    def run(self, scheduler):
        queries, keys = self.channels.queries, self.channels.keys
        at, q_at, k_at = scheduler.start(), tuple(x.start() for x in queries), keys.start()
        late = 2 - self.tiles  # how many key blocks later V comes
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            q_at = self.fetch_queries(tile, q_at)
            for block in cutlass.range(tile.first, tile.end + late, unroll=1):
                if block < tile.end:
                    k_at = self.fetch_keys(tile, block * COLS, k_at)
                if block >= tile.first + late:
                    k_at = self.fetch_values(tile, (block - late) * COLS, k_at)
            tile, at = scheduler.take_busy(at)
        for t in range_constexpr(self.tiles):
            queries[t].wait_all(q_at[t])
        keys.wait_all(k_at)

    @cute.jit
    def fetch_keys(self, tile, row, at: Cursor):
        """Load K of the block at `row`, some channels at a time. Returns the next place."""
        ring, rows = self.channels.keys, (tile.k_start, row, tile.k_rows)
        for part in range_constexpr(self.config.key_parts):
            self.fetch(self.k, rows, tile.key_head, tile.batch, ring, at, at.index, part)
            at = at.next()
        return at

    @cute.jit
    def fetch_values(self, tile, row, at: Cursor):
        """Load V of the block at `row`, some keys at a time. Returns the next place."""
        ring = self.channels.keys
        for part in range_constexpr(self.config.value_parts):
            rows = (tile.k_start, row + part * self.config.part_keys, tile.k_rows)
            self.fetch(self.v, rows, tile.value_head, tile.batch, ring, at, at.index)
            at = at.next()
        return at
