"""dQ: the parts of all key tiles, added up in memory, then converted.

Each query tile of a head has a counter for 64 columns: how many key tiles have added to them. A
tile adds when the counter says that all those have that come before it (`Turns`). So every dQ is
the same sum, term by term, in every run with as many CTAs. The first stores, so that nobody has to
clear the sums. A warpgroup multiplies 64 columns, and a warp for each adds them.

After the last, the query tile is converted to 16 bits, by a warp of its own. The key tiles of a
head share its query tiles for that: who adds last may always be the same.

Where any order will do (`KernelConfig.ordered`), no tile waits for its turn, and all add: the sums
were cleared. All add too where the launch before has begun the sums, with other keys. The last of
such launches converts all query tiles, those too that its own keys do not meet.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute

from ...backward.roots import adds_all
from ...backward.walk import ResidentTile
from ...barriers import Signal
from ...config import VECTOR
from ...operands import Matrix, Tiles, vector
from ...values import Fixed, smaller
from .roles import EMPTY, FULL, HANDED
from .shapes import HALF
from .turns import Turns

UNKNOWN = -1  # of a counter
LANES, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and those that share a row


class Counters(Fixed):
    """How many key tiles have added to columns of a query tile. pointer: Int32 [batch, heads, query
    tiles, columns]. number: of 64 columns, of so many."""

    def __init__(self, walk: Turns, pointer: Any, number: Any, columns: int) -> None:
        self.walk, self.pointer, self.number, self.columns = walk, pointer, number, columns

    def of(self, tile: ResidentTile, head: Any, block: Any) -> Any:
        unit = Int64(tile.batch * self.walk.query_heads + head)
        place = (unit * self.walk.streamed_tiles + block) * self.columns
        return self.pointer + (place + self.number)

    def value(self, counter: Any) -> Any:
        """How many have, now. What they added is there for TMA after a fence."""
        return cute.arch.load(counter, Int32, sem="acquire", scope="gpu")

    @cute.jit
    def wait(self, counter, count: Int32, seen: Int32):
        """Until so many have. seen: what `value` was, a while ago. What they added is there for TMA
        afterwards."""
        while seen != count:
            seen = self.value(counter)
        cute.arch.fence_proxy("async.global")

    def advance(self, counter: Any, before: Any) -> None:
        """One more has added, after `before`, by one thread. What it has seen done is done for who
        reads the counter."""
        if self.walk.ranges.config.ordered:
            cute.arch.store(counter, before + 1, sem="release", scope="gpu")
        else:
            cute.arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")

    @cute.jit
    def watch(self, counter, count: Int32):
        """The same for who may wait long. An acquire empties the L1 cache, which holds operands of
        the program: here there is one."""
        found = cute.arch.load(counter, Int32, sem="relaxed", scope="gpu")
        while found != count:
            cute.arch.inline_ptx("nanosleep.u32 256;")
            found = cute.arch.load(counter, Int32, sem="relaxed", scope="gpu")
        self.wait(counter, count, Int32(UNKNOWN))


class QuerySums:
    """A warp that adds what a warpgroup hands over. stores, adds: the tiles of the sums, written by
    a store and by an addition. counters: of the columns of the warpgroup."""

    def __init__(self, stores: Tiles, adds: Tiles, counters: Counters) -> None:
        self.walk, self.counters = counters.walk, counters
        self.stores, self.adds, self.group = stores, adds, counters.number
        config = self.walk.ranges.config
        self.ordered, self.adds_all = config.ordered, adds_all(config)

    @cute.jit
    def run(self):
        """The parts of all steps of the CTA."""
        self.free()
        deal = Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry, count = self.walk.entry(tile), tile.end - tile.begin
            for turn in range(tile.passes):
                head, seen = self.walk.streamed_head(tile, turn), Int32(UNKNOWN)
                for i in cutlass.range(count, unroll=1):
                    following = self.walk.block(tile, entry, smaller(i + 1, count - 1))
                    block = self.walk.block(tile, entry, i)
                    seen = self.step(tile, head, block, following, seen)
            deal += 1
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def step(self, tile: ResidentTile, head, block, following, seen):
        """One part of dQ. Where the mask leaves nothing it is zero, and dropped. So are columns
        that there are not. seen: what the counter was when the step before ended. Returns the same
        for the query tile that follows."""
        before, adds = Int32(0), Boolean(True)
        if const_expr(self.ordered):
            before, adds = self.walk.turn(tile, head, block)
        else:
            adds = self.walk.adds(tile, head, block)
        found = Int32(UNKNOWN)
        if adds & (self.group < self.counters.columns):
            counter = self.counters.of(tile, head, block)
            if const_expr(self.ordered):
                self.counters.wait(counter, before, seen)
            self.add(tile, head, block, before)
            # Seen while the additions are on their way, for both take long.
            if const_expr(self.ordered):
                found = self.counters.value(self.counters.of(tile, head, following))
            self.pass_on(counter, before)
        else:
            self.taken()
            self.free()
        return found

    @cute.jit
    def add(self, tile: ResidentTile, head, block, before):
        """The buffer is free for the next part before the counter moves on. Rows past the end of
        the sequence are dropped."""
        place = (tile.origin, block * self.walk.heights.streamed, tile.length, head, tile.batch)
        self.taken()
        if const_expr(not self.adds_all):
            if before == 0:
                self.stores.store(*place, self.group)
            else:
                self.adds.store(*place, self.group)
        else:
            self.adds.store(*place, self.group)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_warp()
        self.free()

    @cute.jit
    def pass_on(self, counter, before):
        """When all is added. The wait makes the sums visible to this thread, the release to the
        others. On sm_90 it is the release that waits for the additions
        (docs/lab/2026-11-22-order.md)."""
        cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.fence_proxy("async.global")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            self.counters.advance(counter, before)

    def taken(self) -> None:
        """The part lies in shared memory."""
        cute.arch.barrier(barrier_id=FULL + self.group, number_of_threads=HANDED)

    def free(self) -> None:
        cute.arch.barrier_arrive(barrier_id=EMPTY + self.group, number_of_threads=HANDED)


class Conversion:
    """The warp that converts. parts: the columns of dQ."""

    def __init__(self, walk: Turns, parts: list["ConvertedColumns"]) -> None:
        self.walk, self.parts = walk, parts

    @cute.jit
    def run(self):
        """The share of each tile of the CTA."""
        deal, done = Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            first, end = self.walk.share(tile)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for block in range(first, end):
                    count = self.walk.adders(tile, head, block)
                    if self.begun(count):
                        for part in self.parts:
                            part.read(tile, head, block, count, done)
                        for part in self.parts:
                            part.write(tile, head, block, done)
                        done += 1
            deal += 1

    def begun(self, count: Any) -> Any:
        """Whether there are sums, if so many tiles of this launch have added to them."""
        continues = self.walk.ranges.skips and self.walk.ranges.config.continues
        return Boolean(True) if continues else count > 0


class ConvertedColumns(Fixed):
    """64 columns of dQ. landed: their barrier. sums: their tiles in fp32, read without a swizzle.
    grads: dQ in 16 bits. factor: of the sums."""

    def __init__(
        self, landed: Signal, sums: Tiles, grads: Matrix, counters: Counters, factor: float
    ) -> None:
        self.walk, self.landed, self.counters = counters.walk, landed, counters
        self.sums, self.grads, self.number, self.factor = sums, grads, counters.number, factor

    def read(self, tile: ResidentTile, head: Any, block: Any, count: Any, done: Any) -> None:
        """The sums to shared memory, once so many tiles have added to them."""
        self.counters.watch(self.counters.of(tile, head, block), count)
        self.landed.expect(done, self.sums.size)
        row = block * self.walk.heights.streamed
        place = (tile.origin, row, tile.length, head, tile.batch, self.number)
        self.sums.copy(*place, self.landed.at(done))

    @cute.jit
    def write(self, tile: ResidentTile, head, block, done):
        """Each lane takes 8 columns of a row, and all of them 4 rows at a time."""
        self.landed.wait(done)
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
                whole = found.load()
                if const_expr(self.factor != 1.0):
                    whole = whole * self.factor
                narrow.store(whole.to(kind))
                cute.autovec_copy(narrow, vector(first + i * Int64(self.grads.strides[2])))
        cute.arch.sync_warp()

    def row(self, tile: ResidentTile, head: Any, row: Any) -> Any:
        """Where the columns of the warp begin in a row of the sequence."""
        sb, sh, sr = (Int64(s) for s in self.grads.strides)
        place = (Int64(tile.origin) + row) * sr + head * sh + self.number * HALF
        return self.grads.pointer + (place if self.grads.jagged else place + tile.batch * sb)
