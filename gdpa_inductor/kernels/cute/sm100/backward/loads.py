"""The load warp: TMA of the resident operands once per tile, of the streamed ones once per step."""

from typing import Any

from cutlass import Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync

from ...backward.walk import ResidentTile, Walk


class BackwardLoads:
    """Fills the buffers rA, tA, rB, tB in the order in which the products want them. hulls: where
    the key tiles are noted that each query tile meets, if they are: see
    `backward.jagged_totals`."""

    def __init__(
        self, walk: Walk, signals: dict[str, Any], tiles: dict[str, Any], hulls: Any = None
    ) -> None:
        self.walk, self.signals, self.tiles, self.hulls = walk, signals, tiles, hulls

    @cute.jit
    def run(self):
        """All tiles of the CTA."""
        self.announce()
        tile_step, step, deal = Int32(0), Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            if const_expr(self.hulls is not None):
                self.walk.note(tile, self.hulls)
            for turn in range(tile.passes):
                for block in range(tile.begin, tile.end):
                    new = (turn == 0) & (block == tile.begin)
                    self.operands("A", tile, turn, block, tile_step, step, new)
                    self.operands("B", tile, turn, block, tile_step, step, new)
                    step += 1
            if tile.steps > 0:
                tile_step += 1
            deal += 1

    def announce(self) -> None:
        """The tensor maps, before they are needed."""
        for tiles in self.tiles.values():
            cpasync.prefetch_descriptor(tiles.atom)

    @cute.jit
    def operands(self, name, tile: ResidentTile, turn, block, tile_step, step, new):
        """The streamed operand of a step, before it the resident one of a new tile."""
        if new:
            if name == "A":
                self.signals["spent"].wait_before(tile_step)
            rows = (tile.start, tile.first, tile.rows)
            self.copy("r" + name, "resident_" + name, rows, tile.head, tile, tile_step)
        self.signals["free_" + name].wait_before(step)
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        head = self.walk.streamed_head(tile, turn)
        self.copy("t" + name, "streamed_" + name, rows, head, tile, step)

    def copy(
        self, name: str, signal: str, rows: Any, head: Any, tile: ResidentTile, step: Any
    ) -> None:
        """rows: first row of the sequence, row in it, rows of it."""
        full, tiles = self.signals[signal], self.tiles[name]
        full.expect(step, tiles.size)
        tiles.copy(*rows, head, tile.batch, full.index(step), full.at(step))
