"""The load warp: K and V once per tile, Q and dO once per step, by TMA. So is the operand of the
program that comes in tiles, if there is one."""

from typing import Any

from cutlass import Int32, const_expr, cute

from ...backward.walk import ResidentTile
from ...operands import Tiles
from .roles import HopperSignals
from .turns import Turns


class HopperBackwardLoads:
    """tiles: of the operands "q", "k", "v", "o" and, in tiles of scores, "a". hulls: where the
    query tiles are noted that each key tile meets, if they are: see `backward.jagged_totals`."""

    def __init__(
        self, walk: Turns, signals: HopperSignals, tiles: dict[str, Tiles], hulls: Any = None
    ) -> None:
        self.walk, self.signals, self.tiles, self.hulls = walk, signals, tiles, hulls

    @cute.jit
    def run(self):
        """All tiles of the CTA."""
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
                    new = (turn == 0) & (i == 0)
                    if new:
                        self.resident("k", tile, tile_step)
                    self.streamed("q", tile, head, block, step)
                    if new:
                        self.resident("v", tile, tile_step)
                    self.streamed("o", tile, head, block, step)
                    if const_expr("a" in self.tiles):
                        if new:
                            self.signals.empty["x"].wait(tile_step)
                        self.scores("a", tile, head, block, step)
                    step += 1
            if tile.steps > 0:
                tile_step += 1
            deal += 1

    def resident(self, name: str, tile: ResidentTile, step: Any) -> None:
        self.copy(name, (tile.start, tile.first, tile.rows), tile.head, tile, step)

    def streamed(self, name: str, tile: ResidentTile, head: Any, block: Any, step: Any) -> None:
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        self.copy(name, rows, head, tile, step)

    def scores(self, name: str, tile: ResidentTile, head: Any, block: Any, step: Any) -> None:
        """A tile of scores: the rows of the query tile, the columns of the keys."""
        rows = (Int32(0), block * self.walk.heights.streamed, tile.length)
        column = tile.first // self.walk.heights.resident
        self.copy(name, rows, head, tile, step, column)

    def copy(
        self, name: str, rows: Any, head: Any, tile: ResidentTile, step: Any, column: Any = 0
    ) -> None:
        """rows: first row of the sequence, row in it, rows of it."""
        (start, row, end), full, tiles = rows, self.signals.full[name], self.tiles[name]
        self.signals.empty[name].wait_before(step)
        full.expect(step, tiles.size)
        tiles.copy(start, row, end, head, tile.batch, full.index(step), full.at(step), column)
