"""The product warp: O_t += P_t V of the last scored key block, then S_t = Q_t Kᵀ of the next one.

The blocks of all work tiles form one sequence. So the next block may be the first of the next tile.
Then its scores are computed before the epilogue has read the sums of this tile.

With one query tile (`Sm100Config.tiles`) key blocks alternate between S_0 and S_1. The order is S
of a block, then O += P V of the block before, and each work tile ends by itself.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import tcgen05

from ...barriers import Cursor, but
from ...config import TILES
from ...values import Fixed
from ..config import COLS, Sm100Config
from ..tensor_memory import arrive_when_multiplied, scores_ready
from .activation import PARTS
from .roles import BUFFERS, HANDED_OVER, Channels, ForwardTensorMemory

MMA_K = 16  # channels or keys that a tcgen05.mma instruction sums over
STEPS = COLS // MMA_K  # instructions of O_t += P_t V


@dataclass
class ForwardProducts(Fixed):
    """The role of the product warp."""

    config: Sm100Config
    channels: Channels
    memory: ForwardTensorMemory
    qk: Any  # the tiled products
    pv: Any
    sQ: Any  # their operands in shared memory
    sK: Any
    sV: Any

    def __post_init__(self) -> None:
        self.tQ, self.tK = self.qk.make_fragment_A(self.sQ), self.qk.make_fragment_B(self.sK)
        self.tV = self.pv.make_fragment_B(self.sV)

    @cute.jit
    def run(self, scheduler):
        """The loop of the warp.

        A block is pending between its score product and its sum. Names in the loop:

        busy:        Some query tile has a pending block.
        pending[t]:  Query tile t has a pending block.
        started:     The pending block is not the first of its tile.
        closing[t]:  The pending block is the last of query tile t.

        A tile without blocks has a turn too. The epilogue has to see it, and may be waiting for the
        pending block.
        """
        queries, sums = self.channels.queries, self.channels.sums
        at, k = scheduler.start(), self.channels.keys.start()
        q, o = (tuple(x.start() for x in rings) for rings in (queries, sums))
        v, p, nothing = k, (Cursor(1), Cursor(1)), (Boolean(False), Boolean(False))
        tile, at = scheduler.take(at)
        block, busy, started = tile.first, Boolean(False), Boolean(False)
        pending, closing = nothing, nothing
        while (tile.valid == 1) | busy:
            if busy:
                self.wait_for(v, self.config.value_parts)
            for t in range_constexpr(TILES):
                if pending[t]:
                    self.add(t, v, p[t], o[t], started)
                    p = but(p, t, p[t].next())
                    if closing[t]:
                        arrive_when_multiplied(sums[t].full, o[t])
                        o = but(o, t, o[t].next())
                self.free_values(t, v, busy)
                if (tile.valid == 1) & (block < tile.last(t)):
                    self.wait_for(k, self.config.key_parts)
                    self.score(t, q[t], k, block == tile.first)
            busy, pending, closing = (tile.valid == 1) & (block < tile.end), nothing, nothing
            if busy:
                v = self.free(k, self.config.key_parts)
                k, started = self.after(v, self.config.value_parts), block != tile.first
                pending, closing, q = self.left_over(tile, block, q)
                block += 1
            if (tile.valid == 1) & (block >= tile.end):
                tile, at = scheduler.take(at)
                block = tile.first

    @cute.jit
    def free_values(self, t: Constexpr, v: Cursor, busy):
        """Free V after its last product, so before the last scores. Then its buffer is loaded
        earlier. Where there are three buffers of K and V, the next step would wait for it.
        """
        if const_expr(t + 1 == TILES):  # noqa: SIM102 (decided at compile time)
            if busy:
                self.free(v, self.config.value_parts)

    @cute.jit
    def left_over(self, tile, block, q):
        """(pending, closing, places of Q) after `block`."""
        # After the last block of a tile Q_t is freed.
        pending, closing = (Boolean(False),) * TILES, (Boolean(False),) * TILES
        for t in range_constexpr(TILES):
            pending = but(pending, t, block < tile.last(t))
            closing = but(closing, t, block + 1 == tile.last(t))
            if closing[t]:
                arrive_when_multiplied(self.channels.queries[t].empty, q[t])
                q = but(q, t, q[t].next())
        return pending, closing, q

    def wait_for(self, at: Cursor, parts: int) -> None:
        """Wait for so many parts of K or V."""
        for _ in range(parts):
            self.channels.keys.full.wait(at)
            at = at.next()

    def free(self, at: Cursor, parts: int) -> Cursor:
        """Free so many parts when they are multiplied. Returns the place after them."""
        for _ in range(parts):
            arrive_when_multiplied(self.channels.keys.empty, at)
            at = at.next()
        return at

    def after(self, at: Cursor, parts: int) -> Cursor:
        for _ in range(parts):
            at = at.next()
        return at

    def of(self, t):
        """The query tile whose scores S_t are."""
        return t

    def begin_part(self, at: Cursor) -> None:
        """Called before a part of K or V is read. Here `run` has waited for the block."""

    def end_part(self, at: Cursor) -> Cursor:
        """Called when all products of a part are issued. Returns the next place.

        Here `run` frees the block, since two query tiles read it.
        """
        return at.next()

    @cute.jit
    def score(self, t, q: Cursor, k: Cursor, fresh):
        """Issue S_t = Q_t Kᵀ. fresh: This is the first block with this Q_t, so wait for Q_t.

        Returns the place after K.
        """
        if fresh:
            self.channels.queries[self.of(t)].full.wait(q)
        tS, stage = self.memory.scores(t), q.index * self.config.tiles + self.of(t)
        scores_ready()
        steps = self.config.part_width // MMA_K
        # Unrolled, the loop would need too many registers where two query tiles have parts.
        for part in cutlass.range(self.config.key_parts, unroll=1):
            qk = copied(self.qk)
            self.begin_part(k)
            for step in range_constexpr(steps):
                qk.set(tcgen05.Field.ACCUMULATE, part != 0 if step == 0 else True)
                a = self.tQ[None, None, part * steps + step, stage]
                cute.gemm(qk, tS, a, self.tK[None, None, step, k.index], tS)
            k = self.end_part(k)
        arrive_when_multiplied(self.channels.scores.of(t), Cursor(1))
        return k

    @cute.jit
    def add(self, t, v: Cursor, p: Cursor, o: Cursor, started):
        """Issue O_t += P_t V, or O_t = P_t V for the first block of a tile.

        Returns the place after V.
        """
        if not started:
            self.channels.sums[self.of(t)].empty.wait_before(o)
        pv, tP, tO = copied(self.pv), self.memory.weights(t), self.memory.sums(self.of(t), o.index)
        deep = self.config.part_keys // MMA_K  # instructions of a part of V
        for part in range_constexpr(len(HANDED_OVER)):
            self.channels.weights[part].of(t).wait(p)
            scores_ready()
            steps = [STEPS * x // PARTS for x in (0, *HANDED_OVER)][part : part + 2]
            for step in range_constexpr(*steps):
                if const_expr(step % deep == 0):
                    self.begin_part(v)
                pv.set(tcgen05.Field.ACCUMULATE, started if step == 0 else True)
                a, b = tP[None, None, step, 0], self.tV[None, None, step % deep, v.index]
                cute.gemm(pv, tO, a, b, tO)
                if const_expr(step % deep + 1 == deep):
                    v = self.end_part(v)
        return v


@dataclass
class AlternatingProducts(ForwardProducts):
    """The same with one query tile. Blocks of K and V have parts, which are freed one by one."""

    @cute.jit
    def run(self, scheduler):
        (queries,), (sums,) = self.channels.queries, self.channels.sums
        at, q, k, o = scheduler.start(), queries.start(), self.channels.keys.start(), sums.start()
        s, p = Cursor(BUFFERS), Cursor(BUFFERS)
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            for block in cutlass.range(tile.first, tile.end + 1, unroll=1):
                if block < tile.end:
                    k = self.score(s.index, q, k, block == tile.first)
                    s = s.next()
                    if block + 1 == tile.end:
                        arrive_when_multiplied(queries.empty, q)
                if block > tile.first:
                    filled = Cursor(1, Int32(0), p.phase)
                    k = self.add(p.index, k, filled, o, block > tile.first + 1)
                    p = p.next()
            arrive_when_multiplied(sums.full, o)
            q, o = q.next(), o.next()
            tile, at = scheduler.take_busy(at)

    def of(self, t):
        return 0

    def begin_part(self, at: Cursor) -> None:
        self.wait_for(at, 1)

    def end_part(self, at: Cursor) -> Cursor:
        return self.free(at, 1)


def copied(product):
    """A copy of a product. Setting `ACCUMULATE` changes it, and must not leave a branch or loop."""
    return product.__new_from_mlir_values__(product.__extract_mlir_values__())
