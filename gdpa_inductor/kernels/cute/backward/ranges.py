"""Which streamed tiles a resident tile meets, by the conditions of `program.tile_classes`.

Each role of the warps computes this for itself when it comes to a tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, cute

from ....program.expr import GRAD, Expr, call
from ....program.simplify import both as both_hold
from ..config import KernelConfig, TileSize, classes
from ..operands import KernelArguments
from ..places import unchecked
from ..ranges import LANES, TileClass, both, ends_are_bare, lowest, past, span
from ..values import Fixed, smaller
from .roots import roots_of, row_gradient
from .walk import ResidentTile


@dataclass(frozen=True)
class Heights:
    """The rows of a resident tile, and of a streamed one."""

    resident: int
    streamed: int
    ctas: int = 1  # how many own a resident tile together, each as many of its rows


class StreamedRanges(Fixed):
    """The streamed tiles that a resident tile meets. keys: The resident tiles are key tiles."""

    def __init__(
        self, config: KernelConfig, keys: bool, heights: Heights, x: KernelArguments
    ) -> None:
        self.config, self.keys, self.heights = config, keys, heights
        roots = roots_of(config.program, keys, config.stored)
        conditions = classes(config, roots)
        sides = (heights.streamed, heights.resident)
        size = TileSize(*(sides if keys else sides[::-1]))
        self.skips, self.full_terms = config.skip and conditions.skips, conditions.full_terms
        self.masks = self.full_terms != roots  # the program has a mask
        flows = map(_flow, (roots, self.full_terms))
        self.bare = keys and ends_are_bare(config, ("p", "ds"), *flows)
        places = unchecked(config).condition
        self.zero, self.full, self.in_tables = (
            TileClass(term, config, x, conditions.bounds, size)
            for term in (conditions.zero, both_hold(conditions.full, places), places)
        )
        self.per_head = "h" in config.mod.axes_of([conditions.zero])

    @property
    def selects(self) -> bool:
        """dS has to be set to zero wherever the slope is zero.

        dP · 0 is not zero if dP is infinite or NaN. Under a mask dP may be either. Past the end of
        a sequence one factor of dP is zero, and the other may be infinite. The latter matters only
        if dS is stored. A gradient of row sums may have an infinite factor there.
        """
        of_rows = row_gradient(self.config.program) is not None
        return self.masks or self.config.notes or of_rows

    def holds(self, condition: TileClass, tile: ResidentTile, first, head, block):
        """Whether a condition holds for the resident tile from row `first` on and streamed tile
        `block`.
        """
        resident = span(first, self.heights.resident, tile.rows)
        streamed = span(block * self.heights.streamed, self.heights.streamed, tile.length)
        sides = (streamed, resident) if self.keys else (resident, streamed)
        return condition.holds(tile.batch, head, *sides)

    def lives(self, tile: ResidentTile, first, head, block):
        # Some root may differ from zero.
        return self.holds(self.zero, tile, first, head, block) == 0

    def needs_no_mask(self, tile: ResidentTile, head, block):
        """Whether a tile of scores is whole, so that the terms without a mask serve."""
        inside = Boolean(True) if self.bare else self.inside(tile, block)
        return both(inside, self.holds(self.full, tile, tile.first, head, block))

    def needs_no_check(self, tile: ResidentTile, head, block):
        """Whether a tile of scores is whole, and its places of tables are inside of them."""
        known = self.holds(self.in_tables, tile, tile.first, head, block)
        return both(self.inside(tile, block), known)

    def inside(self, tile: ResidentTile, block):
        height = self.heights
        last = (block + 1) * height.streamed
        return (tile.first + height.resident <= tile.rows) & (last <= tile.length)

    @cute.jit
    def hull(self, tile: ResidentTile, head, group, count):
        """(begin, end) of the streamed tiles that a resident tile meets. A whole warp calls it."""
        # All query heads of a group share this range. So a mask that varies from head to head skips
        # nothing if the group has several heads.
        begin, end = Int32(0), Int32(count)
        if cutlass.const_expr(self.skips):
            begin, end = self.classified(tile, head, count)
            if cutlass.const_expr(self.per_head):
                alone = Int32(group == 1)
                begin, end = begin * alone, count + (end - count) * alone
        return begin, end

    @cute.jit
    def classified(self, tile: ResidentTile, head, count):
        begin, end = Int32(count), Int32(0)
        for base in cutlass.range(0, count, LANES, unroll=1):
            block = base + cute.arch.lane_idx()
            live = (block < count) & self.lives(tile, tile.first, head, block)
            votes = cute.arch.vote_ballot_sync(live)
            if votes != 0:
                begin = smaller(begin, base + lowest(votes))
                end = base + past(votes)
        return smaller(begin, end), end

    @cute.jit
    def living(self, tile: ResidentTile, head, block, index, count):
        """Which resident tiles of a sequence are not empty at streamed tile `block`."""
        # Returns (how many before number `index`, how many after it, whether number `index` is
        # one). A whole warp calls it. count: How many resident tiles the sequence has.
        below, above, here = Int32(0), Int32(0), Boolean(False)
        for base in cutlass.range(0, count, LANES, unroll=1):
            other = base + cute.arch.lane_idx()
            live = self.lives(tile, other * self.heights.resident, head, block) & (other < count)
            below += _votes(live & (other < index))
            above += _votes(live & (other > index))
            here = here | (_votes(live & (other == index)) > 0)
        return below, above, here


def _flow(roots: Sequence[Expr]) -> tuple[Expr, Expr]:
    slope, weight = roots
    return weight, call("mul", GRAD, slope)


def _votes(holds):
    return Int32(cute.arch.popc(cute.arch.vote_ballot_sync(holds)))
