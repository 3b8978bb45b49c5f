"""Turn the number of a work tile into its sequence, head, rows and keys.

A unit is one head of one sequence. The tiles of a unit have consecutive numbers, so that CTAs that
run at the same time read the same keys. Jagged sequences read their lengths from the offsets on the
device (`queue.py`). How dense tiles are numbered depends on their costs:

- No tile skips key blocks: tiles cost the same. They are dealt in rounds, if the configuration says
  so (`Rounds`).
- Tiles skip key blocks, and there are few units. Under a causal mask the last rows cost most. So
  the last rows of the units come first, and the tiles that are dealt last are cheap. Units are
  taken in groups, so that more CTAs read the same keys at once. A group has whole rounds of tiles,
  so that each CTA gets the same number.
- Tiles skip key blocks, and there are many units. The costs balance by themselves. The tiles of a
  unit stay together, so that its keys are not read from memory again and again.
"""

from typing import Any, NamedTuple

from cutlass import Int32, cute

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

    def __init__(self, rows: Any, units: Any, query_tiles: int, height: int) -> None:
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

    def take(self, number: Any) -> RowRange:
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

    def _tile(self, number: Any) -> tuple[Any, Any]:
        # (unit, place in the unit) of a tile. The whole tiles of all units come first.
        ends, divisor = number - self.whole * self.units, larger(self.whole, 1)
        unit, end = number // divisor, ends >= 0
        return select(end, ends, unit), select(end, self.whole, number - unit * divisor)


FEW = 64  # units


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
        # A tile at row 0 and head 0 of a sequence. end: The end of the rows, if it is dense.
        cu_q, cu_k, order = self.offsets
        batch = place if order is None else Int32(order[place])
        q_start, q_rows = sequence_rows(cu_q, batch, end, self.totals[0])
        k_start, k_rows = sequence_rows(cu_k, batch, self.cols, self.totals[1])
        none = Int32(0)
        head = (Int32(1), none, batch, none, none, none)
        rest = [none] * (1 + self.config.tiles)
        return WorkTile(*head, q_start, q_rows, k_start, k_rows, *rest)

    def tile(self, sequence: WorkTile, head, row) -> WorkTile:
        # The tile of a head that begins at a row. sequence: The result of `sequence`.
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
        # (tile in the unit, unit): in groups if there are few units, otherwise unit by unit.
        few, (row, unit) = self.units <= FEW, self._in_groups(number)
        row = select(few, row, number % self.row_tiles)
        return row, select(few, unit, number // self.row_tiles)

    def _in_groups(self, number):
        # (tile in the unit, unit), group by group, with the last rows of each group first.
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
    # The largest power of two that divides a number.
    return number & -number
