"""dQ: the parts of all key tiles, added up in memory in a fixed order, then converted.

Each query tile of a head has a counter: how many key tiles have added to it. A tile adds when the
counter says that all those have that come before it (`Turns`). So every dQ is the same sum, term by
term, in every run with as many CTAs. The first stores, so that nobody has to clear the sums. After
the last, warps of their own convert the query tile to 16 bits.
"""

from typing import Any

from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr

from ...backward.walk import ResidentTile
from ...operands import VECTOR, Matrix, Tiles, vector
from ...values import smaller
from .roles import EMPTY, FULL, GROUPS, HANDED, HopperSignals
from .shapes import HALF
from .turns import Turns

LANES, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and those that share a row


class QueryTiles:
    """A role that goes through the steps of the CTA, and counts the query tiles that a tile of it
    completes."""

    def __init__(self, walk: Turns, signals: HopperSignals) -> None:
        self.walk, self.signals = walk, signals

    @cute.jit
    def run(self):
        """All steps of the CTA."""
        deal, done = Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry = self.walk.entry(tile)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for i in range(tile.end - tile.begin):
                    done = self.step(tile, head, self.walk.block(tile, entry, i), done)
            deal += 1

    def step(self, tile: ResidentTile, head: Any, block: Any, done: Any) -> Any:
        """One query tile. done: how many are complete; returns how many are then."""
        raise NotImplementedError


class QuerySums(QueryTiles):
    """The warp that adds. stores, adds: the tiles of the sums, one for the columns of each
    warpgroup that there are, written by a store and by an addition. counters: Int32 [batch, heads,
    query tiles].
    """

    def __init__(
        self, walk: Turns, signals: HopperSignals, stores: list[Tiles], adds: list[Tiles],
        counters: Any, converts: bool,
    ) -> None:  # fmt: skip
        super().__init__(walk, signals)
        self.stores, self.adds, self.counters = stores, adds, counters
        self.converts = converts

    def add_all(self) -> None:
        """The parts of all steps."""
        for group in range(GROUPS):
            self.free(group)
        self.run()
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def step(self, tile: ResidentTile, head, block, done):
        """One part of dQ. Where the mask leaves nothing it is zero, and dropped."""
        before, after, adds = self.walk.turn(tile, head, block)
        if adds:
            done = self.add(tile, head, block, before, after, done)
        else:
            for group in range_constexpr(GROUPS):
                self.taken(group)
                self.free(group)
        return done

    @cute.jit
    def add(self, tile: ResidentTile, head, block, before, after, done):
        """In turn. The buffer is free for the next part before the counter moves on."""
        counter = self.counter(tile, head, block)
        found = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        while found != before:
            found = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        cute.arch.fence_proxy("async.global")
        for group in range_constexpr(GROUPS):
            self.taken(group)
            self.copy(tile, head, block, before, group)
            cute.arch.cp_async_bulk_commit_group()
        for group in range_constexpr(GROUPS):
            cute.arch.cp_async_bulk_wait_group(GROUPS - 1 - group, read=True)
            cute.arch.sync_warp()
            self.free(group)
        cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.fence_proxy("async.global")
        cute.arch.sync_warp()
        if after > 0:
            with cute.arch.elect_one():
                cute.arch.store(counter, before + 1, sem="release", scope="gpu")
        elif const_expr(self.converts):
            # The wait above ends when the part is read; this fence, when it is added.
            cute.arch.fence_acq_rel_gpu()
            self.signals.converted.wait_before(done)
            self.signals.complete.arrive_once(done)
            done += 1
        return done

    @cute.jit
    def copy(self, tile: ResidentTile, head, block, before, group):
        """Of a warpgroup's columns; rows past the end of the sequence are dropped."""
        place = (tile.origin, block * self.walk.heights.streamed, tile.length, head, tile.batch)
        if const_expr(group < len(self.stores)):
            if before == 0:
                self.stores[group].store(*place, group)
            else:
                self.adds[group].store(*place, group)

    def taken(self, group: int) -> None:
        """The part of a warpgroup lies in shared memory."""
        cute.arch.barrier(barrier_id=FULL + group, number_of_threads=HANDED)

    def free(self, group: int) -> None:
        cute.arch.barrier_arrive(barrier_id=EMPTY + group, number_of_threads=HANDED)

    def counter(self, tile: ResidentTile, head: Any, block: Any) -> Any:
        walk = self.walk
        unit = Int64(tile.batch * walk.query_heads + head)
        return self.counters + (unit * walk.streamed_tiles + block)


class Conversion(QueryTiles):
    """A warp that converts 64 columns. sums: their tiles in fp32, read without a swizzle. grads: dQ
    in 16 bits. number: of the warp."""

    def __init__(
        self, walk: Turns, signals: HopperSignals, sums: Tiles, grads: Matrix, number: int
    ) -> None:
        super().__init__(walk, signals)
        self.sums, self.grads, self.number = sums, grads, number

    @cute.jit
    def step(self, tile: ResidentTile, head, block, done):
        """Nothing, unless a tile of this CTA completes the query tile."""
        _, after, adds = self.walk.turn(tile, head, block)
        if adds & (after == 0):
            self.signals.complete.wait(done)
            self.read(tile, head, block, done)
            self.write(tile, head, block)
            self.signals.converted.arrive_once(done)
            done += 1
        return done

    def read(self, tile: ResidentTile, head: Any, block: Any, done: Any) -> None:
        """The sums to shared memory. Other CTAs have added to them by TMA."""
        cute.arch.fence_proxy("async.global")
        read, row = self.signals.read[self.number], block * self.walk.heights.streamed
        read.expect(done, self.sums.size)
        place = (tile.origin, row, tile.length, head, tile.batch, self.number)
        self.sums.copy(*place, read.at(done))
        read.wait(done)

    @cute.jit
    def write(self, tile: ResidentTile, head, block):
        """Each lane takes 8 columns of a row, and all of them 4 rows at a time."""
        height, kind = self.walk.heights.streamed, self.grads.pointer.dtype
        lane, row = cute.arch.lane_idx(), block * height
        column = lane % COLUMNS * VECTOR
        first = self.row(tile, head, row) + column
        buffer = self.sums.sX[None, None, self.number].iterator
        if self.number * HALF + column < self.grads.width:
            rows = smaller(tile.length - row, Int32(height))
            for i in range(lane // COLUMNS, rows, LANES // COLUMNS):
                found = cute.make_rmem_tensor(VECTOR, Float32)
                cute.autovec_copy(vector(buffer + (i * HALF + column)), found)
                narrow = cute.make_rmem_tensor(VECTOR, kind)
                narrow.store(found.load().to(kind))
                cute.autovec_copy(narrow, vector(first + i * Int64(self.grads.strides[2])))
        cute.arch.sync_warp()

    def row(self, tile: ResidentTile, head: Any, row: Any) -> Any:
        """Where the columns of the warp begin in a row of the sequence."""
        sb, sh, sr = (Int64(s) for s in self.grads.strides)
        place = (Int64(tile.origin) + row) * sr + head * sh + self.number * HALF
        return self.grads.pointer + (place if self.grads.jagged else place + tile.batch * sb)
