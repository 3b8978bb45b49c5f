"""Which resident tiles a CTA owns, in which order, and which streamed tiles each of them meets.

The grid is persistent and static: tiles are dealt to the CTAs back and forth. Every role walks the
same sequence by itself. A tile is a few integers computed from its number, so nothing is handed
from role to role. The tiles of one head are neighbours, so that CTAs that run together stream the
same rows.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, cute

from ..values import select
from ..work import sequence_rows, totals


@dataclass
class ResidentTile:
    """One resident tile.

    batch, head     of the resident operands
    slot            the number of its sequence in the order in which they are dealt
    first           its first row in the sequence
    rows, start     how many rows the sequence has, and where it begins in a jagged operand
    length, origin  the same of the streamed side
    passes          how many heads stream past
    begin, end      the streamed tiles of one pass
    descends        it meets the last of them first (sm90 only)
    """

    batch: Any
    slot: Any
    head: Any
    first: Any
    rows: Any
    start: Any
    length: Any
    origin: Any
    passes: Any
    begin: Any = None
    end: Any = None
    descends: Any = False

    @property
    def steps(self) -> Any:
        """The streamed tiles of all passes."""
        return (self.end - self.begin) * self.passes


class Walk:
    """The tiles of one launch.

    sizes, offsets: as the kernels take them. ranges: `StreamedRanges`.
    """

    def __init__(self, keys: bool, sizes: Any, offsets: Any, ranges: Any) -> None:
        _, heads, key_heads, _, rows, cols, *_, self.dealt = sizes
        cu_q, cu_k, self.order = offsets
        self.keys, self.ranges, self.heights = keys, ranges, ranges.heights
        self.group, self.query_heads = heads // key_heads, heads
        self.heads = key_heads if self.keys else heads
        q_total, k_total = totals(ranges.config, sizes)
        sides = [(cu_k, cols, k_total), (cu_q, rows, q_total)]
        self.resident, self.streamed = sides if self.keys else sides[::-1]
        self.jagged = self.resident[0] is not None
        self.blocks = tiles_of(self.resident[1], self.heights.resident)
        self.count = self.blocks * self.heads * self.dealt
        self.cta = Int32(cute.arch.block_idx()[0])
        self.ctas = Int32(cute.arch.grid_dim()[0])

    def block_of(self, number: Any) -> Any:
        """Which tile of its head."""
        return number % self.blocks

    @property
    def streamed_tiles(self) -> Any:
        """The most that a sequence has."""
        return tiles_of(self.streamed[1], self.heights.streamed)

    def number(self, turn: Any) -> Any:
        """The tile that the CTA takes in a turn; there is none from `count` on."""
        place = select(turn % 2 == 1, self.ctas - 1 - self.cta, self.cta)
        return turn * self.ctas + place

    def at(self, turn: Any) -> ResidentTile:
        """The tile of a turn."""
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
        """The streamed tiles that it meets: none past the end of its sequence, else those that the
        mask leaves."""
        there = Int32(tile.first < tile.rows)
        count = tiles_of(tile.length, self.heights.streamed) * there
        head = self.streamed_head(tile, 0) if self.keys else tile.head
        return self.ranges.hull(tile, head, self.group, count)

    def streamed_head(self, tile: ResidentTile, turn: Any) -> Any:
        """keys side: the turn-th query head of the group; rows side: the key head of the query."""
        return tile.head * self.group + turn if self.keys else tile.head // self.group

    def note(self, tile: ResidentTile, hulls: Any) -> None:
        """The streamed tiles that it meets, to Int32 [slots, heads, tiles, 2]; by a whole warp."""
        unit = Int64(tile.slot * self.heads + tile.head) * self.blocks
        place = hulls + (unit + tile.first // self.heights.resident) * 2
        with cute.arch.elect_one():
            place[0], place[1] = Int32(tile.begin), Int32(tile.end)

    def place(self, tile: ResidentTile, turn: Any) -> tuple[Any, Any]:
        """(batch, query head) of a score."""
        return tile.batch, self.streamed_head(tile, turn) if self.keys else tile.head


def tiles_of(rows: Any, height: int) -> Any:
    """How many tiles hold so many rows."""
    return (rows + (height - 1)) // height
