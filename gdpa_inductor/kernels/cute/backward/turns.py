"""Turns: which key tiles a CTA owns, and in which order the key tiles of a head add to dQ.

Which key tiles a CTA owns:

- `together`: all key tiles of a head run at the same time, on neighbouring CTAs. This is chosen if
  it leaves few CTAs without work. Under a mask the first and the last tiles differ in cost, so the
  CTAs exchange them from round to round. After two rounds each CTA moves on by one tile, because
  sequences of several lengths have the first tiles more often.
- Otherwise tiles are dealt one after the other, with the last keys of a head first.

In which order a key tile meets query tiles, and which key tile adds first:

- No mask, and `together`: key tiles go around the query tiles, each from another start. The key
  tile that starts nearest before a query tile adds to it first, then the one that starts before
  that. So two key tiles are never at the same query tile. Neighbours start at most `APART` query
  tiles from each other. So what one has read and added is in the L2 cache when the next one comes.
- Otherwise query tiles ascend, and the last keys add first. Under a causal mask the last keys start
  at the diagonal, where no other tile has been. All tiles start at once, and the first keys end
  last.
- With a mask and `together`, every other round goes the opposite way. The CTAs of the last keys are
  free first, so they start first. Query tiles descend, the first keys add first, and all tiles end
  at once.

Why no tile waits forever. The launch is cooperative, so all CTAs are resident.

- `together`, going around: a key tile waits for two kinds of others. They come to the query tile in
  an earlier step of their own, or in the same step with higher keys. These waits form no cycle.
- `together`, ascending: a key tile waits for higher keys, which are at the same or an earlier query
  tile. A chain of waits leads to ever higher keys or earlier query tiles, so it is no cycle. The
  same holds in the opposite direction.
- Otherwise a key tile waits for lower numbers only, and each CTA takes its tiles in ascending
  order. The tile with the lowest number that is not finished is running, and waits for none.

A conversion waits for turns, but no turn waits for a conversion.

If any order is allowed (`KernelConfig.ordered` is False), tiles go the same ways, which keeps them
apart. Then only conversions wait.
"""

from cutlass import Boolean, Int32, const_expr, cute

from ..operands import KernelArguments
from ..values import larger, select, smaller
from .walk import ResidentTile, Walk, tiles_of

APART = 2  # with 1 tiles wait for their turns (docs/lab/2026-11-26-short-sides.md)


class Turns(Walk):
    """The walk over key tiles, and their turns."""

    def __init__(self, x: KernelArguments, ranges) -> None:
        super().__init__(True, x, ranges)
        groups = self.ctas // self.blocks
        self.groups, used = groups, groups * self.blocks
        self.together = used * 10 >= self.ctas * 9

    def number(self, turn):
        # Numbers from `count` on are not tiles.
        group, place = self.cta // self.blocks, (self.cta + turn // 2) % self.blocks
        place = select(turn % 2 == 1, self.blocks - 1 - place, place)
        number = (turn * self.groups + group) * self.blocks + place
        number = select(group < self.groups, number, self.count)
        return select(self.together, number, turn * self.ctas + self.cta)

    def block_of(self, number):
        return self.blocks - 1 - number % self.blocks

    def at(self, turn) -> ResidentTile:
        tile = super().at(turn)
        tile.descends = self.together & (turn % 2 == 1)
        return tile

    def tiles(self, tile: ResidentTile):
        return tiles_of(tile.rows, self.heights.resident)

    def index(self, tile: ResidentTile):
        return tile.first // self.heights.resident

    def entry(self, tile: ResidentTile):
        """The query tile with which each pass of this tile begins."""
        if self.ranges.skips:
            return select(tile.descends, tile.end - 1, tile.begin)
        return self.beginning(tile, self.index(tile))

    def beginning(self, tile: ResidentTile, index):
        """Without a mask: the query tile with which key tile `index` of the head begins."""
        turned = index * self.spread(tile) // larger(self.tiles(tile), 1)
        return select(self.together & (tile.first < tile.rows), turned, 0)

    def spread(self, tile: ResidentTile):
        """Over how many query tiles the starts of the head's key tiles are spread."""
        return smaller(tile.end, APART * self.tiles(tile))

    def nearest(self, tile: ResidentTile, block):
        """The key tile that begins with query tile `block`, or nearest before it."""
        tiles = self.tiles(tile)
        return smaller(((block + 1) * tiles - 1) // self.spread(tile), tiles - 1)

    def block(self, tile: ResidentTile, entry, step):
        if self.ranges.skips:
            return select(tile.descends, entry - step, entry + step)
        block = entry + step
        return select(block < tile.end, block, block - tile.end)

    def meets_last(self, tile: ResidentTile, block):
        """Whether this is the last key tile of the head to meet query tile `block`."""
        # It is exact only if all key tiles are equally far. Then the last one is the tile that
        # begins right after this query tile.
        if self.ranges.skips:
            return Boolean(False)
        following = self.nearest(tile, block) + 1
        last = select(following == self.tiles(tile), 0, following)
        return self.together & (self.index(tile) == last)

    @cute.jit
    def turn(self, tile: ResidentTile, head, block):
        """(how many key tiles add to query tile `block` before this one, whether this one adds)."""
        before, adds = Int32(0), Boolean(True)
        if const_expr(self.ranges.skips):
            place = (tile, head, block, self.index(tile), self.tiles(tile))
            below, above, adds = self.ranges.living(*place)
            before = select(tile.descends, below, above)
        else:
            before = self.earlier(tile, block)
        return before, adds

    def earlier(self, tile: ResidentTile, block):
        """Without a mask: how many key tiles add to query tile `block` before this one."""
        tiles, index = self.tiles(tile), self.index(tile)
        behind = self.nearest(tile, block) - index
        return select(self.together, select(behind < 0, behind + tiles, behind), tiles - 1 - index)

    def adds(self, tile: ResidentTile, head, block):
        if self.ranges.skips:
            return self.ranges.lives(tile, tile.first, head, block)
        return Boolean(True)

    @cute.jit
    def adders(self, tile: ResidentTile, head, block):
        """How many key tiles add to query tile `block`. A whole warp calls it."""
        tiles = Int32(self.tiles(tile))
        if const_expr(self.ranges.skips):
            below, above, adds = self.ranges.living(tile, head, block, self.index(tile), tiles)
            tiles = below + above + Int32(adds)
        return tiles

    def share(self, tile: ResidentTile):
        """How many query tiles of a pass this key tile converts: see `converted`."""
        # The last round has fewer query tiles than there are key tiles. It is rotated by `each`
        # places, as the other rounds are by theirs.
        count, tiles = tiles_of(tile.length, self.heights.streamed), larger(self.tiles(tile), 1)
        each = count // tiles
        own = each + Int32((self.index(tile) + each) % tiles < count % tiles)
        return select(tile.first < tile.rows, own, 0)

    def converted(self, tile: ResidentTile, number):
        """The query tile that this key tile converts as its `number`-th."""
        # Query tiles are dealt to the key tiles of the head in the order in which they are
        # complete. Each round begins with another key tile, since often every other query tile is
        # complete a step later.
        tiles, count = self.tiles(tile), tiles_of(tile.length, self.heights.streamed)
        place = number * tiles + (self.index(tile) + number) % tiles
        if self.ranges.skips:
            return select(tile.descends, count - 1 - place, place)
        block = self.beginning(tile, tiles - 1) + place
        return select(block < count, block, block - count)
