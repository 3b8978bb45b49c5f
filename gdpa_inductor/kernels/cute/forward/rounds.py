"""Deal dense work tiles of equal cost in rounds: each CTA gets one tile in a round.

The tiles at the end of a sequence may have fewer query tiles, so they are dealt last. The last
round may have fewer tiles than there are CTAs. Then its tiles are cut into pieces of fewer query
tiles, so that more CTAs have work.

A unit is one head of one sequence.
"""

from typing import Any, NamedTuple

from cutlass import Int32, cute

from ..values import Fixed, larger, select, smaller


class RowRange(NamedTuple):
    """The rows of a tile or of a piece.

    unit: Its unit. first, end: Its rows, half open. A piece without rows has first >= end.
    """

    unit: Any
    first: Any
    end: Any


class Rounds(Fixed):
    """The tiles and pieces of a launch. Whole tiles have the first numbers, pieces the next ones.

    The constructor delays the first tile of a CTA, so it has few divisions.

    rows:         The rows of a unit.
    units:        How many units there are.
    query_tiles:  How many query tiles a tile has, up to 3.
    height:       The rows of a query tile.
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
        """(unit, place in the unit) of a tile. The whole tiles of all units come first."""
        ends, divisor = number - self.whole * self.units, larger(self.whole, 1)
        unit, end = number // divisor, ends >= 0
        return select(end, ends, unit), select(end, self.whole, number - unit * divisor)
