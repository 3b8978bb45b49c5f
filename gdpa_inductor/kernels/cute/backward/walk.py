"""The tiles of a CTA in a backward: which resident tiles it owns, and what streams past each.

CTAs are persistent, and tiles are dealt to them back and forth: first to last CTA, then last to
first. Every role of the warps walks the same tiles by itself. A tile is a few integers computed
from its number, so roles hand nothing to each other. The tiles of a head have consecutive numbers.
So CTAs that run at the same time stream the same rows.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, cute

from ..operands import KernelArguments
from ..sequences import sequence_rows, totals
from ..values import Fixed, select


@dataclass
class ResidentTile:
    """One resident tile."""

    batch: Any  # the number of its sequence
    slot: Any  # the place of its sequence in the order in which sequences are dealt
    head: Any  # its head, in the resident operands
    first: Any  # its first row, counted within the sequence
    rows: Any  # how many rows the sequence has on the resident side
    start: Any  # the first row of the sequence in a jagged operand of this side
    length: Any  # how many rows the sequence has on the streamed side
    origin: Any  # the first row of the sequence in a jagged operand of that side
    passes: Any  # how many heads stream past, one after the other
    # begin, end: the streamed tiles of each pass, half open
    begin: Any = None
    end: Any = None
    descends: Any = False  # the streamed tiles come from the last to the first (`turns`)

    @property
    def steps(self):
        # in all passes
        return (self.end - self.begin) * self.passes


class Walk(Fixed):
    """The tiles of one launch. keys: The resident tiles are key tiles, otherwise query tiles."""

    def __init__(self, keys: bool, x: KernelArguments, ranges) -> None:
        _, heads, key_heads, _, rows, cols, *_, self.dealt = x.sizes
        cu_q, cu_k, self.order = x.cu_q, x.cu_k, x.order
        self.keys, self.ranges, self.heights = keys, ranges, ranges.heights
        self.group, self.query_heads = heads // key_heads, heads
        self.heads = key_heads if self.keys else heads
        q_total, k_total = totals(ranges.config, x.sizes)
        sides = [(cu_k, cols, k_total), (cu_q, rows, q_total)]
        self.resident, self.streamed = sides if self.keys else sides[::-1]
        self.jagged = self.resident[0] is not None
        self.blocks = tiles_of(self.resident[1], self.heights.resident)
        self.count = self.blocks * self.heads * self.dealt
        # CTAs that own a tile together count as one.
        together, cta, ctas = self.heights.ctas, cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        self.rank = cta % together if together > 1 else 0
        self.cta, self.ctas = Int32(cta // together), Int32(ctas // together)

    def block_of(self, number):
        return number % self.blocks

    @property
    def streamed_tiles(self):
        # the most that a sequence may have
        return tiles_of(self.streamed[1], self.heights.streamed)

    def number(self, turn):
        # Numbers from `count` on are not tiles.
        place = select(turn % 2 == 1, self.ctas - 1 - self.cta, self.cta)
        return turn * self.ctas + place

    def at(self, turn) -> ResidentTile:
        number = self.number(turn)
        block, rest = self.block_of(number), number // self.blocks
        head, slot = rest % self.heads, rest // self.heads
        if self.ranges.config.batch_first:
            head, slot = rest // self.dealt, rest % self.dealt
        batch = slot if self.order is None else Int32(self.order[slot])
        (start, rows), (origin, length) = (
            sequence_rows(cu, batch, most, total)
            for cu, most, total in (self.resident, self.streamed)
        )
        passes = self.group if self.keys else 1
        first = block * self.heights.resident
        tile = ResidentTile(batch, slot, head, first, rows, start, length, origin, passes)
        tile.begin, tile.end = self.range(tile)
        return tile

    def range(self, tile: ResidentTile) -> tuple[Any, Any]:
        """(begin, end) of the streamed tiles. There are none if the tile is past its sequence."""
        there = Int32(tile.first < tile.rows)
        count = tiles_of(tile.length, self.heights.streamed) * there
        head = self.streamed_head(tile, 0) if self.keys else tile.head
        return self.ranges.hull(tile, head, self.group, count)

    def streamed_head(self, tile: ResidentTile, turn):
        # With resident keys it is the turn-th query head of the group. With resident queries it is
        # the key head of the query head.
        return tile.head * self.group + turn if self.keys else tile.head // self.group

    def note(self, tile: ResidentTile, hulls) -> None:
        """Store (begin, end) of a tile in `hulls` (`jagged_biases`). A whole warp calls it."""
        unit = Int64(tile.slot * self.heads + tile.head) * self.blocks
        place = hulls + (unit + tile.first // self.heights.resident) * 2
        with cute.arch.elect_one():
            place[0], place[1] = Int32(tile.begin), Int32(tile.end)

    def own(self, tile: ResidentTile):
        """The first row that this CTA owns."""
        return tile.first + self.rank * (self.heights.resident // self.heights.ctas)

    def entry(self, tile: ResidentTile):
        """The streamed tile with which each pass of this tile begins."""
        return tile.begin

    def block(self, tile: ResidentTile, entry, step):
        """The streamed tile of a step of a pass."""
        return entry + step

    def place(self, tile: ResidentTile, turn) -> tuple[Any, Any]:
        """(batch, query head) of the scores in pass `turn`."""
        return tile.batch, self.streamed_head(tile, turn) if self.keys else tile.head


def tiles_of(rows, height: int):
    return (rows + (height - 1)) // height
