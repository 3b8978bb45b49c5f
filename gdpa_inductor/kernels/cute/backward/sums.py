"""Sums of dQ in global memory, in a fixed order, where key tiles are resident.

All key tiles of a head add their parts of dQ. Each query tile has a counter: how many key tiles
have added. A key tile waits until the counter says that its turn has come (`turns.py`). So each dQ
is the same sum, term by term, in every run with the same number of CTAs. The first key tile stores,
so that nobody has to clear the sums. After the last one they are converted to 16 bits: by a warp of
its own (`Conversion`), or as the last key tile adds.

If any order is allowed (`KernelConfig.ordered` is False), no key tile waits for a turn. Then all
key tiles add, and the host clears the sums before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, const_expr, cute

from ..values import Fixed, smaller
from .roots import adds_all
from .turns import Turns
from .walk import ResidentTile

UNKNOWN = -1  # the value of a counter that was not read yet


@dataclass
class Counters(Fixed):
    """Counters: how many key tiles have added to a query tile, or to a part of its columns."""

    walk: Turns
    pointer: Any  # Int32 [batch, heads, query tiles, columns]
    number: Any  # which columns these counters are for
    columns: int  # into how many parts the columns of dQ are cut

    def of(self, tile: ResidentTile, head, block):
        unit = Int64(tile.batch * self.walk.query_heads + head)
        place = (unit * self.walk.streamed_tiles + block) * self.columns
        return self.pointer + (place + self.number)

    def value(self, counter):
        return cute.arch.load(counter, Int32, sem="acquire", scope="gpu")

    @cute.jit
    def wait(self, counter, count: Int32, seen: Int32):
        """Wait until a counter, which was `seen`, is `count`. Then this thread sees what was added.

        TMA sees it after a fence of the proxies.
        """
        while seen != count:
            seen = self.value(counter)

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
    """A warp that adds the parts of dQ from shared memory, in turn.

    `parts` has these methods, of a step where it has an argument:

    - `start()`, before the first step;
    - `wait(step)`: wait until the part is in shared memory;
    - `issue(tile, head, block, step, adds)`: store the part, or add it to the sums;
    - `free(step)`: the part has been read.

    - `takes(tile, head, block, before)`: whether the part is added here.
    """

    parts: Any
    counters: Counters

    def __post_init__(self) -> None:
        self.walk = self.counters.walk
        config = self.walk.ranges.config
        self.ordered, self.adds_all = config.ordered, adds_all(config)

    @cute.jit
    def run(self):
        self.parts.start()
        number, deal = Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry, count = self.walk.entry(tile), tile.end - tile.begin
            for turn in range(tile.passes):
                head, seen = self.walk.streamed_head(tile, turn), Int32(UNKNOWN)
                for i in cutlass.range(count, unroll=1):
                    following = self.walk.block(tile, entry, smaller(i + 1, count - 1))
                    block = self.walk.block(tile, entry, i)
                    seen = self.step(tile, head, block, following, number, seen)
                    number += 1
            deal += 1
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def step(self, tile: ResidentTile, head, block, following, number, seen):
        """Add one part of dQ."""
        # It is dropped if a mask empties the tile, or if `parts.takes` says no.
        # number: The number of the step.
        # seen: The counter, as it was read when the step before ended. Returns the same for the
        # next query tile.
        before, adds = Int32(0), Boolean(True)
        if const_expr(self.ordered):
            before, adds = self.walk.turn(tile, head, block)
        else:
            adds = self.walk.adds(tile, head, block)
        next_count = Int32(UNKNOWN)
        if adds & self.parts.takes(tile, head, block, before):
            counter = self.counters.of(tile, head, block)
            if const_expr(self.ordered):
                self.counters.wait(counter, before, seen)
                cute.arch.fence_proxy("async.global")
            self.add(tile, head, block, number, before)
            # Read the next counter while the additions are in flight, as both take long.
            if const_expr(self.ordered):
                next_count = self.counters.value(self.counters.of(tile, head, following))
            self.pass_on(counter, before)
        else:
            self.parts.wait(number)
            self.parts.free(number)
        return next_count

    @cute.jit
    def add(self, tile: ResidentTile, head, block, number, before):
        """Issue the addition. The buffer is free for the next part before the counter moves on."""
        place = (tile, head, block, number)
        self.parts.wait(number)
        if const_expr(not self.adds_all):
            if before == 0:
                self.parts.issue(*place, adds=False)
            else:
                self.parts.issue(*place, adds=True)
        else:
            self.parts.issue(*place, adds=True)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_warp()
        self.parts.free(number)

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


@dataclass
class Conversion(Fixed):
    """The warp that converts the sums of dQ from fp32 to 16 bits, once all key tiles have added.

    The CTAs that own the key tiles of a head share its query tiles for this work. It would be
    unbalanced if the CTA that adds last converted, as this may always be the same. Nobody reads the
    sums afterwards. So the L2 cache discards its lines of them instead of writing them to memory.
    """

    walk: Turns
    parts: Sequence[Any]  # the parts of dQ; each has `read` and `write`

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
