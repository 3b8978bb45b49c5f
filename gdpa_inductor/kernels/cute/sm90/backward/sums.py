"""dQ: the parts of all key tiles, added up in memory, then converted.

Each query tile of a head has a counter: how many key tiles have added to it. A tile adds when the
counter says that all those have that come before it (`Turns`). So every dQ is the same sum, term by
term, in every run with as many CTAs. The first stores, so that nobody has to clear the sums. After
the last, the query tile is converted to 16 bits, by warps of their own. The key tiles of a head
share its query tiles for that: who adds last may always be the same.

Where any order will do (`KernelConfig.ordered`), no tile waits for its turn, and all add: the sums
were cleared. All add too where the launch before has begun the sums, with other keys.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr

from ...backward.walk import ResidentTile
from ...barriers import Signal
from ...operands import VECTOR, Matrix, Tiles, vector
from ...values import Fixed, smaller
from .roles import EMPTY, FULL, GROUPS, HANDED
from .shapes import HALF
from .turns import Turns

LANES, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and those that share a row


class Counters(Fixed):
    """How many key tiles have added to a query tile. pointer: Int32 [batch, heads, query tiles]."""

    def __init__(self, walk: Turns, pointer: Any) -> None:
        self.walk, self.pointer = walk, pointer

    def of(self, tile: ResidentTile, head: Any, block: Any) -> Any:
        unit = Int64(tile.batch * self.walk.query_heads + head)
        return self.pointer + (unit * self.walk.streamed_tiles + block)

    @cute.jit
    def wait(self, counter, count: Int32):
        """Until so many have. What they added is there for TMA afterwards."""
        found = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        while found != count:
            found = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
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
        self.wait(counter, count)


class QuerySums:
    """The warp that adds. stores, adds: the tiles of the sums, one for the columns of each
    warpgroup that there are, written by a store and by an addition."""

    def __init__(self, stores: list[Tiles], adds: list[Tiles], counters: Counters) -> None:
        self.walk, self.counters = counters.walk, counters
        self.stores, self.adds = stores, adds
        config = self.walk.ranges.config
        self.ordered, self.continues = config.ordered, config.continues

    @cute.jit
    def run(self):
        """The parts of all steps of the CTA."""
        for group in range_constexpr(GROUPS):
            self.free(group)
        deal = Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry = self.walk.entry(tile)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for i in cutlass.range(tile.end - tile.begin, unroll=1):
                    self.step(tile, head, self.walk.block(tile, entry, i))
            deal += 1
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def step(self, tile: ResidentTile, head, block):
        """One part of dQ. Where the mask leaves nothing it is zero, and dropped."""
        before, adds = Int32(0), Boolean(True)
        if const_expr(self.ordered):
            before, adds = self.walk.turn(tile, head, block)
        else:
            adds = self.walk.adds(tile, head, block)
        if adds:
            self.add(tile, head, block, before)
        else:
            for group in range_constexpr(GROUPS):
                self.taken(group)
                self.free(group)

    @cute.jit
    def add(self, tile: ResidentTile, head, block, before):
        """In turn, if there is one. The buffer is free for the next part before the counter moves
        on."""
        counter = self.counters.of(tile, head, block)
        if const_expr(self.ordered):
            self.counters.wait(counter, before)
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
        # The wait makes the sums visible to this thread, the release to the others. On sm_90 it is
        # the release that waits for the additions (docs/lab/2026-11-22-order.md).
        with cute.arch.elect_one():
            self.counters.advance(counter, before)

    @cute.jit
    def copy(self, tile: ResidentTile, head, block, before, group):
        """Of a warpgroup's columns; rows past the end of the sequence are dropped."""
        place = (tile.origin, block * self.walk.heights.streamed, tile.length, head, tile.batch)
        if const_expr(group < len(self.adds)):
            if const_expr(self.ordered and not self.continues):
                if before == 0:
                    self.stores[group].store(*place, group)
                else:
                    self.adds[group].store(*place, group)
            else:
                self.adds[group].store(*place, group)

    def taken(self, group: int) -> None:
        """The part of a warpgroup lies in shared memory."""
        cute.arch.barrier(barrier_id=FULL + group, number_of_threads=HANDED)

    def free(self, group: int) -> None:
        cute.arch.barrier_arrive(barrier_id=EMPTY + group, number_of_threads=HANDED)


class Conversion:
    """A warp that converts 64 columns. landed: its barrier. sums: their tiles in fp32, read without
    a swizzle. grads: dQ in 16 bits. number: of the warp. factor: of the sums."""

    def __init__(
        self, landed: Signal, sums: Tiles, grads: Matrix, number: int, counters: Counters,
        factor: float,
    ) -> None:  # fmt: skip
        self.walk, self.landed, self.counters = counters.walk, landed, counters
        self.sums, self.grads, self.number, self.factor = sums, grads, number, factor

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
                    if count > 0:
                        self.counters.watch(self.counters.of(tile, head, block), count)
                        self.read(tile, head, block, done)
                        self.write(tile, head, block)
                        done += 1
            deal += 1

    def read(self, tile: ResidentTile, head: Any, block: Any, done: Any) -> None:
        """The sums to shared memory."""
        self.landed.expect(done, self.sums.size)
        row = block * self.walk.heights.streamed
        place = (tile.origin, row, tile.length, head, tile.batch, self.number)
        self.sums.copy(*place, self.landed.at(done))
        self.landed.wait(done)

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
