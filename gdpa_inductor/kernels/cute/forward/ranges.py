"""Which key blocks a pair of query tiles meets, and which of them need no mask.

The scheduler's warp asks, and passes the answer on with the tile.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute

from ....program.tile_classes import classify
from ..config import KernelConfig
from ..ranges import LANES, TileClass, ends_are_bare, lowest, past, span
from ..values import Fixed, is_literal, larger, select, smaller


class KeyRanges(Fixed):
    """The classes of the query tiles of one kernel."""

    def __init__(self, config: KernelConfig, aux: Any, scalars: Any) -> None:
        classes = classify([config.mod.weight], config.mod.aux)
        self.rows, self.cols = config.rows, config.cols
        self.skips, self.full_terms = config.skip and classes.skips, classes.full_terms
        self.zero, self.full = (
            TileClass(term, config, aux, scalars) for term in (classes.zero, classes.full)
        )
        self.bare = ends_are_bare(config, [config.mod.weight], self.full_terms)

    def holds(self, found: TileClass, tile: Any, row: Any, column: Any) -> Any:
        """A class of one query tile and one block of keys; a bool if it is constant."""
        rows, columns = span(row, self.rows, tile.q_rows), span(column, self.cols, tile.k_rows)
        return found.holds(tile.batch, tile.head, rows, columns)

    def needs_no_mask(self, tile: Any, row: Any, column: Any) -> Any:
        """Whether the full terms do, on one query tile and one block of keys."""
        # Always so where ends are bare. As a literal it would serialize products of fp16 (ptxas).
        inside = column < tile.k_rows if self.bare else column + self.cols <= tile.k_rows
        full = self.holds(self.full, tile, row, column)
        if is_literal(full):
            return inside if full else Boolean(False)
        return inside & full

    @cute.jit
    def blocks(self, tile):
        """(first, last_0, last_1): the key blocks of each query tile, half open; by a whole
        warp."""
        count = (tile.k_rows + (self.cols - 1)) // self.cols
        first, last_0 = Int32(0), count
        last_1 = select(tile.row + self.rows < tile.q_rows, count, 0)
        if cutlass.const_expr(self.skips):
            first, last_0, last_1 = count, Int32(0), Int32(0)
            for base in cutlass.range(0, count, LANES, unroll=1):
                found_0 = self.live(tile, tile.row, base, count)
                found_1 = self.live(tile, tile.row + self.rows, base, count)
                found = found_0 | found_1
                if found != 0:
                    first = smaller(first, base + lowest(found))
                last_0 = select(found_0 != 0, base + past(found_0), last_0)
                last_1 = select(found_1 != 0, base + past(found_1), last_1)
            first = smaller(first, larger(last_0, last_1))
        return first, last_0, last_1

    def live(self, tile, row, base, count):
        """Of the blocks base.., one per lane, which are not zero for the query tile from `row`
        on."""
        block = base + cute.arch.lane_idx()
        zero = self.holds(self.zero, tile, row, block * self.cols)
        return cute.arch.vote_ballot_sync((block < count) & (row < tile.q_rows) & (zero == 0))
