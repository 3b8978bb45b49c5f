"""The product warp: O_t += P_t V of the last scored key block, then S_t = Q_t Kᵀ of the next one.

The blocks of all work tiles form one sequence. So the next block may be the first of the next tile.
Then its scores are computed before the epilogue has read the sums of this tile.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Boolean, Constexpr, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import tcgen05

from ...barriers import Cursor, but
from ...config import TILES
from ...values import Fixed
from ..config import COLS
from ..tensor_memory import arrive_when_multiplied, scores_ready
from .activation import PARTS
from .roles import HANDED_OVER, Channels, ForwardTensorMemory

STEPS = COLS // 16  # tcgen05.mma instructions of O_t += P_t V, with 16 keys each


@dataclass
class ForwardProducts(Fixed):
    """The role of the product warp."""

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
        queries, keys, sums = self.channels.queries, self.channels.keys, self.channels.sums
        at, k = scheduler.start(), keys.start()
        q, o = (tuple(x.start() for x in rings) for rings in (queries, sums))
        v, p, nothing = k, (Cursor(1), Cursor(1)), (Boolean(False), Boolean(False))
        tile, at = scheduler.take(at)
        block, busy, started = tile.first, Boolean(False), Boolean(False)
        pending, closing = nothing, nothing
        while (tile.valid == 1) | busy:
            if busy:
                keys.full.wait(v)
            for t in range_constexpr(TILES):
                if pending[t]:
                    self.add(t, v, p[t], o[t], started)
                    p = but(p, t, p[t].next())
                    if closing[t]:
                        arrive_when_multiplied(sums[t].full, o[t])
                        o = but(o, t, o[t].next())
                self.free_values(t, v, busy)
                if (tile.valid == 1) & (block < tile.last(t)):
                    keys.full.wait(k)
                    self.score(t, q[t], k, block == tile.first)
            busy, pending, closing = (tile.valid == 1) & (block < tile.end), nothing, nothing
            if busy:
                arrive_when_multiplied(keys.empty, k)
                v = k.next()
                k, started = v.next(), block != tile.first
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
                arrive_when_multiplied(self.channels.keys.empty, v)

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

    @cute.jit
    def score(self, t: Constexpr, q: Cursor, k: Cursor, fresh):
        """Issue S_t = Q_t Kᵀ. fresh: This is the first block with this Q_t, so wait for Q_t."""
        if fresh:
            self.channels.queries[t].full.wait(q)
        qk, tS = copied(self.qk), self.memory.scores(t)
        scores_ready()
        for step in range_constexpr(cute.size(self.tQ, mode=[2])):
            qk.set(tcgen05.Field.ACCUMULATE, step != 0)
            a = self.tQ[None, None, step, q.index * TILES + t]
            cute.gemm(qk, tS, a, self.tK[None, None, step, k.index], tS)
        arrive_when_multiplied(self.channels.scores.of(t), Cursor(1))

    @cute.jit
    def add(self, t: Constexpr, v: Cursor, p: Cursor, o: Cursor, started):
        """Issue O_t += P_t V, or O_t = P_t V for the first block of a tile."""
        if not started:
            self.channels.sums[t].empty.wait_before(o)
        pv, tP, tO = copied(self.pv), self.memory.weights(t), self.memory.sums(t, o.index)
        for part in range_constexpr(len(HANDED_OVER)):
            self.channels.weights[part].of(t).wait(p)
            scores_ready()
            steps = [STEPS * x // PARTS for x in (0, *HANDED_OVER)][part : part + 2]
            for step in range_constexpr(*steps):
                pv.set(tcgen05.Field.ACCUMULATE, started if step == 0 else True)
                a, b = tP[None, None, step, 0], self.tV[None, None, step, v.index]
                cute.gemm(pv, tO, a, b, tO)


def copied(product):
    """A copy of a product. Setting `ACCUMULATE` changes it, and must not leave a branch or loop."""
    return product.__new_from_mlir_values__(product.__extract_mlir_values__())
