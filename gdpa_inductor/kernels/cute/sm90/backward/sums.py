"""dQ: the parts of all key tiles, added up in memory, then converted.

Each query tile of a head has a counter for 64 columns: how many key tiles have added to them. A
tile adds when the counter says that all those have that come before it (`Turns`). So every dQ is
the same sum, term by term, in every run with as many CTAs. The first stores, so that nobody has to
clear the sums. A warpgroup multiplies 64 columns, and a warp for each adds them.

After the last, the query tile is converted to 16 bits (`conversion.py`).

Where any order will do (`KernelConfig.ordered`), no tile waits for its turn, and all add: the sums
were cleared. All add too where the launch before has begun the sums, with other keys. The last of
such launches converts all query tiles, those too that its own keys do not meet.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, const_expr, cute

from ...backward.roots import adds_all
from ...backward.walk import ResidentTile
from ...operands import Tiles
from ...values import Fixed, smaller
from .roles import EMPTY, FULL, HANDED
from .turns import Turns

UNKNOWN = -1  # of a counter


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
