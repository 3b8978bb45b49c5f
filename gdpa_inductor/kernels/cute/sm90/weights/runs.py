"""The tiles of a CTA: each CTA takes an equal run of them, in order.

A tile of scores has the queries of all warpgroups and 64 keys. Tiles are numbered along the keys,
then along the queries, the heads and the batch. So a CTA loads queries only where its run comes to
other ones. Where a mask skips tiles, the host launches more CTAs than run at once (`launch`).
"""

import functools
from typing import Any, NamedTuple

from cutlass import Int32, cute

from ...forward.ranges import KeyRanges
from ...operands import KernelArguments
from ...values import Fixed, larger, smaller
from ..config import ROWS, Sm90Weights


class Run(NamedTuple):
    """Neighbouring tiles with the same queries.

    row:           The first query.
    begin, end:    The key tiles.
    first, last:   Those of them that are computed. The program is zero on all others.
    """

    batch: Any
    head: Any
    key_head: Any
    value_head: Any
    row: Any
    q_rows: Any
    k_rows: Any
    begin: Any
    end: Any
    first: Any
    last: Any
    q_start: int = 0  # both sides are dense
    k_start: int = 0


class Runs(Fixed):
    """The runs of this CTA. Each role of the warps computes them for itself."""

    def __init__(self, config: Sm90Weights, x: KernelArguments, ranges: KeyRanges) -> None:
        self.batch, self.heads, self.key_heads, self.value_heads, self.rows, self.keys = x.sizes[:6]
        self.ranges, self.height, self.width = ranges, config.tiles * ROWS, config.cols
        self.across = (self.keys + (self.width - 1)) // self.width
        self.down = (self.rows + (self.height - 1)) // self.height

    def share(self) -> tuple[Any, Any]:
        """The numbers [begin, end) of the tiles of this CTA."""
        ctas, cta = cute.arch.grid_dim()[0], cute.arch.block_idx()[0]
        count = self.batch * self.heads * self.down * self.across
        each, more = count // ctas, count % ctas
        begin, end = (n * each + smaller(n, more) for n in (cta, cta + 1))
        return begin, end

    def at(self, number, end) -> Run:
        """The run that begins with a tile, up to the tile `end` of the CTA. A whole warp calls."""
        line, column = number // self.across, number % self.across
        unit, row = line // self.down, line % self.down * self.height
        batch, head = unit // self.heads, unit % self.heads
        key_head = head // (self.heads // self.key_heads)
        value_head = head // (self.heads // self.value_heads)
        behind = smaller(self.across, column + (end - number))
        sides = (row, Int32(self.rows), Int32(self.keys))
        run = Run(batch, head, key_head, value_head, *sides, column, behind, column, behind)
        first, *lasts = self.ranges.blocks(run)
        if self.ranges.skips:
            first = smaller(larger(column, first), behind)
            last = larger(smaller(behind, functools.reduce(larger, lasts)), first)
            run = run._replace(first=first, last=last)
        return run
