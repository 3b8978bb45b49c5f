"""dQ: the parts of all key tiles, added up in memory in a fixed order, by a warp of its own.

Each query tile of a head has a counter: how many key tiles have added to it. A key tile adds when
the counter says that all lower ones, which meet the query tile, have. So every dQ is the same sum,
term by term, in every run.

No turn waits forever. A tile waits for lower tiles of its head only, these have lower numbers, and
every CTA takes its tiles in the order of their numbers. All CTAs are resident (the launch is
cooperative), so the lowest tile that is not finished is running, and waits for none.

Where the mask skips no tile, the first turn stores, and dQ need not be cleared.
"""

from typing import Any

from cutlass import Int32, Int64, const_expr, cute, range_constexpr

from ...backward.walk import ResidentTile, Walk
from ...operands import Tiles
from .roles import EMPTY, FULL, GROUPS, HANDED


class QuerySums:
    """stores, adds: the tiles of dQ, one for the columns of each warpgroup, written by a store and
    by an addition. counters: Int32 [batch, heads, query tiles]."""

    def __init__(self, walk: Walk, stores: list[Tiles], adds: list[Tiles], counters: Any) -> None:
        self.walk, self.stores, self.adds, self.counters = walk, stores, adds, counters

    @cute.jit
    def run(self):
        """All steps of the CTA."""
        deal = Int32(0)
        for group in range_constexpr(GROUPS):
            cute.arch.barrier_arrive(barrier_id=EMPTY + group, number_of_threads=HANDED)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for back in range(tile.end - tile.begin):
                    self.step(tile, head, tile.end - 1 - back)
            deal += 1
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def step(self, tile: ResidentTile, head, block):
        """One part of dQ. Where the mask leaves nothing it is zero, and dropped."""
        if const_expr(self.walk.ranges.skips):
            if self.walk.ranges.lives(tile, tile.first, head, block):
                self.add(tile, head, block)
            else:
                for group in range_constexpr(GROUPS):
                    self.taken(group)
                    self.free(group)
        else:
            self.add(tile, head, block)

    @cute.jit
    def add(self, tile: ResidentTile, head, block):
        """In turn. The buffer is free for the next part before the counter moves on."""
        counter = self.counter(tile, head, block)
        turn = self.walk.ranges.before(tile, head, block)
        found = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        while found != turn:
            found = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        cute.arch.fence_proxy("async.global")
        for group in range_constexpr(GROUPS):
            self.taken(group)
            self.copy(tile, head, block, turn, group)
            cute.arch.cp_async_bulk_commit_group()
        for group in range_constexpr(GROUPS):
            cute.arch.cp_async_bulk_wait_group(GROUPS - 1 - group, read=True)
            cute.arch.sync_warp()
            self.free(group)
        cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.fence_proxy("async.global")
        with cute.arch.elect_one():
            cute.arch.store(counter, turn + 1, sem="release", scope="gpu")

    @cute.jit
    def copy(self, tile: ResidentTile, head, block, turn, group):
        """Of a warpgroup's columns; rows past the end of the sequence are dropped."""
        place = (tile.origin, block * self.walk.heights.streamed, tile.length, head, tile.batch)
        if const_expr(self.walk.ranges.skips):
            self.adds[group].store(*place, group)
        else:
            if turn == 0:
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
        tiles = walk.streamed_tiles
        return self.counters + (Int64(tile.batch * walk.query_heads + head) * tiles + block)
