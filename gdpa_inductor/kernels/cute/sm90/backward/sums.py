"""Sum dQ in global memory by TMA, in the order of `backward/sums.py`.

Each query tile of a head has a counter for each 64 columns. Each warpgroup multiplies 64 columns,
and a warp of its own adds them.

If any order is allowed (`KernelConfig.ordered` is False), no key tile waits for a turn. Then all
key tiles add, and the host clears the sums before.

If each launch has some of the keys (`KernelConfig.part`), later launches add to the sums of earlier
ones. The last launch converts all query tiles, even those that its own keys do not meet.
"""

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute

from ...backward.roots import adds_all
from ...backward.sums import UNKNOWN, Counters
from ...backward.walk import ResidentTile
from ...barriers import Signal
from ...config import VECTOR
from ...operands import Matrix, Tiles, vector
from ...values import Fixed, smaller
from .roles import EMPTY, FULL, HALF, HANDED

WARP, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and lanes that share a row
LINE = 32  # fp32 sums in a line of the L2 cache


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
                cute.arch.fence_proxy("async.global")
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
        cute.arch.fence_proxy("async.global")  # TMA sees what was added before
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
