"""Which key blocks the query tiles of a work tile meet, and which of these need no mask.

The scheduler's warp computes the ranges and publishes them with the work tile.
"""

import functools
import operator
from typing import Any

import cutlass
from cutlass import Int32, cute

from ....program.simplify import both as both_hold
from ..backward.roots import terms_of
from ..config import KernelConfig, TileSize, classes
from ..operands import KernelArguments
from ..places import unchecked
from ..ranges import LANES, TileClass, both, ends_are_bare, lowest, past, span
from ..values import Fixed, larger, select, smaller


class KeyRanges(Fixed):
    """The key blocks that query tiles meet, by the conditions of `program.tile_classes`."""

    def __init__(self, config: KernelConfig, x: KernelArguments) -> None:
        roots, size = terms_of(config), TileSize(config.rows, config.cols)
        conditions = classes(config, roots)
        self.config = config
        self.rows, self.cols, self.tiles = config.rows, config.cols, config.tiles
        self.skips, self.full_terms = config.skip and conditions.skips, conditions.full_terms
        inside = unchecked(config).condition
        self.zero, self.full, self.in_tables = (
            TileClass(term, config, x, conditions.bounds, size)
            for term in (conditions.zero, both_hold(conditions.full, inside), inside)
        )
        self.bare = ends_are_bare(config, ("p", "r"), roots, self.full_terms)

    def holds(self, condition: TileClass, tile, row, column):
        """Whether a condition holds for the tile from query `row` and key `column` on."""
        rows, columns = span(row, self.rows, tile.q_rows), span(column, self.cols, tile.k_rows)
        return condition.holds(tile.batch, tile.head, rows, columns)

    def needs_no_mask(self, tile, row, column):
        """Whether a tile of scores is whole, so that the terms without a mask serve."""
        # With bare ends this is always true. A literal made ptxas serialize the products of fp16.
        inside = column < tile.k_rows if self.bare else column + self.cols <= tile.k_rows
        if self.config.lookups:  # of rows past the end, places may be outside of a table
            inside = inside & (row + self.rows <= tile.q_rows)
        return both(inside, self.holds(self.full, tile, row, column))

    def needs_no_check(self, tile, row, column):
        """Whether a tile of scores is whole, and its places of tables are inside of them."""
        whole = (column + self.cols <= tile.k_rows) & (row + self.rows <= tile.q_rows)
        return both(whole, self.holds(self.in_tables, tile, row, column))

    @cute.jit
    def blocks(self, tile):
        """(first, last(0), last(1), ...): query tile t meets the key blocks [first, last(t))."""
        # A whole warp calls it.
        count = (tile.k_rows + (self.cols - 1)) // self.cols
        first, lasts = Int32(0), (count, *self.below(tile, count))
        if cutlass.const_expr(self.skips):
            first, lasts = count, (Int32(0),) * self.tiles
            for base in cutlass.range(0, count, LANES, unroll=1):
                votes = self.votes(tile, base, count)
                either = functools.reduce(operator.or_, votes)
                if either != 0:
                    first = smaller(first, base + lowest(either))
                lasts = self.followed(lasts, votes, base)
            first = smaller(first, functools.reduce(larger, lasts))
        return first, *lasts

    def below(self, tile, count):
        """Without a mask: the ends of the key blocks of query tiles 1, 2, ..."""
        rows = (tile.row + t * self.rows for t in range(1, self.tiles))
        return [select(row < tile.q_rows, count, 0) for row in rows]

    def votes(self, tile, base, count):
        rows = (tile.row + t * self.rows for t in range(self.tiles))
        return [self.live(tile, row, base, count) for row in rows]

    def followed(self, lasts, votes, base) -> tuple[Any, ...]:
        """The ends of the ranges so far, moved past the blocks that were found."""
        pairs = zip(votes, lasts, strict=True)
        return tuple(select(bits != 0, base + past(bits), last) for bits, last in pairs)

    def live(self, tile, row, base, count):
        """A vote over 32 key blocks: which are not empty for the query tile at `row`."""
        block = base + cute.arch.lane_idx()
        zero = self.holds(self.zero, tile, row, block * self.cols)
        return cute.arch.vote_ballot_sync((block < count) & (row < tile.q_rows) & (zero == 0))
