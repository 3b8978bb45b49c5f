"""Which tiles a CTA computes, in what order.

A tile is 256 query rows of one head of one sequence against all its keys. One warp decodes the work
and publishes `Tile`s through a ring in shared memory; the other roles only read them. The grid is
persistent and static: CTA c of G takes the tiles c, 2G-1-c, 2G+c, 4G-1-c, ..., dealt back and forth
so that, with the longest sequences first (`order`, made on the device), every CTA gets its share of
long ones. Nothing is read on the host.
"""

from cutlass import Int32, cute, range_constexpr

from .pipeline import Cursor, Ring
from .values import Fixed, select

STAGES = 2
FIELDS = 12


class Tile:
    """valid: 0 ends the work. row: first query row. q_start, k_start: first row of the sequence in
    a jagged matrix. first, last: the key blocks, half open; none for an empty sequence."""

    NAMES = (
        "valid", "row", "batch", "head", "key_head", "value_head",
        "q_start", "q_rows", "k_start", "k_rows", "first", "last",
    )  # fmt: skip

    def __init__(self, *fields):
        self.fields = fields

    def __getattr__(self, name: str):
        if name not in Tile.NAMES:
            raise AttributeError(name)
        return self.fields[Tile.NAMES.index(name)]

    @property
    def blocks(self):
        return self.last - self.first

    def __extract_mlir_values__(self):
        return [x.ir_value() for x in self.fields]

    def __new_from_mlir_values__(self, values):
        return Tile(*(Int32(v) for v in values))

    def __get_mlir_types__(self):
        return [x.type for x in self.__extract_mlir_values__()]


class Scheduler(Fixed):
    """Decodes and publishes tiles. ring: of `STAGES` records; records: Int32 [STAGES, FIELDS] in
    shared memory; work: the `Work` of the kernel; ranges: its `Ranges`."""

    def __init__(self, ring: Ring, records, work, ranges):
        self.ring, self.records, self.work = ring, records, work
        self.ranges = ranges

    def start(self) -> Cursor:
        return self.ring.start()

    @cute.jit
    def publish(self):
        """The loop of the scheduler warp."""
        grid, _, _ = cute.arch.grid_dim()
        cta, _, _ = cute.arch.block_idx()
        at, turn, number = self.ring.start(), Int32(0), Int32(cta)
        while number < self.work.tiles:
            tile = self.work.decode(number)
            if tile.row < tile.q_rows:
                at = self.put(at, tile)
            turn += 1
            number = turn * grid + select(turn % 2 == 1, grid - 1 - cta, cta)
        self.put(at, Tile(*(Int32(0) for _ in Tile.NAMES)))

    @cute.jit
    def put(self, at: Cursor, tile: Tile):
        self.ring.empty.wait_before(at)
        first, last = self.ranges.blocks(tile)
        fields = (*tile.fields[:-2], first, last)
        with cute.arch.elect_one():
            for i in range_constexpr(FIELDS):
                self.records[at.index, i] = fields[i]
            self.ring.full.arrive(at)
        return at.next()

    @cute.jit
    def take(self, at: Cursor):
        """(the tile at `at`, the place after it), for a whole warp of a role."""
        self.ring.full.wait(at)
        tile = Tile(*(self.records[at.index, i] for i in range(FIELDS)))
        self.ring.empty.arrive_once(at)
        return tile, at.next()

    @cute.jit
    def take_busy(self, at: Cursor):
        """The next tile that has key blocks, or the end."""
        tile, at = self.take(at)
        while (tile.valid == 1) & (tile.blocks == 0):
            tile, at = self.take(at)
        return tile, at
