"""Prefetch the first data of the CTA's next tile to the L2 cache, in the last steps of this tile.

Otherwise the next tile would wait for global memory when it begins. The data comes in pieces of
about 64 rows, some in each step. TMA is not used, because it loads what the current steps wait for.
An earlier prefetch is worse, as the cache is nearly full (docs/lab/2026-11-26-ahead.md).
"""

from typing import Any

from cutlass import Constexpr, Int32, Int64, const_expr, cute, range_constexpr

from ...backward.walk import ResidentTile
from ...operands import Matrix
from .shapes import HALF
from .turns import Turns

# Two halves of K and V, and two tiles of Q and dO ("o"), in the order in which they are needed.
PIECES = ("k", 0), ("k", 1), ("q", 0), ("v", 0), ("v", 1), ("o", 0), ("q", 1), ("o", 1)
AT_ONCE = 2  # pieces in a step
STEPS = len(PIECES) // AT_ONCE
LANES, LINE = 32, 64  # lanes of a warp, numbers in a line of the cache


class NextTile:
    """Prefetches the next tile. matrices: Q, K, V and dO in global memory, by letter.

    There is no prefetch in two cases. If a side is jagged or a mask skips tiles, the next tile
    takes longer to find. If aux operands have an element for each score, it was not measured.
    """

    def __init__(self, walk: Turns, matrices: dict[str, Matrix]) -> None:
        self.walk, self.matrices = walk, matrices
        c, masks = walk.ranges.config, walk.ranges.skips
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
                address = begin + (row * Int64(matrix.strides[2]) + column)
                fetch_line(address)

    def height(self, name: str) -> int:
        return HALF if name in "kv" else self.walk.heights.streamed

    def place(self, tile: ResidentTile, name: str, part: int) -> tuple[Any, Any, Any]:
        """(first row of a piece, number of rows of its sequence, head)."""
        if name in "kv":
            return tile.first + part * HALF, tile.rows, tile.head
        block = self.walk.block(tile, self.walk.entry(tile), part)
        head = self.walk.streamed_head(tile, 0)
        return block * self.walk.heights.streamed, tile.length, head


def fetch_line(pointer: Any) -> None:
    """Prefetch a cache line to L2."""
    cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[pointer.toint()])
