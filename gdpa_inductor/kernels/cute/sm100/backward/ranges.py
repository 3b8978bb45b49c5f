"""Which streamed tiles a resident tile meets. Each role asks when it comes to a tile."""

from typing import Any

import cutlass
from cutlass import Int32, cute

from .....program.expr import postorder
from .....program.tile_classes import classify
from ...ranges import LANES, TileClass, lowest, past, span
from ...values import Fixed, smaller
from ..config import ROWS, Sm100Config
from .program import roots_of
from .tiles import ResidentTile


class StreamedRanges(Fixed):
    """The range of a tile of one side, as a function of the tile and how many tiles there are."""

    def __init__(self, config: Sm100Config, keys: bool, aux: Any, scalars: Any) -> None:
        self.keys = keys
        classes = classify(roots_of(config, keys), config.mod.aux)
        self.skips = config.skip and classes.skips
        self.zero = TileClass(classes.zero, config, aux, scalars)
        self.per_head = any(
            node.op == "h" or (node.op == "aux" and "h" in self.zero.program.access(node))
            for node in postorder([classes.zero])
        )

    def dead(self, tile: ResidentTile, head: Any, block: Any) -> Any:
        """Whether every root is zero on streamed tile `block`; a bool if that is constant."""
        resident = span(tile.first, ROWS, tile.rows)
        streamed = span(block * ROWS, ROWS, tile.length)
        sides = (streamed, resident) if self.keys else (resident, streamed)
        return self.zero.holds(tile.batch, head, *sides)

    @cute.jit
    def hull(self, tile: ResidentTile, head, group, count):
        """(begin, end) of the streamed tiles; by a whole warp. A mask that differs from head to
        head skips nothing where several heads stream past."""
        begin, end = Int32(0), Int32(count)
        if cutlass.const_expr(self.skips):
            begin, end = self.classified(tile, head, count)
            if cutlass.const_expr(self.per_head):
                alone = Int32(group == 1)
                begin, end = begin * alone, count + (end - count) * alone
        return begin, end

    @cute.jit
    def classified(self, tile: ResidentTile, head, count):
        """The hull of the tiles that live; empty if none does."""
        begin, end = Int32(count), Int32(0)
        for base in cutlass.range(0, count, LANES, unroll=1):
            block = base + cute.arch.lane_idx()
            live = (block < count) & (self.dead(tile, head, block) == 0)
            found = cute.arch.vote_ballot_sync(live)
            if found != 0:
                begin = smaller(begin, base + lowest(found))
                end = base + past(found)
        return smaller(begin, end), end
