"""The load warp: TMA loads resident operands once for each tile, streamed ones for each step."""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync

from ...backward.walk import ResidentTile, Walk
from ...values import Fixed


@dataclass
class BackwardLoads(Fixed):
    """The load warp. It fills the buffers rA, tA, rB and tB in the order of the products."""

    walk: Walk
    signals: dict[str, Any]
    tiles: dict[str, Any]
    hulls: Any = None  # memory for the key tiles that each query tile meets (`jagged_biases`)

    @cute.jit
    def run(self):
        for tiles in self.tiles.values():
            cpasync.prefetch_descriptor(tiles.tma[0])
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

    @cute.jit
    def operands(self, name, tile: ResidentTile, turn, block, tile_step, step, new):
        """Load the streamed operand of a step; before it the resident one, if the tile is new."""
        if new:
            if name == "A":
                self.signals["spent"].wait_before(tile_step)
            rows = (tile.start, tile.first, tile.rows)
            self.copy("r" + name, "resident_" + name, rows, tile.head, tile, tile_step)
        self.signals["free_" + name].wait_before(step)
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        head = self.walk.streamed_head(tile, turn)
        self.copy("t" + name, "streamed_" + name, rows, head, tile, step)

    def copy(self, name: str, signal: str, rows, head, tile: ResidentTile, step) -> None:
        full = self.signals[signal]
        self.tiles[name].load(rows, head, tile.batch, full.index(step), full, step)
