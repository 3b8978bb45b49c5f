"""The load warp: K and V once for each key tile, Q, dO and a bias once for each step, by TMA.

The L2 cache is nearly full. So data that no CTA will read again is evicted first: K and V, and Q
and dO when the last key tile loads them. Meanwhile the first data of the next tile is prefetched to
the cache (`next_tile.py`).
"""

from typing import Any

from cutlass import Int32, Int64, const_expr, cute

from ...backward.walk import ResidentTile
from ...operands import EVICT_FIRST, EVICT_NORMAL, Matrix, Tiles
from ...values import select
from .next_tile import NextTile
from .roles import HopperSignals
from .turns import Turns


class HopperBackwardLoads:
    """The load warp.

    tiles:     The tiles of "q", "k", "v", "o" (dO) and, if TMA loads an aux operand, "a".
    matrices:  The first four in global memory.
    hulls:     Memory for the query tiles that each key tile meets (`backward.stored`), or None.
    """

    def __init__(
        self, walk: Turns, signals: HopperSignals, tiles: dict[str, Tiles],
        matrices: dict[str, Matrix], hulls: Any = None,
    ) -> None:  # fmt: skip
        self.walk, self.signals, self.tiles, self.hulls = walk, signals, tiles, hulls
        self.config, self.next_tile = walk.ranges.config, NextTile(walk, matrices)

    @cute.jit
    def run(self):
        """Load for all tiles of the CTA."""
        tile_step, step, deal = Int32(0), Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry = self.walk.entry(tile)
            if const_expr(self.hulls is not None):
                self.walk.note(tile, self.hulls)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for i in range(tile.end - tile.begin):
                    block = self.walk.block(tile, entry, i)
                    last = self.walk.meets_last(tile, block)
                    new = (turn == 0) & (i == 0)
                    if new:
                        self.resident("k", tile, tile_step)
                    self.streamed("q", tile, head, block, step, last)
                    if new:
                        self.resident("v", tile, tile_step)
                    self.streamed("o", tile, head, block, step, last)
                    if const_expr("a" in self.tiles):
                        if new:
                            self.signals.empty["x"].wait(tile_step)
                        self.scores("a", tile, head, block, step)
                    step += 1
                    left = tile.steps - turn * (tile.end - tile.begin) - i
                    self.next_tile.fetch(deal, left)
            if tile.steps > 0:
                tile_step += 1
            deal += 1

    def resident(self, name: str, tile: ResidentTile, step: Any) -> None:
        rows = (tile.start, tile.first, tile.rows)
        self.copy(name, rows, tile.head, tile, step, policy=self.unless_shared(name, EVICT_FIRST))

    def streamed(
        self, name: str, tile: ResidentTile, head: Any, block: Any, step: Any, last: Any
    ) -> None:
        """Load Q or dO of a query tile. last: No other key tile meets it afterwards."""
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        policy = select(last, Int64(EVICT_FIRST), Int64(EVICT_NORMAL))
        self.copy(name, rows, head, tile, step, policy=self.unless_shared(name, policy))

    def unless_shared(self, name: str, policy: Any) -> Any:
        """The cache policy, or None for a matrix that all batches share: it is read again."""
        return None if name in self.config.shared else policy

    def scores(self, name: str, tile: ResidentTile, head: Any, block: Any, step: Any) -> None:
        """Load the tile of an aux operand: the rows of the query tile, the columns of the keys."""
        rows = (Int32(0), block * self.walk.heights.streamed, tile.length)
        column = tile.first // self.walk.heights.resident
        self.copy(name, rows, head, tile, step, column)

    def copy(
        self, name: str, rows: Any, head: Any, tile: ResidentTile, step: Any, column: Any = 0,
        policy: Any = None,
    ) -> None:  # fmt: skip
        """Load a tile.

        rows: (first row of the sequence, row of the tile in it, rows of the sequence). step: The
        number of the load, for the signals.
        """
        (start, row, end), full, tiles = rows, self.signals.full[name], self.tiles[name]
        self.signals.empty[name].wait_before(step)
        full.expect(step, tiles.size)
        place = (start, row, end, head, tile.batch, full.index(step))
        tiles.copy(*place, full.at(step), column, policy)
