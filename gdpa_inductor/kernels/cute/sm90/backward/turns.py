"""Which tiles a CTA owns, and in which order the tiles of a head add to a dQ.

Which tiles a CTA owns:

- `together`, where that leaves few CTAs without work: all tiles of a head run at once, on
  neighbouring CTAs. From round to round the CTAs exchange the first and the last tiles, which
  differ in cost under a mask. After two rounds each takes the neighbour's, since sequences of
  several lengths have the first tiles more often.
- Otherwise tiles are dealt one after the other, the last keys of a head first.

In which order a tile meets query tiles, and who adds first:

- Without a mask, tiles that run at once go around, each from another query tile. The one that
  begins nearest before a query tile comes to it first, then the one before that. So no tile finds
  another at its place. They begin at most `APART` query tiles after one another: what one has read
  and added is in the L2 cache when the next one comes.
- Otherwise query tiles ascend, and the last keys come first. Under a causal mask these begin at the
  diagonal, where no other has been. All begin at once, and the first keys end last.
- Tiles that run at once in the next round begin where the CTAs come from: those of the last keys
  first. So they go the other way, from the last query tile down, the first keys first, and end at
  once.

Why no turn waits forever. All CTAs are resident: the launch is cooperative.

- If the tiles of a head run at once and go around, a tile waits for two kinds of others. These come
  to the query tile in an earlier step of their own, or in the same step with higher keys. That is
  no circle.
- If they run at once and ascend, a tile waits for higher keys, which are at the same query tile or
  an earlier one. So a chain of those that wait leads to ever higher keys or earlier query tiles,
  and is no circle. Likewise the other way.
- Otherwise a tile waits for lower numbers only, and every CTA takes its tiles in the order of their
  numbers. The lowest that is not finished is running, and waits for none.

A conversion waits for turns only, and no turn waits for a conversion.

Where dQ may be added up in any order (`KernelConfig.ordered`), tiles go the same ways, which keeps
them apart, and nothing waits but conversions.
"""

from typing import Any

from cutlass import Boolean, Int32, const_expr, cute

from ...backward.walk import ResidentTile, Walk, tiles_of
from ...values import larger, select, smaller

APART = 2  # with 1 tiles wait for their turns (docs/lab/2026-11-26-short-sides.md)


class Turns(Walk):
    """The walk of the keys side, and the turns of its tiles."""

    def __init__(self, *given: Any) -> None:
        super().__init__(True, *given)
        groups = self.ctas // self.blocks
        self.groups, used = groups, groups * self.blocks
        self.together = used * 10 >= self.ctas * 9

    def number(self, turn: Any) -> Any:
        """The tile that the CTA takes in a round; there is none from `count` on."""
        group, place = self.cta // self.blocks, (self.cta + turn // 2) % self.blocks
        place = select(turn % 2 == 1, self.blocks - 1 - place, place)
        number = (turn * self.groups + group) * self.blocks + place
        number = select(group < self.groups, number, self.count)
        return select(self.together, number, turn * self.ctas + self.cta)

    def block_of(self, number: Any) -> Any:
        return self.blocks - 1 - number % self.blocks

    def at(self, turn: Any) -> ResidentTile:
        tile = super().at(turn)
        tile.descends = self.together & (turn % 2 == 1)
        return tile

    def tiles(self, tile: ResidentTile) -> Any:
        """The key tiles of the sequence."""
        return tiles_of(tile.rows, self.heights.resident)

    def index(self, tile: ResidentTile) -> Any:
        """Which of them this is."""
        return tile.first // self.heights.resident

    def entry(self, tile: ResidentTile) -> Any:
        """The query tile with which a pass begins."""
        if self.ranges.skips:
            return select(tile.descends, tile.end - 1, tile.begin)
        return self.beginning(tile, self.index(tile))

    def beginning(self, tile: ResidentTile, index: Any) -> Any:
        """The query tile with which a key tile of the head begins, without a mask."""
        turned = index * self.spread(tile) // larger(self.tiles(tile), 1)
        return select(self.together & (tile.first < tile.rows), turned, 0)

    def spread(self, tile: ResidentTile) -> Any:
        """Among how many query tiles the key tiles of the head begin."""
        return smaller(tile.end, APART * self.tiles(tile))

    def nearest(self, tile: ResidentTile, block: Any) -> Any:
        """The key tile that begins nearest before a query tile, or with it."""
        tiles = self.tiles(tile)
        return smaller(((block + 1) * tiles - 1) // self.spread(tile), tiles - 1)

    def block(self, tile: ResidentTile, entry: Any, step: Any) -> Any:
        """The query tile of a step of a pass."""
        if self.ranges.skips:
            return select(tile.descends, entry - step, entry + step)
        block = entry + step
        return select(block < tile.end, block, block - tile.end)

    def meets_last(self, tile: ResidentTile, block: Any) -> Any:
        """This tile is the last of the head to meet a query tile, if all are equally far. The query
        tile lies just before the place where this one begins."""
        if self.ranges.skips:
            return Boolean(False)
        following = self.nearest(tile, block) + 1
        last = select(following == self.tiles(tile), 0, following)
        return self.together & (self.index(tile) == last)

    @cute.jit
    def turn(self, tile: ResidentTile, head, block):
        """How many tiles add to a query tile before this one, and whether this one does; by a whole
        warp."""
        before, adds = Int32(0), Boolean(True)
        if const_expr(self.ranges.skips):
            given = (tile, head, block, self.index(tile), self.tiles(tile))
            below, above, adds = self.ranges.living(*given)
            before = select(tile.descends, below, above)
        else:
            before = self.earlier(tile, block)
        return before, adds

    def earlier(self, tile: ResidentTile, block: Any) -> Any:
        """How many tiles add to a query tile before this one, without a mask."""
        tiles, index = self.tiles(tile), self.index(tile)
        behind = self.nearest(tile, block) - index
        return select(self.together, select(behind < 0, behind + tiles, behind), tiles - 1 - index)

    def adds(self, tile: ResidentTile, head: Any, block: Any) -> Any:
        """Whether this tile adds to a query tile."""
        if self.ranges.skips:
            return self.ranges.lives(tile, tile.first, head, block)
        return Boolean(True)

    @cute.jit
    def adders(self, tile: ResidentTile, head, block):
        """How many tiles add to a query tile; by a whole warp."""
        tiles = Int32(self.tiles(tile))
        if const_expr(self.ranges.skips):
            below, above, adds = self.ranges.living(tile, head, block, self.index(tile), tiles)
            tiles = below + above + Int32(adds)
        return tiles

    def share(self, tile: ResidentTile) -> Any:
        """How many query tiles of a pass this tile converts: those that `converted` gives it. The
        last round has fewer than the head has tiles, and is turned by `each` places too."""
        count, tiles = tiles_of(tile.length, self.heights.streamed), larger(self.tiles(tile), 1)
        each = count // tiles
        own = each + Int32((self.index(tile) + each) % tiles < count % tiles)
        return select(tile.first < tile.rows, own, 0)

    def converted(self, tile: ResidentTile, number: Any) -> Any:
        """One of them. Those of the head are dealt to its tiles in the order in which they are
        complete. Each time the first goes to another tile: often every other one is complete a step
        later."""
        tiles, count = self.tiles(tile), tiles_of(tile.length, self.heights.streamed)
        place = number * tiles + (self.index(tile) + number) % tiles
        if self.ranges.skips:
            return select(tile.descends, count - 1 - place, place)
        block = self.beginning(tile, tiles - 1) + place
        return select(block < count, block, block - count)
