"""Tiles of equal cost, dealt in rounds of one tile to each CTA.

The tiles at the ends of the rows, which may have fewer query tiles, are dealt last. Where the tiles
of the last round are fewer than the CTAs, they are cut into pieces of fewer query tiles. So CTAs
that would have none multiply some of their rows.
"""

from typing import Any, NamedTuple

from cutlass import Int32, cute

from ..values import Fixed, larger, select, smaller


class RowRange(NamedTuple):
    """Of a tile or a piece: the unit, its first row, and the end of those that it may have. A
    piece without rows begins at or behind its end."""

    unit: Any
    first: Any
    end: Any


class Rounds(Fixed):
    """rows: of a unit. units: how many. query_tiles: of a tile, up to 3, of `height` rows each.
    numbers: of tiles and pieces; those of the pieces follow. The first tile waits for this, so
    there are few divisions."""

    def __init__(self, rows: Any, units: Any, query_tiles: int, height: int) -> None:
        ctas, _, _ = cute.arch.grid_dim()
        self.rows, self.units, self.height = rows, units, query_tiles * height
        self.counts = range(2, query_tiles + 1)  # of pieces
        self.whole = rows // self.height  # tiles of a unit that have all their rows
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
        # The last of two pieces of three query tiles has but one.
        end = smaller(select(cut, first + self.piece, self.rows), begin + self.height)
        return RowRange(unit, first, smaller(end, self.rows))

    def _tile(self, number: Any) -> tuple[Any, Any]:
        """Unit and number within it: the whole tiles of all units, then the ends."""
        ends, divisor = number - self.whole * self.units, larger(self.whole, 1)
        unit, end = number // divisor, ends >= 0
        return select(end, ends, unit), select(end, self.whole, number - unit * divisor)
