"""The scheduler: one warp of a CTA decides which work tiles the CTA computes, and in which order.

A work tile is a few neighbouring query tiles (`KernelConfig.tiles`) of one head of one sequence,
with all their keys. The scheduler's warp publishes `WorkTile`s through a ring in shared memory. The
other roles only read them. CTAs are persistent.

- Dense: tiles are dealt back and forth. CTA c of G takes the tiles c, 2G-1-c, 2G+c, 4G-1-c, …
- Jagged: a CTA that is free takes the next tile (`Queue`). But if all sequences have the same
  lengths, tiles are dealt as if dense.
"""

import functools
from typing import Any, NamedTuple

from cutlass import Boolean, Int32, const_expr, cute, range_constexpr

from ..barriers import Cursor, Ring
from ..ranges import LANES, lowest
from ..values import Fixed, larger, select, smaller

STAGES = 2
RECORD = 16  # integers of a published tile, with padding


class WorkTile(NamedTuple):
    """A work tile, as integers.

    valid:                  0 marks the end of the work.
    row:                    The first query, counted within the sequence.
    batch, head:            The sequence and the query head.
    key_head, value_head:   The heads of key and value.
    q_start, k_start:       The first row of the sequence in a jagged query, and in jagged keys.
    q_rows, k_rows:         The queries and keys of the sequence.
    first, last(t):         Query tile t meets the key blocks [first, last(t)). There are none if it
                            has no rows or no keys, or if it is masked.
    """

    valid: Any
    row: Any
    batch: Any
    head: Any
    key_head: Any
    value_head: Any
    q_start: Any
    q_rows: Any
    k_start: Any
    k_rows: Any
    first: Any
    lasts: Any

    @staticmethod
    def of(*fields) -> "WorkTile":
        """From the integers one by one, as `fields` has them."""
        return WorkTile(*fields[:ALONE], fields[ALONE:])  # type: ignore[call-arg]

    @property
    def fields(self):
        return (*self[:-1], *self.lasts)

    def of_lane(self, lane) -> "WorkTile":
        """The tile that lane `lane` holds, in all lanes."""
        return WorkTile.of(*(cute.arch.shuffle_sync(x, lane) for x in self.fields))

    def last(self, t):
        """The end of the key blocks of query tile t. t is a Python number or a register."""
        if isinstance(t, int):
            return self.lasts[t]
        end = self.lasts[-1]
        for i, last in reversed([*enumerate(self.lasts[:-1])]):
            end = select(t == i, last, end)
        return end

    @property
    def end(self):
        return functools.reduce(larger, self.lasts)


ALONE = len(WorkTile.__annotations__) - 1  # the fields of a tile before its `lasts`


class Scheduler(Fixed):
    """Publishes work tiles, and reads them in the other roles. memory: Room for the records."""

    def __init__(self, ring: Ring, memory, work, ranges):
        self.ring, self.work, self.ranges = ring, work, ranges
        self.records = memory.get_tensor(cute.make_layout((STAGES, RECORD), stride=(RECORD, 1)))
        self.fields = ALONE + work.config.tiles

    def start(self) -> Cursor:
        return self.ring.start()

    @cute.jit
    def publish(self, queue):
        if const_expr(queue is None):
            self.publish_dealt()
        else:
            self.publish_jagged(queue)

    @cute.jit
    def publish_jagged(self, queue):
        # A method of its own, since the branch is taken at run time.
        if queue.alike:
            self.publish_dealt()
        else:
            self.publish_queue(queue)

    @cute.jit
    def publish_dealt(self):
        """Each lane decodes a tile of its own, so tiles past the end of a sequence cost next to
        nothing.
        """
        at, turn = self.ring.start(), Int32(cute.arch.lane_idx())
        first = Int32(0)
        while self.number(first) < self.work.tiles:
            number = self.number(turn)
            tile = self.work.decode(smaller(number, self.work.tiles - 1))
            live = (number < self.work.tiles) & (tile.row < tile.q_rows)
            left = cute.arch.vote_ballot_sync(live)
            while left != 0:
                lane = lowest(left)
                at = self.put(at, tile.of_lane(lane))
                left = left & (left - 1)
            first, turn = first + LANES, turn + LANES
        self.put(at, self.nothing())

    @cute.jit
    def publish_queue(self, queue):
        # Each lane holds a sequence.
        # first: The place of lane 0 in the order. before: How many tiles come before its sequence.
        at, number = self.ring.start(), queue.first()
        first, before = Int32(0), Int32(0)
        own, counts = queue.at(first)
        while first < queue.batch:
            after = before + cute.arch.shuffle_sync(counts, LANES - 1)
            if number < after:
                at = self.put(at, queue.tile(own, counts, number - before))
                number = queue.following()
            else:
                first, before = first + LANES, after
                own, counts = queue.at(first)
        queue.finish(number, before)
        self.put(at, self.nothing())

    def number(self, turn):
        """The number of this CTA's tile in a turn. Tiles are dealt back and forth."""
        grid, _, _ = cute.arch.grid_dim()
        cta, _, _ = cute.arch.block_idx()
        return turn * grid + select(turn % 2 == 1, grid - 1 - cta, cta)

    @cute.jit
    def put(self, at: Cursor, tile: WorkTile):
        """Publish a tile with its key blocks. Returns the next place in the ring."""
        self.ring.empty.wait_before(at)
        fields = (*tile.fields[: -1 - len(tile.lasts)], *self.ranges.blocks(tile))
        with cute.arch.elect_one():
            for i in range_constexpr(self.fields):
                self.records[at.index, i] = fields[i]
            self.ring.full.arrive(at)
        return at.next()

    @cute.jit
    def take(self, at: Cursor):
        """(the tile at `at`, the next place). A whole warp of a role calls it."""
        self.ring.full.wait(at)
        tile = WorkTile.of(*(self.records[at.index, i] for i in range(self.fields)))
        self.ring.empty.arrive_once(at)
        return tile, at.next()

    @cute.jit
    def take_busy(self, at: Cursor):
        """The next tile that has key blocks, or the end."""
        tile, looking = self.nothing(), Boolean(True)
        while looking:
            tile, at = self.take(at)
            looking = (tile.valid == 1) & (tile.end <= tile.first)
        return tile, at

    def nothing(self) -> WorkTile:
        return WorkTile.of(*(Int32(0) for _ in range(self.fields)))
