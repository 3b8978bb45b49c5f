"""The load warp of a forward: TMA copies of Q, K, V and a bias into rings of buffers.

For each work tile it loads the query tiles Q_t, then K and V of each key block. A bias
(`KernelConfig.tiled`) comes between the K and the V of its key block, because it is needed as soon
as the scores are computed.

If O uses the shared memory of the query tiles (`KernelConfig.overlaid`), the query tiles come after
the first key block. That block can be loaded before their memory is free.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute, range_constexpr

from ..barriers import Cursor, Ring, but
from ..config import KernelConfig
from ..operands import Tiles
from ..values import Fixed


@dataclass
class ForwardLoads(Fixed):
    """The load warp."""

    config: KernelConfig
    channels: Any  # has the ring `keys`, and for each query tile a ring in `queries` and `bias`
    q: Tiles
    k: Tiles
    v: Tiles
    bias: Tiles | None = None  # None if TMA loads no bias; then there are no rings for it

    def __post_init__(self) -> None:
        self.rows, self.cols, self.tiles = self.config.rows, self.config.cols, self.config.tiles
        self.rings: Any = ()
        if self.bias is not None:
            self.rings, self.parts = self.channels.bias, self.cols // self.bias.tiler[1]

    @cute.jit
    def run(self, scheduler):
        queries, keys = self.channels.queries, self.channels.keys
        at, q_at, k_at = scheduler.start(), tuple(x.start() for x in queries), keys.start()
        b_at = tuple(x.start() for x in self.rings)
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            if cutlass.const_expr(not self.config.overlaid):
                q_at = self.fetch_queries(tile, q_at)
            for block in cutlass.range(tile.first, tile.end, unroll=1):
                rows = (tile.k_start, block * self.cols, tile.k_rows)
                origin = self.k.origin(rows, tile.batch)
                self.fetch(self.k, rows, tile.key_head, origin, keys, k_at, k_at.index)
                k_at = k_at.next()
                b_at = self.fetch_bias(tile, block, b_at)
                self.fetch(self.v, rows, tile.value_head, origin, keys, k_at, k_at.index)
                k_at = k_at.next()
                if cutlass.const_expr(self.config.overlaid):  # noqa: SIM102 (decided at compile time)
                    if block == tile.first:
                        q_at = self.fetch_queries(tile, q_at)
            tile, at = scheduler.take_busy(at)
        for t in range_constexpr(self.tiles):
            queries[t].wait_all(q_at[t])
        keys.wait_all(k_at)
        for t in range_constexpr(len(self.rings)):
            self.rings[t].wait_all(b_at[t])

    @cute.jit
    def fetch_queries(self, tile, q_at):
        """Load the query tiles that meet keys. q_at: Their places; returns the next ones."""
        queries = self.channels.queries
        for t in range_constexpr(self.tiles):
            if tile.first < tile.last(t):
                rows = (tile.q_start, tile.row + t * self.rows, tile.q_rows)
                stage = q_at[t].index * self.tiles + t
                self.fetch(self.q, rows, tile.head, tile.batch, queries[t], q_at[t], stage)
                q_at = but(q_at, t, q_at[t].next())
        return q_at

    @cute.jit
    def fetch_bias(self, tile, block, b_at):
        """Load the bias of a key block, for the query tiles that meet it. Returns next places."""
        for t in range_constexpr(len(self.rings)):
            if block < tile.last(t):
                at, rows = b_at[t], (Int32(0), tile.row + t * self.rows, tile.q_rows)
                for part in range_constexpr(self.parts):
                    stage, column = at.index * self.tiles + t, block * self.parts + part
                    place = (self.rings[t], at, stage, column)
                    self.fetch(self.bias, rows, tile.head, tile.batch, *place)
                    at = at.next()
                b_at = but(b_at, t, at)
        return b_at

    @cute.jit
    def fetch(self, tiles: Tiles, rows, head, origin, ring: Ring, at: Cursor, stage, column=0):
        ring.wait_for_room(at)
        tiles.load(rows, head, origin, stage, ring.full, at, column)
