"""Which tiles a CTA computes, in what order.

A tile is some query tiles, neighbours (`KernelConfig.tiles`), of one head of one sequence against
all its keys. One warp decodes the work and publishes `WorkTile`s through a ring in shared memory;
the other roles only read them. The grid is persistent. Dense: CTA c of G takes the tiles c, 2G-1-c,
2G+c, 4G-1-c, and so on, back and forth. So it is with jagged sequences that are all alike; else
whoever is free takes the next tile (`queue.py`).
"""

import functools

from cutlass import Boolean, Int32, const_expr, cute, range_constexpr

from ..barriers import Cursor, Ring
from ..values import Fixed, larger, select, smaller

STAGES = 2
LANES = 32
RECORD = 16  # integers of a tile, with padding


class WorkTile:
    """valid: 0 ends the work. row: first query row. q_start, k_start: first row of the sequence in
    a jagged matrix. first, last(t): the key blocks of query tile t, half open; none where it has no
    rows, no keys, or is masked. The fields without names are last(0), last(1), ..."""

    NAMES = (
        "valid", "row", "batch", "head", "key_head", "value_head",
        "q_start", "q_rows", "k_start", "k_rows", "first",
    )  # fmt: skip

    def __init__(self, *fields):
        self.fields = fields

    def __getattr__(self, name: str):
        if name not in WorkTile.NAMES:
            raise AttributeError(name)
        return self.fields[WorkTile.NAMES.index(name)]

    def of_lane(self, lane) -> "WorkTile":
        """The tile that this lane holds, for all."""
        return WorkTile(*(cute.arch.shuffle_sync(x, lane) for x in self.fields))

    def last(self, t):
        """t: a Python number, or one known at run time."""
        if isinstance(t, int):
            return self.lasts[t]
        found = self.lasts[-1]
        for i, last in reversed([*enumerate(self.lasts[:-1])]):
            found = select(t == i, last, found)
        return found

    @property
    def lasts(self):
        return self.fields[len(WorkTile.NAMES) :]

    @property
    def end(self):
        """The last key block of any query tile."""
        return functools.reduce(larger, self.lasts)

    def __extract_mlir_values__(self):
        return [x.ir_value() for x in self.fields]

    def __new_from_mlir_values__(self, values):
        return WorkTile(*(Int32(v) for v in values))

    def __get_mlir_types__(self):
        return [x.type for x in self.__extract_mlir_values__()]


class Scheduler(Fixed):
    """Decodes and publishes tiles. ring: of `STAGES` records; records: Int32 [STAGES, RECORD] in
    shared memory; work: the `Work` of the kernel; ranges: its `KeyRanges`."""

    def __init__(self, ring: Ring, records, work, ranges):
        self.ring, self.records, self.work = ring, records, work
        self.ranges = ranges
        self.fields = len(WorkTile.NAMES) + work.config.tiles

    def start(self) -> Cursor:
        return self.ring.start()

    @cute.jit
    def publish(self, queue):
        """The loop of the scheduler's warp. queue: where jagged tiles come from, or None."""
        if const_expr(queue is None):
            self.publish_dealt()
        else:
            self.publish_jagged(queue)

    @cute.jit
    def publish_jagged(self, queue):
        """A branch of its own, since it is taken at run time."""
        if queue.alike:
            self.publish_dealt()
        else:
            self.publish_taken(queue)

    @cute.jit
    def publish_dealt(self):
        """Each lane decodes a tile of its own. Tiles past the end of a sequence cost next to
        nothing."""
        at, turn = self.ring.start(), Int32(cute.arch.lane_idx())
        first = Int32(0)
        while self.number(first) < self.work.tiles:
            number = self.number(turn)
            tile = self.work.decode(smaller(number, self.work.tiles - 1))
            live = (number < self.work.tiles) & (tile.row < tile.q_rows)
            left = cute.arch.vote_ballot_sync(live)
            while left != 0:
                lane = cute.arch.popc((left & -left) - 1)
                at = self.put(at, tile.of_lane(lane))
                left = left & (left - 1)
            first, turn = first + LANES, turn + LANES
        self.put(at, self.nothing())

    @cute.jit
    def publish_taken(self, queue):
        """Each lane knows a sequence. before: how many tiles come before those of the lanes."""
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
        """The tile that this CTA takes in a turn: dealt back and forth. Grows with the turn."""
        grid, _, _ = cute.arch.grid_dim()
        cta, _, _ = cute.arch.block_idx()
        return turn * grid + select(turn % 2 == 1, grid - 1 - cta, cta)

    @cute.jit
    def put(self, at: Cursor, tile: WorkTile):
        self.ring.empty.wait_before(at)
        fields = (*tile.fields[: -1 - len(tile.lasts)], *self.ranges.blocks(tile))
        with cute.arch.elect_one():
            for i in range_constexpr(self.fields):
                self.records[at.index, i] = fields[i]
            self.ring.full.arrive(at)
        return at.next()

    @cute.jit
    def take(self, at: Cursor):
        """(the tile at `at`, the place after it), for a whole warp of a role."""
        self.ring.full.wait(at)
        tile = WorkTile(*(self.records[at.index, i] for i in range(self.fields)))
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
        """What ends the work."""
        return WorkTile(*(Int32(0) for _ in range(self.fields)))
