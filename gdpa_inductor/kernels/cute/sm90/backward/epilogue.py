"""The epilogue: store dK and dV of a key tile by way of shared memory, 64 rows for each warpgroup.

TMA drops rows past the end of the sequence. The buffers are those of dS. Between two tiles only the
store of the last dS may still read them, and `write` waits for it.

If dQ lags (`Sm90Config.lags`), a warpgroup goes on to the next tile without waiting for the other.
The last content of the buffers is dK. So the signal that dS may be overwritten comes when the store
of dK has read them.

A gradient of an operand that all sequences share is stored in fp32, directly from registers.
"""

from dataclasses import dataclass

from cutlass import Int64, const_expr, cute, range_constexpr

from ...operands import EVICT_FIRST, Matrix, Tiles
from ...values import Fixed
from ..wgmma import first_row, share, wait_for_stores
from .roles import HALF, HopperShapes, both, together


@dataclass
class KeyGradients(Fixed):
    """The epilogue of both warpgroups."""

    shapes: HopperShapes
    # The tiles of dK ("gk") and dV ("gv") that TMA stores, with a buffer for each warpgroup. Both
    # use the same memory.
    tiles: dict[str, Tiles]
    gradients: dict[str, Matrix]  # dK and dV in global memory
    factor: float  # dK is its sums times this

    def store_values(self, tile, group, thread, fragments) -> None:
        self.gradient("gv", "dv alone", tile, group, thread, fragments.dV)

    @cute.jit
    def store_keys(self, tile, group, thread, fragments):
        if const_expr(self.factor != 1.0):
            fragments.dK.store(fragments.dK.load() * self.factor)
        self.gradient("gk", "dk alone", tile, group, thread, fragments.dK)

    @cute.jit
    def free(self, thread, empty, steps, end):
        """Free the buffers for the dS of the next tile, once the store has read them.

        empty: The signal that a dS may be overwritten. It is due for the last two steps before
        `end`; if the tile had one step, one buffer was free before. None: There is no such signal,
        and the warpgroups wait for each other.
        """
        wait_for_stores(thread, True)
        if const_expr(empty is None):
            both()
        else:
            if steps < 2:
                both()
            if steps > 1:
                empty.arrive_once(end - 2)
            if steps > 0:
                empty.arrive_once(end - 1)

    @cute.jit
    def gradient(self, name, product, tile, group, thread, sums):
        if const_expr(name in self.tiles):
            self.write(name, product, tile, group, thread, sums)
        else:
            self.write_sums(name, tile, tile.first + group * HALF, thread, sums)

    @cute.jit
    def write(self, name, product, tile, group, thread, sums):
        tiles, alone = self.tiles[name], self.shapes.products[product]
        halves = cute.make_rmem_tensor(sums.layout, self.shapes.dtype)
        halves.store(sums.load().to(self.shapes.dtype))
        wait_for_stores(thread, True)
        both()
        share(alone, halves, tiles.sX, group, thread)
        together(group)
        row = tile.first + group * HALF
        if (thread < 32) & (row < tile.rows):
            rows = (tile.start, row, tile.rows)
            tiles.store(rows, tile.head, tile.batch, group, policy=EVICT_FIRST)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def write_sums(self, name, tile, first, thread, sums):
        matrix = self.gradients[name]
        sb, sh, sr = (Int64(s) for s in matrix.strides)
        place = tile.batch * sb + tile.head * sh
        for r in range_constexpr(0, cute.size(sums), 2):
            row = first + first_row(thread) + r // 2 % 2 * 8
            column = r // 4 * 8 + thread % 4 * 2
            if (row < tile.rows) & (column < matrix.width):
                target = matrix.pointer + (place + row * sr + column)
                pair = cute.make_tensor(target, cute.make_layout(2))
                pair[0], pair[1] = sums[r], sums[r + 1]
