"""Sum dQ in global memory: all key tiles of a head add their parts, in a fixed order.

Each query tile of a head has a counter for each 64 columns: how many key tiles have added to them.
A key tile waits until the counter says that its turn has come (`turns.py`). So each dQ is the same
sum, term by term, in every run with the same number of CTAs. The first key tile stores, so that
nobody has to clear the sums. Each warpgroup multiplies 64 columns, and a warp of its own adds them.
After the last key tile, the sums are converted to 16 bits (`Conversion`).

If any order is allowed (`KernelConfig.ordered` is False), no key tile waits for a turn. Then all
key tiles add, and the host clears the sums before.

If each launch has some of the keys (`KernelConfig.part`), later launches add to the sums of earlier
ones. The last launch converts all query tiles, even those that its own keys do not meet.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute

from ...backward.roots import adds_all
from ...backward.walk import ResidentTile
from ...barriers import Signal
from ...config import VECTOR
from ...operands import Matrix, Tiles, vector
from ...values import Fixed, smaller
from .roles import EMPTY, FULL, HALF, HANDED
from .turns import Turns

WARP, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and lanes that share a row
LINE = 32  # fp32 sums in a line of the L2 cache
UNKNOWN = -1  # the value of a counter that was not read yet


@dataclass
class Counters(Fixed):
    """Counters: how many key tiles have added to 64 columns of a query tile."""

    walk: Turns
    pointer: Any  # Int32 [batch, heads, query tiles, columns]
    number: Any  # which 64 columns these counters are for
    columns: int  # into how many parts of 64 columns dQ is cut

    def of(self, tile: ResidentTile, head, block):
        unit = Int64(tile.batch * self.walk.query_heads + head)
        place = (unit * self.walk.streamed_tiles + block) * self.columns
        return self.pointer + (place + self.number)

    def value(self, counter):
        # After a fence, TMA sees what was added before.
        return cute.arch.load(counter, Int32, sem="acquire", scope="gpu")

    @cute.jit
    def wait(self, counter, count: Int32, seen: Int32):
        """Wait until a counter, which was `seen`, is `count`. Then TMA sees what was added."""
        while seen != count:
            seen = self.value(counter)
        cute.arch.fence_proxy("async.global")

    def advance(self, counter, before) -> None:
        # One thread calls it. It is a release: a thread that reads the new value sees all that this
        # thread saw before.
        if self.walk.ranges.config.ordered:
            cute.arch.store(counter, before + 1, sem="release", scope="gpu")
        else:
            cute.arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")

    @cute.jit
    def watch(self, counter, count: Int32):
        """As `wait`, but for a wait that may be long.

        Each acquire empties the L1 cache, which holds aux operands. So this polls with relaxed
        loads, and does one acquire at the end.
        """
        value = cute.arch.load(counter, Int32, sem="relaxed", scope="gpu")
        while value != count:
            cute.arch.inline_ptx("nanosleep.u32 256;")
            value = cute.arch.load(counter, Int32, sem="relaxed", scope="gpu")
        self.wait(counter, count, Int32(UNKNOWN))


@dataclass
class QuerySums(Fixed):
    """A warp that adds what a warpgroup hands over."""

    stores: Tiles  # of the sums, written by a store, and by an addition
    adds: Tiles
    counters: Counters  # of the columns of the warpgroup

    def __post_init__(self) -> None:
        self.walk, self.group = self.counters.walk, self.counters.number
        config = self.walk.ranges.config
        self.ordered, self.adds_all = config.ordered, adds_all(config)

    @cute.jit
    def run(self):
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
        """Add one part of dQ."""
        # It is dropped if a mask empties the tile, or if dQ lacks the columns.
        # seen: The counter, as it was read when the step before ended. Returns the same for the
        # next query tile.
        before, adds = Int32(0), Boolean(True)
        if const_expr(self.ordered):
            before, adds = self.walk.turn(tile, head, block)
        else:
            adds = self.walk.adds(tile, head, block)
        next_count = Int32(UNKNOWN)
        if adds & (self.group < self.counters.columns):
            counter = self.counters.of(tile, head, block)
            if const_expr(self.ordered):
                self.counters.wait(counter, before, seen)
            self.add(tile, head, block, before)
            # Read the next counter while the additions are in flight, as both take long.
            if const_expr(self.ordered):
                next_count = self.counters.value(self.counters.of(tile, head, following))
            self.pass_on(counter, before)
        else:
            self.wait_for_part()
            self.free()
        return next_count

    @cute.jit
    def add(self, tile: ResidentTile, head, block, before):
        """Issue the addition. The buffer is free for the next part before the counter moves on."""
        # Rows past the end of the sequence are dropped.
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        place = (rows, head, tile.batch, self.group)
        self.wait_for_part()
        if const_expr(not self.adds_all):
            if before == 0:
                self.stores.store(*place)
            else:
                self.adds.store(*place)
        else:
            self.adds.store(*place)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_warp()
        self.free()

    @cute.jit
    def pass_on(self, counter, before):
        """The wait makes the sums visible to this thread, and the release to other threads.

        On sm_90 the release is what waits for the additions (docs/lab/2026-11-22-order.md).
        """
        cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.fence_proxy("async.global")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            self.counters.advance(counter, before)

    def wait_for_part(self) -> None:
        cute.arch.barrier(barrier_id=FULL + self.group, number_of_threads=HANDED)

    def free(self) -> None:
        cute.arch.barrier_arrive(barrier_id=EMPTY + self.group, number_of_threads=HANDED)


@dataclass
class Conversion(Fixed):
    """The warp that converts the sums of dQ from fp32 to 16 bits, once all key tiles have added.

    The CTAs that own the key tiles of a head share its query tiles for this work. It would be
    unbalanced if the CTA that adds last converted, as this may always be the same. Nobody reads the
    sums afterwards. So the L2 cache discards its lines of them instead of writing them to memory.
    """

    walk: Turns
    parts: list["ConvertedColumns"]  # the columns of dQ, 64 in each

    @cute.jit
    def run(self):
        deal, done = Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            share = self.walk.share(tile)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for i in range(share):
                    block = self.walk.converted(tile, i)
                    count = self.walk.adders(tile, head, block)
                    if self.begun(count):
                        for part in self.parts:
                            part.read(tile, head, block, count, done)
                        for part in self.parts:
                            part.write(tile, head, block, done)
                        done += 1
            deal += 1

    def begun(self, count):
        continues = self.walk.ranges.skips and self.walk.ranges.config.continues
        return Boolean(True) if continues else count > 0


@dataclass
class ConvertedColumns(Fixed):
    """64 columns of dQ."""

    landed: Signal  # for loads of their sums
    tiles: Tiles  # of the sums, in shared memory without a swizzle
    sums: Matrix  # in global memory, as dQ in 16 bits
    grads: Matrix
    counters: Counters  # how many key tiles have added
    factor: float  # dQ is the sums times this

    def __post_init__(self) -> None:
        self.walk, self.number = self.counters.walk, self.counters.number

    def read(self, tile: ResidentTile, head, block, count, done) -> None:
        self.counters.watch(self.counters.of(tile, head, block), count)
        self.landed.expect(done, self.tiles.size)
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        self.tiles.copy(rows, head, tile.batch, self.number, self.landed.at(done))

    @cute.jit
    def write(self, tile: ResidentTile, head, block, done):
        """Convert and store. A lane takes 8 columns of a row, the warp 4 rows at a time."""
        self.landed.wait(done)
        lane, row = cute.arch.lane_idx(), block * self.walk.heights.streamed
        rows = smaller(tile.length - row, Int32(self.walk.heights.streamed))
        column = lane % COLUMNS * VECTOR
        buffer = self.tiles.sX[None, None, self.number].iterator
        if self.number * HALF + column < self.grads.width:
            first = self.grads.row(tile.origin, row, head, tile.batch)
            first = first + (self.number * HALF + column)
            for i in range(lane // COLUMNS, rows, WARP // COLUMNS):
                sums = cute.make_rmem_tensor(VECTOR, Float32)
                cute.autovec_copy(vector(buffer + (i * HALF + column)), sums)
                narrow(sums, first + i * Int64(self.grads.strides[2]), self.factor)
        cute.arch.sync_warp()
        self.discard(self.sums.row(tile.origin, row, head, tile.batch), rows)

    @cute.jit
    def discard(self, first, rows):
        """Discard the sums of `rows` rows from a pointer on: two cache lines of each row."""
        lane = cute.arch.lane_idx()
        column = self.number * HALF + lane % 2 * LINE
        if const_expr(self.sums.width % LINE == 0):  # noqa: SIM102 (decided at compile time)
            if column < self.sums.width:
                for i in range(lane // 2, rows, WARP // 2):
                    forget(first + (i * Int64(self.sums.strides[2]) + column))


def narrow(sums, pointer, factor: float) -> None:
    """Store 8 sums in 16 bits, by a streaming store: they leave the L2 cache first."""
    rounded = cute.make_rmem_tensor(VECTOR, pointer.dtype)
    whole = sums.load()
    if factor != 1.0:
        whole = whole * factor
    rounded.store(whole.to(pointer.dtype))
    words = cute.recast_tensor(rounded, Int64)
    cute.arch.inline_ptx(
        "st.global.cs.v2.b64 [{$r0}], {{$r1}, {$r2}};",
        read_only_args=[pointer.toint(), words[0], words[1]],
    )


def forget(pointer) -> None:
    """Have the L2 cache discard a line of 128 bytes instead of writing it to memory."""
    cute.arch.inline_ptx("discard.global.L2 [{$r0}], 128;", read_only_args=[pointer.toint()])
