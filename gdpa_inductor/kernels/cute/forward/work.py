"""From the number of a tile to what it is: sequence, head, rows, keys.

A unit is one head of one sequence. The numbers of a unit are consecutive, so that CTAs that run
together read the same keys. Dense: every sequence has the same lengths. Jagged: lengths are read
from the offsets on the device (`queue.py`).

Dense tiles that skip key blocks differ in cost: under a causal mask the last rows cost most. If
there are few units, the last rows of all of them come first, so that what is dealt last is small.
But they are dealt a group after the other, so that more CTAs read the same keys at once. A group
has whole rounds of tiles, so that each CTA gets as much. Many units balance by themselves, and
would read their keys from memory again and again. Dense tiles that skip none are dealt in rounds,
where the configuration says so (rounds.py).
"""

from cutlass import Int32, cute

from ..config import KernelConfig
from ..values import Fixed, larger, select, smaller
from ..work import sequence_rows, totals
from .rounds import Rounds, RowRange
from .scheduler import WorkTile

FEW = 64  # units


class Work(Fixed):
    """sizes, offsets: as the kernels take them. Sizes of the jagged sides are upper bounds. skips:
    whether key blocks are skipped."""

    def __init__(self, config: KernelConfig, sizes, offsets, skips: bool):
        self.config, self.offsets = config, offsets
        self.batch, self.heads, self.key_heads, self.value_heads, self.rows, self.cols = sizes[:6]
        self.totals, self.jagged_rows = totals(config, sizes), sizes[6:8]
        self.height = config.tiles * config.rows
        self.row_tiles = (self.rows + (self.height - 1)) // self.height
        self.units = self.heads * self.batch
        self.tiles = self.row_tiles * self.units
        self.last_rows_first = skips and not config.jagged
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
        """The first rows of a sequence. end: of a dense one that may have no more rows."""
        cu_q, cu_k, order = self.offsets
        batch = place if order is None else Int32(order[place])
        q_start, q_rows = sequence_rows(cu_q, batch, end, self.totals[0])
        k_start, k_rows = sequence_rows(cu_k, batch, self.cols, self.totals[1])
        none = Int32(0)
        return WorkTile(
            Int32(1), none, batch, none, none, none, q_start, q_rows, k_start, k_rows,
            *[none] * (1 + self.config.tiles),
        )  # fmt: skip

    def tile(self, sequence: WorkTile, head, row) -> WorkTile:
        """The tile of a head of a sequence, from a row on."""
        key_head = head // (self.heads // self.key_heads)
        value_head = head // (self.heads // self.value_heads)
        valid, _, batch, _, _, _, *rest = sequence.fields
        return WorkTile(valid, row, batch, head, key_head, value_head, *rest)

    def _rows(self, number) -> RowRange:
        if self.rounds is not None:
            return self.rounds.take(number)
        row, unit = number % self.row_tiles, number // self.row_tiles
        if self.last_rows_first:
            row, unit = self._last_rows_first(number)
        return RowRange(unit, row * self.height, self.rows)

    def _last_rows_first(self, number):
        """(row tile, unit), where units are few; otherwise the tiles of a unit stay together."""
        few, (row, unit) = self.units <= FEW, self._in_groups(number)
        row = select(few, row, number % self.row_tiles)
        return row, select(few, unit, number // self.row_tiles)

    def _in_groups(self, number):
        """The same of groups of units, the last rows of each first. The last group has up to half
        as many more: a small one would leave CTAs without work. size: the fewest units whose tiles
        are a multiple of the CTAs, as far as powers of two go."""
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
