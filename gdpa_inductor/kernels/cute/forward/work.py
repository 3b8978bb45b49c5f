"""Turn the number of a work tile into its sequence, head, rows and keys.

A unit is one head of one sequence. The tiles of a unit have consecutive numbers, so that CTAs that
run at the same time read the same keys. Jagged sequences read their lengths from the offsets on the
device (`Queue`). How dense tiles are numbered depends on their costs:

- No tile skips key blocks: tiles cost the same. They are dealt in rounds, if the configuration says
  so (`Rounds`).
- Tiles skip key blocks, and there are few units. Under a causal mask the last rows cost most. So
  the last rows of the units come first, and the tiles that are dealt last are cheap. Units are
  taken in groups, so that more CTAs read the same keys at once. A group has whole rounds of tiles,
  so that each CTA gets the same number.
- Tiles skip key blocks, and there are many units. The costs balance by themselves. The tiles of a
  unit stay together, so that its keys are not read from memory again and again.
"""

import functools
import operator
from typing import Any, NamedTuple

from cutlass import Int32, Int64, cute

from ..config import KernelConfig
from ..operands import KernelArguments
from ..sequences import sequence_rows, totals
from ..values import Fixed, larger, select, smaller
from .scheduler import WorkTile


class RowRange(NamedTuple):
    """The rows [first, end) of a tile or of a piece of it. A piece may have none."""

    unit: Any
    first: Any
    end: Any


class Rounds(Fixed):
    """The tiles and pieces of a launch. Whole tiles have the first numbers, pieces the next ones.

    The constructor delays the first tile of a CTA, so it has few divisions. It takes the rows of a
    unit, the units, the query tiles of a tile (up to 3), and the rows of a query tile.
    """

    def __init__(self, rows, units, query_tiles: int, height: int) -> None:
        ctas, _, _ = cute.arch.grid_dim()
        self.rows, self.units, self.height = rows, units, query_tiles * height
        self.counts = range(2, query_tiles + 1)  # into how many pieces a tile may be cut
        self.whole = rows // self.height  # how many tiles of a unit have all their rows
        tiles = (rows + (self.height - 1)) // self.height * units
        self.uncut = tiles // ctas * ctas
        left = tiles - self.uncut
        self.pieces: Any = Int32(1)
        for count in self.counts:
            self.pieces = select(left * count <= ctas, count, self.pieces)
        self.piece = (query_tiles + 1 - self.pieces) * height
        self.numbers = self.uncut + left * self.pieces

    def take(self, number) -> RowRange:
        over = number - self.uncut
        cut, tile = over >= 0, over
        for count in self.counts:
            tile = select(self.pieces == count, over // count, tile)
        unit, row = self._tile(select(cut, self.uncut + tile, number))
        begin = row * self.height
        first = begin + select(cut, (over - tile * self.pieces) * self.piece, 0)
        # If three query tiles are cut into two pieces, the last piece has one query tile.
        end = smaller(select(cut, first + self.piece, self.rows), begin + self.height)
        return RowRange(unit, first, smaller(end, self.rows))

    def _tile(self, number) -> tuple[Any, Any]:
        """(unit, place in the unit) of a tile. The whole tiles of all units come first."""
        ends, divisor = number - self.whole * self.units, larger(self.whole, 1)
        unit, end = number // divisor, ends >= 0
        return select(end, ends, unit), select(end, self.whole, number - unit * divisor)


CHANNELS, WIDE = 8192, 128  # of all few units together; of a head, as far as it counts


def few_units(config: KernelConfig) -> int:
    """How many units are few: 64, and more of narrow heads. The L2 cache holds their keys."""
    return CHANNELS // min(max(config.padded_head_dim, config.padded_value_dim), WIDE)


class Work(Fixed):
    """The work tiles of a launch. Sizes of a jagged side are upper bounds."""

    def __init__(self, config: KernelConfig, x: KernelArguments, skips: bool):
        self.config, self.offsets = config, (x.cu_q, x.cu_k, x.order)
        self.batch, self.heads, self.key_heads, self.value_heads, self.rows, self.cols = x.sizes[:6]
        self.totals, self.jagged_rows = totals(config, x.sizes), x.sizes[6:8]
        self.height = config.tiles * config.rows
        self.row_tiles = (self.rows + (self.height - 1)) // self.height
        self.units = self.heads * self.batch
        self.tiles = self.row_tiles * self.units
        self.last_rows_first, self.few = skips and not config.jagged, few_units(config)
        self.rounds = None
        if config.in_rounds and not (skips or config.jagged):
            self.rounds = Rounds(self.rows, self.units, config.tiles, config.rows)
            self.tiles = self.rounds.numbers

    def decode(self, number) -> WorkTile:
        unit, row, end = self._rows(number)
        head, place = unit % self.heads, unit // self.heads
        if self.config.batch_first:
            head, place = unit // self.batch, unit % self.batch
        return self.tile(self.sequence(place, end), head, row)

    def sequence(self, place, end) -> WorkTile:
        """A tile at row 0 and head 0 of a sequence. end: The end of the rows, if it is dense."""
        cu_q, cu_k, order = self.offsets
        batch = place if order is None else Int32(order[place])
        q_start, q_rows = sequence_rows(cu_q, batch, end, self.totals[0])
        k_start, k_rows = sequence_rows(cu_k, batch, self.cols, self.totals[1])
        none = Int32(0)
        head = (Int32(1), none, batch, none, none, none)
        rest = [none] * (1 + self.config.tiles)
        return WorkTile.of(*head, q_start, q_rows, k_start, k_rows, *rest)

    def tile(self, sequence: WorkTile, head, row) -> WorkTile:
        """The tile of a head that begins at a row. sequence: The result of `sequence`."""
        key_head = head // (self.heads // self.key_heads)
        value_head = head // (self.heads // self.value_heads)
        return sequence._replace(row=row, head=head, key_head=key_head, value_head=value_head)

    def _rows(self, number) -> RowRange:
        if self.rounds is not None:
            return self.rounds.take(number)
        row, unit = number % self.row_tiles, number // self.row_tiles
        if self.last_rows_first:
            row, unit = self._last_rows_first(number)
        return RowRange(unit, row * self.height, self.rows)

    def _last_rows_first(self, number):
        """(tile in the unit, unit): in groups if there are few units, otherwise unit by unit."""
        few, (row, unit) = self.units <= self.few, self._in_groups(number)
        row = select(few, row, number % self.row_tiles)
        return row, select(few, unit, number // self.row_tiles)

    def _in_groups(self, number):
        """(tile in the unit, unit), group by group, with the last rows of each group first."""
        # The last group has up to half as many units more than the others. A small group of its own
        # would leave CTAs without work.
        # The fewest units whose tiles are a multiple of the CTAs, as far as powers of two go.
        ctas, _, _ = cute.arch.grid_dim()
        size = ctas // smaller(_twos(ctas), _twos(self.row_tiles))
        groups = larger((self.units + size // 2) // size, 1)
        group = smaller(number // (size * self.row_tiles), groups - 1)
        first = group * size
        units = select(group == groups - 1, self.units - first, size)
        rest = number - first * self.row_tiles
        return self.row_tiles - 1 - rest // units, first + rest % units


def _twos(number):
    """The largest power of two that divides a number."""
    return number & -number


class Queue(Fixed):
    """A queue of the work tiles of jagged sequences, as one warp sees it.

    A CTA that is free takes the next tile. Tiles are numbered sequence by sequence, the longest
    sequence first (`launch.longest_first`). Within a sequence they are numbered head by head, and
    within a head from the last rows to the first. Under a causal mask the last rows cost most, so
    the tiles that are taken last are cheap. Tiles past the end of a sequence have no number.
    Results do not depend on which CTA computes a tile.

    CTA c begins with tile c. After that, CTAs take numbers from a counter in global memory, which
    is the element after the order. The CTA that takes the last number clears the counter, so that
    another launch can use the same order. The host reads no length.

    Each lane holds one of 32 consecutive sequences of the order. `at` loads them.
    """

    def __init__(self, work: Work) -> None:
        self.work, self.batch = work, work.batch
        order = work.offsets[2]
        place = order.toint() + Int64(work.batch) * 8
        self.counter = cute.make_ptr(Int32, place, order.memspace, assumed_align=8)

    @property
    def alike(self):
        """Whether all sequences have the most rows and keys that a sequence may have."""
        c, work = self.work.config, self.work
        jagged, most = (c.jagged_q, c.jagged_k), (work.rows, work.cols)
        sides = zip(jagged, work.jagged_rows, most, strict=True)
        full = [rows == self.batch * most for jagged, rows, most in sides if jagged]
        return functools.reduce(operator.and_, full)

    def first(self):
        return Int32(cute.arch.block_idx()[0])

    @cute.jit
    def following(self):
        number = Int32(0)
        if cute.arch.lane_idx() == 0:
            number = cute.arch.atomic_add(self.counter, Int32(1), sem="relaxed", scope="gpu")
        return cute.arch.shuffle_sync(number, 0) + cute.arch.grid_dim()[0]

    @cute.jit
    def finish(self, number, tiles):
        """Clear the counter, if `number`, the last one of this CTA, is the last of all."""
        # Each of the tiles is followed by one atomic addition, so that one is known.
        last = cute.arch.grid_dim()[0] + tiles - 1
        if (number == last) & (cute.arch.lane_idx() == 0):
            cute.arch.store(self.counter, Int32(0))

    def at(self, first) -> tuple[WorkTile, Any]:
        """(the lane's sequence, how many tiles the lanes up to this one have)."""
        # first: That of lane 0.
        place = first + cute.arch.lane_idx()
        own = self.work.sequence(smaller(place, self.batch - 1), self.work.rows)
        count = select(place < self.batch, self.tiles(own) * self.work.heads, 0)
        for step in (1, 2, 4, 8, 16):
            earlier = cute.arch.shuffle_sync_up(count, step)
            count = count + select(cute.arch.lane_idx() >= step, earlier, 0)
        return own, count

    def tiles(self, sequence: WorkTile):
        return (sequence.q_rows + (self.work.height - 1)) // self.work.height

    def tile(self, own: WorkTile, counts, number) -> WorkTile:
        """Tile `number` of the sequences that the lanes hold. own, counts: The result of `at`."""
        lane = cute.arch.popc(cute.arch.vote_ballot_sync(counts <= number))
        sequence = own.of_lane(lane)
        tiles = self.tiles(sequence)
        left = cute.arch.shuffle_sync(counts, lane) - 1 - number  # later tiles of the sequence
        head = self.work.heads - 1 - left // tiles
        return self.work.tile(sequence, head, left % tiles * self.work.height)
