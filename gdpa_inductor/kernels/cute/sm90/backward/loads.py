"""The load warp: K and V once for each key tile, Q, dO and a bias once for each step, by TMA.

The L2 cache is nearly full. So data that no CTA will read again is evicted first: K and V, and Q
and dO when the last key tile loads them. Meanwhile the first data of the next tile is prefetched to
the cache (`NextTile`), so that it need not wait for global memory when it begins. The data comes in
pieces of about 64 rows, some in each step. TMA is not used, because it loads what the current steps
wait for. An earlier prefetch is worse (docs/lab/2026-11-26-ahead.md).
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Constexpr, Int32, Int64, const_expr, cute, range_constexpr

from ...backward.turns import Turns
from ...backward.walk import ResidentTile
from ...operands import EVICT_FIRST, EVICT_NORMAL, Matrix, Tiles
from ...values import Fixed, select
from .roles import HALF, HopperSignals

# Two halves of K and V, and two tiles of Q and dO ("o"), in the order in which they are needed.
PIECES = ("k", 0), ("k", 1), ("q", 0), ("v", 0), ("v", 1), ("o", 0), ("q", 1), ("o", 1)
AT_ONCE = 2  # pieces in a step
STEPS = len(PIECES) // AT_ONCE
LANES, LINE = 32, 64  # lanes of a warp, numbers in a line of the cache


@dataclass
class NextTile(Fixed):
    """Prefetches the next tile. matrices: Q, K, V and dO in global memory, by letter.

    There is no prefetch in two cases. If a side is jagged or a mask skips tiles, the next tile
    takes longer to find. If aux operands have an element for each score, it was not measured.
    """

    walk: Turns
    matrices: dict[str, Matrix]

    def __post_init__(self) -> None:
        c, masks = self.walk.ranges.config, self.walk.ranges.skips
        self.shared, self.comes = c.shared, c.lags and not (c.jagged_q or c.jagged_k or masks)

    @cute.jit
    def fetch(self, deal, left):
        """Prefetch some pieces of the tile of the next round.

        left: The steps of this tile that are left, with the one that was loaded last.
        """
        more = self.walk.number(deal + 1) < self.walk.count
        if const_expr(self.comes):  # noqa: SIM102 (decided at compile time)
            if more & (left <= STEPS):
                tile = self.walk.at(deal + 1)
                for number, (name, part) in enumerate(PIECES):
                    if left == STEPS - number // AT_ONCE:
                        self.piece(tile, name, part)

    @cute.jit
    def piece(self, tile: ResidentTile, name: Constexpr, part: Constexpr):
        """Prefetch a piece. Each lane takes one cache line at a time."""
        matrix, height = self.matrices[name], self.height(name)
        first, rows, head = self.place(tile, name, part)
        batch = Int32(0) if name in self.shared else tile.batch
        begin, across = matrix.row(0, first, head, batch), -(-matrix.width // LINE)
        for i in range_constexpr(height * across // LANES):
            line = cute.arch.lane_idx() + i * LANES
            row, column = line // across, line % across * LINE
            if first + row < rows:
                fetch_line(begin + (row * Int64(matrix.strides[2]) + column))

    def height(self, name: str) -> int:
        return HALF if name in "kv" else self.walk.heights.streamed

    def place(self, tile: ResidentTile, name: str, part: int) -> tuple[Any, Any, Any]:
        """(first row of a piece, number of rows of its sequence, head)."""
        if name in "kv":
            return tile.first + part * HALF, tile.rows, tile.head
        block = self.walk.block(tile, self.walk.entry(tile), part)
        head = self.walk.streamed_head(tile, 0)
        return block * self.walk.heights.streamed, tile.length, head


def fetch_line(pointer) -> None:
    cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[pointer.toint()])


@dataclass
class HopperBackwardLoads(Fixed):
    """The load warp."""

    walk: Turns
    signals: HopperSignals
    tiles: dict[str, Tiles]  # of "q", "k", "v", "o" (dO) and, if TMA loads an aux operand, "a"
    matrices: dict[str, Matrix]  # the first four in global memory
    hulls: Any = None  # memory for the query tiles that each key tile meets (`jagged_biases`)

    def __post_init__(self) -> None:
        self.config, self.next_tile = self.walk.ranges.config, NextTile(self.walk, self.matrices)

    @cute.jit
    def run(self):
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

    def resident(self, name: str, tile: ResidentTile, step) -> None:
        rows = (tile.start, tile.first, tile.rows)
        self.copy(name, rows, tile.head, tile, step, policy=self.unless_shared(name, EVICT_FIRST))

    def streamed(self, name: str, tile: ResidentTile, head, block, step, last) -> None:
        """Load Q or dO of a query tile. last: No other key tile meets it afterwards."""
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        policy = select(last, Int64(EVICT_FIRST), Int64(EVICT_NORMAL))
        self.copy(name, rows, head, tile, step, policy=self.unless_shared(name, policy))

    def unless_shared(self, name: str, policy):
        # A matrix that all batches share is read again.
        return None if name in self.config.shared else policy

    def scores(self, name: str, tile: ResidentTile, head, block, step) -> None:
        rows = (Int32(0), block * self.walk.heights.streamed, tile.length)
        column = tile.first // self.walk.heights.resident
        self.copy(name, rows, head, tile, step, column=column)

    def copy(self, name: str, rows, head, tile: ResidentTile, step, **more) -> None:
        """Load a tile. step: The number of the load, for the signals."""
        full = self.signals.full[name]
        self.signals.empty[name].wait_before(step)
        self.tiles[name].load(rows, head, tile.batch, full.index(step), full, step, **more)
