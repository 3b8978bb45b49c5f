"""Which key blocks of a tile matter, and which need no mask: the classes of
`program.tile_classes`, evaluated on the device.

The scheduler's warp classifies 32 key blocks at a time, one per lane, and the tile takes the hull
of those that are not zero. No block mask is made, and nothing is read on the host."""

from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute

from .....program.tile_classes import classify
from ...program import Program
from ...values import Fixed, is_literal, larger, pair, select, smaller
from ..config import COLS, ROWS, Sm100Config

LANES = 32


class KeyRanges(Fixed):
    """The classes of the query tiles of one kernel."""

    def __init__(self, config: Sm100Config, aux: Any, scalars: Any) -> None:
        self.classes = classify([config.mod.weight], config.mod.aux)
        self.skips = config.skip and self.classes.skips
        self.zero, self.full = (
            Program(config, aux, scalars, [root]) for root in (self.classes.zero, self.classes.full)
        )

    def holds(self, program: Program, tile: Any, row: Any, column: Any) -> Any:
        """A class of one query tile and one block of keys; a bool if it is constant."""
        bounds = {
            "q_idx_lo": row, "q_idx_hi": smaller(row + (ROWS - 1), tile.q_rows - 1),
            "kv_idx_lo": column, "kv_idx_hi": smaller(column + (COLS - 1), tile.k_rows - 1),
        }  # fmt: skip
        places = {"b": tile.batch, "h": tile.head}
        (value,) = program.evaluate(
            {**places, **bounds}, lambda node: pair(program.read(node, places))
        )
        return value if is_literal(value) else value.lanes[0]

    def needs_no_mask(self, tile: Any, row: Any, column: Any) -> Any:
        """Whether the full terms do, on one query tile and one block with all its keys."""
        inside = column + COLS <= tile.k_rows
        full = self.holds(self.full, tile, row, column)
        if is_literal(full):
            return inside if full else Boolean(False)
        return inside & full

    @cute.jit
    def blocks(self, tile):
        """(first, last_0, last_1): the key blocks of each query tile, half open; by a whole
        warp."""
        count = (tile.k_rows + (COLS - 1)) // COLS
        first, last_0 = Int32(0), count
        last_1 = select(tile.row + ROWS < tile.q_rows, count, 0)
        if cutlass.const_expr(self.skips):
            first, last_0, last_1 = count, Int32(0), Int32(0)
            for base in cutlass.range(0, count, LANES, unroll=1):
                found_0 = self.live(tile, tile.row, base, count)
                found_1 = self.live(tile, tile.row + ROWS, base, count)
                found = found_0 | found_1
                if found != 0:
                    first = smaller(first, base + cute.arch.popc((found & -found) - 1))
                last_0 = select(found_0 != 0, base + past(found_0), last_0)
                last_1 = select(found_1 != 0, base + past(found_1), last_1)
            first = smaller(first, larger(last_0, last_1))
        return first, last_0, last_1

    def live(self, tile, row, base, count):
        """Of the blocks base.., one per lane, which are not zero for the query tile from `row`
        on."""
        block = base + cute.arch.lane_idx()
        zero = self.holds(self.zero, tile, row, block * COLS)
        return cute.arch.vote_ballot_sync((block < count) & (row < tile.q_rows) & (zero == 0))


def past(bits):
    """The number of the highest bit, plus one."""
    return LANES - Int32(cute.arch.clz(bits))
