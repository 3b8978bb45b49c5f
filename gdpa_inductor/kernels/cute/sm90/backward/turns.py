"""Which tiles a CTA owns, and in which order the tiles of a head add to a dQ.

Tiles are dealt so that all of a head run at once, on neighbouring CTAs, where that leaves few
CTAs without work: `together`. From round to round the CTAs exchange the first and the last tiles.
Under a mask, or with sequences of several lengths, these differ in cost. Otherwise tiles are dealt
one after the other, the last keys of a head first.

Without a mask the tiles that run at once begin at different query tiles, and go around. The one
that begins nearest before a query tile comes to it first, then the one before that. So no tile
finds another at its place. Otherwise the query tiles ascend, and the last keys come first. Under a
causal mask these begin at the diagonal, where no other has been.

No turn waits forever. All CTAs are resident: the launch is cooperative.

- If the tiles of a head run at once and go around, a tile waits for two kinds of others. These come
  to the query tile in an earlier step of their own, or in the same step with higher keys. That is
  no circle.
- If they run at once and ascend, a tile waits for higher keys at the same query tile. The highest
  waits for none there, and has waited for none at the query tiles before.
- Otherwise a tile waits for lower numbers only, and every CTA takes its tiles in the order of their
  numbers. The lowest that is not finished is running, and waits for none.
"""

from typing import Any

from cutlass import Int32, const_expr, cute

from ...backward.walk import ResidentTile, Walk, tiles_of
from ...values import larger, select


class Turns(Walk):
    """The walk of the keys side, and the turns of its tiles."""

    def __init__(self, *given: Any) -> None:
        super().__init__(True, *given)
        groups = self.ctas // self.blocks
        self.groups, used = groups, groups * self.blocks
        self.together = used * 10 >= self.ctas * 9

    def number(self, turn: Any) -> Any:
        """The tile that the CTA takes in a round; there is none from `count` on."""
        group, place = self.cta // self.blocks, self.cta % self.blocks
        place = select(turn % 2 == 1, self.blocks - 1 - place, place)
        number = (turn * self.groups + group) * self.blocks + place
        number = select(group < self.groups, number, self.count)
        return select(self.together, number, turn * self.ctas + self.cta)

    def block_of(self, number: Any) -> Any:
        return self.blocks - 1 - number % self.blocks

    def tiles(self, tile: ResidentTile) -> Any:
        """The key tiles of the sequence."""
        return tiles_of(tile.rows, self.heights.resident)

    def index(self, tile: ResidentTile) -> Any:
        """Which of them this is."""
        return tile.first // self.heights.resident

    def entry(self, tile: ResidentTile) -> Any:
        """The query tile with which a pass begins."""
        if self.ranges.skips:
            return tile.begin
        turned = self.index(tile) * tile.end // larger(self.tiles(tile), 1)
        return select(self.together & (tile.first < tile.rows), turned, 0)

    def block(self, tile: ResidentTile, entry: Any, step: Any) -> Any:
        """The query tile of a step of a pass."""
        block = entry + step
        return select(block < tile.end, block, block - tile.end) if not self.ranges.skips else block

    @cute.jit
    def turn(self, tile: ResidentTile, head, block):
        """(how many tiles add to a query tile before this one, after it); by a whole warp."""
        tiles, index = self.tiles(tile), self.index(tile)
        before, after = tiles - 1 - index, index
        if const_expr(self.ranges.skips):
            before = self.ranges.living(tile, head, block, index + 1, tiles)
            after = self.ranges.living(tile, head, block, Int32(0), index)
        else:
            nearest = ((block + 1) * tiles - 1) // tile.end
            turned = select(nearest < index, nearest - index + tiles, nearest - index)
            before = select(self.together, turned, before)
            after = tiles - 1 - before
        return before, after
