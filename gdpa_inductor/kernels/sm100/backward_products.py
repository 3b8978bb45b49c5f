"""The product warp: issues every tensor-core product of a CTA, in the order that keeps it busy.

    i:   accB += P(i-1) tB      S(i)      accA += dS(i-1) tA      dP(i)

The weights of step i are computed while accA and dP of the neighbouring steps are multiplied, dS
while accB and the next S are: four products of 128 x 128 x dim hide two passes over the scores. P
lies where S was and dS where dP was. Products complete in the order of issue, so the next S needs
no signal beyond the one that says that P is written.
"""

from typing import Any

from cutlass import Int32, cute, range_constexpr
from cutlass.cute.nvgpu import tcgen05
from cutlass.utils import blackwell_helpers

from .backward_tiles import Tile, Walk
from .config import COLS, ROWS
from .pipeline import scores_ready

HALF = COLS // 2
SCORES, GRADIENTS, SUMS = 0, COLS, {"A": 2 * COLS, "B": 3 * COLS}  # columns of tensor memory


class Products:
    """S, dP, accA and, on the keys side, accB of every step."""

    def __init__(
        self, walk: Walk, shapes: Any, signals: dict[str, Any], buffers: dict[str, Any], tmem: Any
    ) -> None:
        self.walk, self.shapes, self.signals, self.tmem = walk, shapes, signals, tmem
        self.buffers = buffers

    @cute.jit
    def run(self):
        """All tiles of the CTA."""
        tile_step, step, number = Int32(0), Int32(0), self.walk.first
        while number < self.walk.count:
            tile = self.walk.at(number)
            if tile.steps > 0:
                for i in range(tile.steps + 1):
                    self.turn(tile, tile_step, step + i, i)
                self.signals["sums"].commit(tile_step)
                tile_step += 1
            step += tile.steps
            number += self.walk.stride

    @cute.jit
    def turn(self, tile: Tile, tile_step, step, i):
        """The sums of step - 1 and the scores of step; the first and the last turn lack one."""
        signals = self.signals
        if i > 0:
            signals["weights"].wait(step - 1)
            if i == 1:
                signals["stored"].wait_before(tile_step)
            scores_ready()
            if self.walk.keys:
                self.sum("B", SCORES, step - 1, i == 1)
                signals["free_B"].commit(step - 1)
        if i < tile.steps:
            self.arrived("A", tile_step, step, i)
            self.score("A", SCORES, step)
            signals["scores"].commit(step)
        if i > 0:
            signals["slopes"].wait(step - 1)
            scores_ready()
            self.sum("A", GRADIENTS, step - 1, i == 1)
            signals["free_A"].commit(step - 1)
        if i < tile.steps:
            self.arrived("B", tile_step, step, i)
            self.score("B", GRADIENTS, step)
            signals["gradients"].commit(step)
            if not self.walk.keys:
                signals["free_B"].commit(step)
        if i == tile.steps - 1:
            signals["spent_A"].commit(tile_step)
            signals["spent_B"].commit(tile_step)

    @cute.jit
    def arrived(self, name, tile_step, step, i):
        if i == 0:
            self.signals["resident_" + name].wait(tile_step)
        self.signals["streamed_" + name].wait(step)

    @cute.jit
    def score(self, name, column, step):
        """rX tXᵀ, 16 of the head dim at a time."""
        product = self.shapes.score(name)
        left = product.make_fragment_A(self.buffers["r" + name])
        right = product.make_fragment_B(self.buffers["t" + name])
        shape = product.partition_shape_C((ROWS, COLS))
        out = cute.make_tensor(self.tmem + column, product.make_fragment_C(shape).layout)
        slot = self.signals["streamed_" + name].index(step)
        for k in range_constexpr(cute.size(left, mode=[2])):
            product.set(tcgen05.Field.ACCUMULATE, k > 0)
            cute.gemm(product, out, left[None, None, k, 0], right[None, None, k, slot], out)

    @cute.jit
    def sum(self, name, column, step, first):
        """acc (+)= W tX. Each half of W lies at the start of the half of the scores it replaced."""
        product, streamed = self.shapes.sum(name), self.signals["streamed_" + name]
        turned = self.shapes.transposed(name, streamed.stages)
        pointer = cute.recast_ptr(self.buffers["t" + name].iterator, turned.inner)
        right = product.make_fragment_B(cute.make_tensor(pointer, turned.outer))
        shape = product.partition_shape_C((ROWS, self.shapes.widths[name]))
        out = cute.make_tensor(self.tmem + SUMS[name], product.make_fragment_C(shape).layout)
        slot = streamed.index(step)
        for k in range_constexpr(COLS // 16):
            half, k_half = divmod(k, HALF // 16)
            left = self.weights(product, name, column + HALF * half)[None, None, k_half]
            product.set(tcgen05.Field.ACCUMULATE, True if k else ~first)
            cute.gemm(product, out, left, right[None, None, k, slot], out)

    def weights(self, product: Any, name: str, column: int) -> Any:
        """The operand [128 r, 64 t] of 16-bit elements at a column of tensor memory."""
        dtype, tiler = self.shapes.dtype, (ROWS, self.shapes.widths[name], HALF)
        layout = blackwell_helpers.make_smem_layout_a(product, tiler, dtype, 1)
        nowhere = cute.make_ptr(dtype, 0, cute.AddressSpace.tmem)
        fragment = product.make_fragment_A(cute.make_tensor(nowhere, layout.outer))
        pointer = cute.recast_ptr(self.tmem + column, dtype=dtype)
        return cute.make_tensor(pointer, fragment.layout)[None, None, None, 0]
