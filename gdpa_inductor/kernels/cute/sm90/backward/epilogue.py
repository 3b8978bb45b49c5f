"""Epilogue: dK and dV of a tile -> global memory, through shared memory, 64 rows a warpgroup.

TMA drops the rows past the end of the sequence. The buffers are those of dS, which nobody reads
between two tiles.
"""

from cutlass import cute
from cutlass.cute.nvgpu import warp

from ...operands import Tiles
from ...values import Fixed
from .roles import both, together
from .shapes import HALF, HopperShapes


class KeyGradients(Fixed):
    """tiles: of "gv" and "gk", with a buffer for each warpgroup; both begin at the same place."""

    def __init__(self, shapes: HopperShapes, tiles: dict[str, Tiles]) -> None:
        self.shapes, self.tiles = shapes, tiles

    @cute.jit
    def store(self, tile, group, thread, fragments):
        """The copies have read shared memory afterwards."""
        self.write("gv", "dv alone", tile, group, thread, fragments.dV)
        self.write("gk", "dk alone", tile, group, thread, fragments.dK)
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        both()

    @cute.jit
    def write(self, name, product, tile, group, thread, sums):
        """One gradient. The other warpgroup's buffer lies beside."""
        tiles, alone = self.tiles[name], self.shapes.products[product]
        halves = cute.make_rmem_tensor(sums.layout, self.shapes.dtype)
        halves.store(sums.load().to(self.shapes.dtype))
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        both()
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.shapes.dtype)
        copy = cute.make_tiled_copy_C(atom, alone)
        part = copy.get_slice(thread)
        cute.copy(copy, part.retile(halves), part.partition_D(tiles.sX)[None, None, None, group])
        cute.arch.fence_view_async_shared()
        together(group)
        row = tile.first + group * HALF
        if (thread < 32) & (row < tile.rows):
            tiles.store(tile.start, row, tile.rows, tile.head, tile.batch, group)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def finish(self, thread):
        """Until all is stored."""
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0)
