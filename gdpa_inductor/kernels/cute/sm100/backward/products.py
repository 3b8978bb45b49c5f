"""The product warp: it issues all tensor-core products of a CTA, in an order that keeps it busy.

In turn i it issues, with one or with two buffers of scores:

    one buffer:     accB += P(i-1) tB    S(i)    accA += dS(i-1) tA    dQ(i-1)    dP(i)
    a pair:         accB += P(i-1) tC    S(i)    dQ(i-1)    accA += dS(i-1) tD    dP(i)
    two buffers:    S(i)    accB += P(i-1) tB    accA += dS(i-1) tA    dP(i)

Only the kernel of both sides has dQ = dSᵀ K, of one step. It reads dS from shared memory. When
dP(i) is there, dQ(i-1) is complete, so that dS(i) may overwrite dS(i-1).

Of a pair of CTAs the leading one issues all products, for both. There dQ(i-1) lies in columns of
dP. So dP(i) waits until dQ(i-1) has been copied, which takes place while accA is computed.

P overwrites S, and dS overwrites dP. Products complete in the order of issue. So the next S needs
no signal but "P is written". The same warps read the sums of a tile and then write the first P of
the next one. So in that step the signal also says that the sums are read.

One buffer: the activation computes P of step i while the tensor core computes accA and dP, and dS
while it computes accB and the next S. P is handed over in parts, so that accB can begin early.

Two buffers: the activation never waits for S. "dS(i-2) is written" says that S(i-2) is read. Tensor
memory has room for two on the rows side, and on the keys side at head dims up to 64.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from cutlass import Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import tcgen05
from cutlass.utils import blackwell_helpers

from ...backward.walk import ResidentTile, Walk
from ...barriers import leads
from ...values import Fixed, hidden
from ..config import COLS
from ..tensor_memory import arrive_when_multiplied, scores_ready
from .shapes import PART, PARTS, Shapes

STEP = 16  # streamed rows, or head dim, of one tcgen05.mma


@dataclass
class BackwardProducts(Fixed):
    """The role of the product warp: S, dP, accA and, on the keys side, accB of each step."""

    walk: Walk
    shapes: Shapes
    signals: dict[str, Any]
    buffers: dict[str, Any]
    tmem: Any

    @cute.jit
    def run_of_pair(self):
        if leads():
            self.run()

    @cute.jit
    def run(self):
        tile_step, step, deal = Int32(0), Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            if tile.steps > 0:
                for i in range(tile.steps + 1):
                    self.turn(tile, tile_step, step + i, i)
                arrive_when_multiplied(self.signals["sums"], tile_step)
                tile_step += 1
            step += tile.steps
            deal += 1

    @cute.jit
    def turn(self, tile: ResidentTile, tile_step, step, i):
        # Turn 0 has no sums of a step before, and the last turn no scores.
        ahead = self.shapes.buffers > 1
        if const_expr(ahead):
            self.scores(tile, tile_step, step, i)
        if i > 0:
            self.sum_weights(step - 1, i == 1)
        if const_expr(not ahead):
            self.scores(tile, tile_step, step, i)
        if i > 0:
            self.sum_slopes(tile, tile_step, step - 1, i)
        if i < tile.steps:
            self.arrived("B", tile_step, step, i)
            if const_expr(self.shapes.pair):
                self.signals["drained"].wait_before(step)
                scores_ready()
            self.score("B", self.shapes.gradients, step)
            arrive_when_multiplied(self.signals["gradients"], step)
            self.read("B", step)
        # dQ of the last step reads rA, unless a pair of CTAs has rD.
        if i == tile.steps - (0 if self.shapes.both and not self.shapes.pair else 1):
            arrive_when_multiplied(self.signals["spent"], tile_step)

    @cute.jit
    def sum_slopes(self, tile: ResidentTile, tile_step, step, i):
        """Issue accA and dQ of a step, the one before turn i."""
        pair = self.shapes.pair
        self.signals["slopes"].wait(step)
        scores_ready()
        if const_expr(pair):
            self.query_part(tile, tile_step, step, i)
        for part in range_constexpr(PARTS):
            self.sum("A", self.shapes.gradients, step, part, (i == 1) & (part == 0))
        self.free(self.shapes.sources["A"], step)
        if const_expr(not pair):
            self.query_part(tile, tile_step, step, i)

    def free(self, name, step) -> None:
        """A streamed operand of the step is read no more, once what was issued is complete."""
        arrive_when_multiplied(self.signals["free_" + name], step)

    def read(self, name, step) -> None:
        """The score or gradient product has read a streamed operand."""
        if name not in self.shapes.sources.values():
            self.free(name, step)

    @cute.jit
    def query_part(self, tile: ResidentTile, tile_step, step, i):
        """Issue dQ of a step, once that of the step before has been copied."""
        if const_expr(self.shapes.both):
            if const_expr(not self.shapes.pair):
                self.signals["drained"].wait_before(step)
                scores_ready()
            elif i == 1:
                self.signals["resident_D"].wait(tile_step)
            product, width = self.shapes.query_part(), self.shapes.widths["A"]
            turned, slot = self.shapes.turned_keys(), hidden(step)
            keys = self.buffers["rD" if self.shapes.pair else "rA"]
            pointer = cute.recast_ptr(keys.iterator, turned.inner)
            right = product.make_fragment_B(cute.make_tensor(pointer, turned.outer))
            left = product.make_fragment_A(self.buffers["dS"])
            layout = product.make_fragment_C(product.partition_shape_C((COLS, width))).layout
            out = cute.make_tensor(self.tmem + self.shapes.query, layout)
            for k in range_constexpr(cute.size(left, mode=[2])):
                product.set(tcgen05.Field.ACCUMULATE, k > 0)
                cute.gemm(product, out, left[None, None, k, 0], right[None, None, k, slot], out)
            arrive_when_multiplied(self.signals["parts"], step)
            if const_expr(self.shapes.pair):  # noqa: SIM102 (decided at compile time)
                if i == tile.steps:
                    arrive_when_multiplied(self.signals["spent_D"], tile_step)

    @cute.jit
    def scores(self, tile: ResidentTile, tile_step, step, i):
        if i < tile.steps:
            self.arrived("A", tile_step, step, i)
            self.score("A", self.column(step), step)
            arrive_when_multiplied(self.signals["scores"], step)
            self.read("A", step)

    @cute.jit
    def sum_weights(self, step, first):
        """Issue accB of a step, part by part. The rows side has no accB."""
        if const_expr(self.walk.keys):
            source = self.shapes.sources["B"]
            for part in range_constexpr(PARTS):
                self.signals["weights"].wait(step * PARTS + part)
                scores_ready()
                self.sum("B", self.column(step), step, part, first & (part == 0))
            self.free(source, step)

    def column(self, step):
        # of S in tensor memory
        return step % self.shapes.buffers * COLS if self.shapes.buffers > 1 else 0

    def stages(self, name: str) -> int:
        # At least two, so that the place depends on `hidden`.
        return max(2, self.signals["streamed_" + name].stages)

    def slot(self, name: str, step):
        """The buffer of a streamed operand."""
        streamed = self.signals["streamed_" + name]
        return streamed.index(step) if streamed.stages > 1 else hidden(step)

    @cute.jit
    def arrived(self, name, tile_step, step, i):
        if i == 0:
            self.signals["resident_" + name].wait(tile_step)
        self.signals["streamed_" + name].wait(step)

    @cute.jit
    def score(self, name, column, step):
        """Issue rX tXᵀ, 16 of the head dim at a time."""
        product = self.shapes.score(name)
        left = product.make_fragment_A(self.buffers["r" + name])
        streamed = self.shapes.layout("t" + name, self.stages(name))
        pointer = self.buffers["t" + name].iterator
        right = product.make_fragment_B(cute.make_tensor(pointer, streamed.outer))
        shape = product.partition_shape_C((self.shapes.resident, COLS))
        out = cute.make_tensor(self.tmem + column, product.make_fragment_C(shape).layout)
        slot = self.slot(name, step)
        for k in range_constexpr(cute.size(left, mode=[2])):
            product.set(tcgen05.Field.ACCUMULATE, k > 0)
            cute.gemm(product, out, left[None, None, k, 0], right[None, None, k, slot], out)

    @cute.jit
    def sum(self, name, column, step, part, first):
        """Issue acc = W tX (if `first`) or acc += W tX, for one part of both warpgroups."""
        # W is P or dS.
        source = self.shapes.sources[name]
        product, streamed = self.shapes.sum(name), self.signals["streamed_" + source]
        if const_expr(source != name and part == 0):
            streamed.wait(step)
        turned = self.shapes.transposed(name, self.stages(source))
        pointer = cute.recast_ptr(self.buffers["t" + source].iterator, turned.inner)
        right = product.make_fragment_B(cute.make_tensor(pointer, turned.outer))
        shape = product.partition_shape_C((self.shapes.resident, self.shapes.widths[name]))
        layout = product.make_fragment_C(shape).layout
        out = cute.make_tensor(self.tmem + self.shapes.sums[name], layout)
        slot, each = self.slot(source, step), PART // STEP
        left = self.weights(product, name, column)
        for group, i in itertools.product(range(2), range(each)):
            here, there = (PARTS * group + part) * each + i, (2 * part + group) * each + i
            product.set(tcgen05.Field.ACCUMULATE, True if group or i else ~first)
            cute.gemm(product, out, left[None, None, here], right[None, None, there, slot], out)

    def weights(self, product, name: str, column: int):
        """P or dS as an operand [128 r, 128 t] of 16 bits, from a column of tensor memory on."""
        dtype, tiler = self.shapes.dtype, (self.shapes.resident, self.shapes.widths[name], COLS)
        layout = blackwell_helpers.make_smem_layout_a(product, tiler, dtype, 1)
        nowhere = cute.make_ptr(dtype, 0, cute.AddressSpace.tmem)
        fragment = product.make_fragment_A(cute.make_tensor(nowhere, layout.outer))
        pointer = cute.recast_ptr(self.tmem + column, dtype=dtype)
        return cute.make_tensor(pointer, fragment.layout)[None, None, None, 0]
