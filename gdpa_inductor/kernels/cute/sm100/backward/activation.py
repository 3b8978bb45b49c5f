"""The activation warps: compute P and dS from S and dP, and store the sums of a finished tile.

Two warpgroups share the columns of the scores: each thread has one resident row and 64 streamed
rows, in two parts (shapes.py). While the tensor core computes dP, the program computes P and the
slope. P goes back to tensor memory. The slope stays in registers, for dS = dP · slope.
`ScoreStores` stores dS from registers, `SharedSlopes` hands it to dQ, and `GradientSums` stores the
accumulators from tensor memory.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr

from ...backward.turns import Turns
from ...backward.walk import ResidentTile, Walk
from ...config import VECTOR, whole_vectors
from ...operands import vector
from ...program import Program, ProgramLine
from ...values import Fixed, Pair, hidden, pair, select
from ..config import COLS, ROWS
from ..tensor_memory import TensorMemoryRow, scores_done, scores_ready
from .shapes import HALF, PART, PARTS, Shapes

SUMS = 16  # columns of an accumulator in registers at a time


@dataclass
class ScoreStores(Fixed):
    """Stores dS."""

    walk: Walk
    pointer: Any  # [slots, H, M, N] in 16 bits
    strides: Any
    sizes: Any  # as kernels take them

    def __post_init__(self) -> None:
        """N is rounded up to a multiple of 8, and the columns in excess are written too."""
        self.rows, self.columns = self.sizes[4], whole_vectors(self.sizes[5])

    def store(self, tile: ResidentTile, turn, row, column, numbers) -> None:
        """Store `numbers` of a resident row, from a streamed row `column` on. Past the end of
        either sequence they are zeros.
        """
        narrow = cute.make_rmem_tensor(cute.size(numbers), self.pointer.dtype)
        narrow.store(numbers.load().to(self.pointer.dtype))
        head = self.walk.streamed_head(tile, turn) if self.walk.keys else tile.head
        place = Int64(tile.slot) * self.strides[0] + Int64(head) * self.strides[1]
        store = self.down if self.walk.keys else self.across
        store(tile, self.pointer + place, self.walk.own(tile) + row, column, narrow)

    @cute.jit
    def down(self, tile: ResidentTile, start, key, query, narrow):
        """Store the numbers of a key."""
        step = Int64(self.strides[2])
        target = start + (query * step + key)
        for i in range_constexpr(cute.size(narrow)):
            if (query + i < self.rows) & (key < self.columns):
                cute.make_tensor(target + i * step, cute.make_layout(1))[0] = narrow[i]

    @cute.jit
    def across(self, tile: ResidentTile, start, number, column, narrow):
        """Store the numbers of a query."""
        start = start + (number * Int64(self.strides[2]) + column)
        if number >= tile.rows:
            narrow.fill(0.0)
        for i in range_constexpr(0, cute.size(narrow), VECTOR):
            if (number < self.rows) & (column + i < self.columns):
                part = cute.make_tensor(narrow.iterator + i, cute.make_layout(VECTOR))
                cute.autovec_copy(part, vector(start + i))


@dataclass
class SharedSlopes(Fixed):
    """Writes dS to shared memory, for the product dQ = dSᵀ K."""

    walk: Turns
    buffer: Any  # dS as the operand of `Shapes.query_part`

    def write(self, row, left, part: int, numbers):
        """Write a part of the numbers of a resident row. Returns them in 16 bits.

        left: The first column of the warpgroup. Of a pair of CTAs each has the streamed rows of one
        part, and the resident rows of both.
        """
        buffer, column = self.buffer, part * HALF + left
        if self.walk.heights.ctas > 1:
            there = cute.arch.map_dsmem_ptr(buffer.iterator, part)
            buffer, column = cute.make_tensor(there, buffer.layout), left
            row = row + self.walk.rank * ROWS
        depth = cute.size(buffer, mode=[0, 1])
        own = buffer[(None, row % depth), 0, row // depth, 0]
        vectors = cute.logical_divide(own, cute.make_layout(VECTOR))
        narrow = cute.make_rmem_tensor(cute.size(numbers), self.buffer.element_type)
        narrow.store(numbers.load().to(self.buffer.element_type))
        for i in range(0, cute.size(numbers), VECTOR):
            part = cute.make_tensor(narrow.iterator + i, cute.make_layout(VECTOR))
            cute.autovec_copy(part, vectors[None, (column + i) // VECTOR])
        return narrow


@dataclass
class GradientSums(Fixed):
    """The gradients that one side writes."""

    walk: Walk
    memory: TensorMemoryRow
    columns: dict[str, int]  # the first of the accumulator of each operand
    # By operand: (pointer, strides (batch, head, row), head dim, the same padded). The gradient is
    # [B, H, M, D], or jagged [L, H, D]. Rows past the end of a sequence are not written.
    outputs: dict[str, tuple[Any, ...]]
    factor: float  # that of operand A is its sums times this

    def write(self, tile: ResidentTile, summed: bool) -> None:
        for name in self.outputs:
            self._write(name, tile, summed)

    @cute.jit
    def _write(self, name, tile: ResidentTile, summed):
        pointer, strides, dim, width = self.outputs[name]
        row = self.walk.own(tile) + self.memory.thread % ROWS
        place = Int64(tile.head) * strides[1] + Int64(tile.start + row) * strides[2]
        if const_expr(not self.walk.jagged):
            place += Int64(tile.batch) * strides[0]
        # Each warpgroup stores half of the columns.
        half = self.memory.thread // ROWS * (width // 2)
        for number in range_constexpr(width // 2 // SUMS):
            column = half + number * SUMS
            numbers = cute.make_rmem_tensor(SUMS, pointer.dtype)
            if summed:
                sums = self.memory.load(self.columns[name] + column, SUMS)
                cute.arch.fence_view_async_tmem_load()
                whole = sums.load()
                if const_expr(name == "A" and self.factor != 1.0):
                    whole = whole * self.factor
                numbers.store(whole.to(pointer.dtype))
            else:
                numbers.fill(0)
            for i in range_constexpr(0, SUMS, VECTOR):
                if (row < tile.rows) & within(half, number * SUMS + i, dim, width):
                    part = cute.make_tensor(numbers.iterator + i, cute.make_layout(VECTOR))
                    cute.autovec_copy(part, vector(pointer + place + column + i))


def within(half, offset: int, dim: int, width: int):
    """Whether the column at `offset` of a half of the padded width exists. half: Its first one."""
    return half + offset < dim if width // 2 + offset >= dim else Boolean(True)


@dataclass
class BackwardActivation(Fixed):
    """The role of the activation warps."""

    walk: Walk
    program: Program  # with the roots of the side
    signals: dict[str, Any]
    memory: TensorMemoryRow
    shapes: Shapes
    sums: GradientSums  # store the sums of a tile
    stored: ScoreStores | None  # stores dS as the gradient of a bias
    shared: SharedSlopes | None

    def __post_init__(self) -> None:
        thread = self.memory.thread
        self.row, warpgroup = thread % ROWS, cute.arch.make_warp_uniform(thread // ROWS)
        self.left = warpgroup * PART

    @cute.jit
    def run(self):
        tile_step, step, deal = Int32(0), Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry = self.walk.entry(tile)
            for turn in range(tile.passes):
                for i in range(tile.end - tile.begin):
                    self.step(tile, turn, self.walk.block(tile, entry, i), step)
                    step += 1
            if tile.steps > 0:
                self.signals["sums"].wait(tile_step)
                scores_ready()
                self.sums.write(tile, True)
                tile_step += 1
            else:
                self.sums.write(tile, False)
            deal += 1
        scores_done(stored=False)  # the last sums are read, so tensor memory may be freed

    @cute.jit
    def step(self, tile: ResidentTile, turn, block, step):
        line = ProgramLine(self.program, self.walk, tile, turn, self.walk.own(tile) + self.row)
        slopes = [cute.make_rmem_tensor(PART, Float32) for _ in range(PARTS)]
        self.signals["scores"].wait(step)
        scores_ready()
        column = step % self.shapes.buffers * COLS + self.left
        # An aux operand that is read for each score needs the registers. Then S comes part by part.
        scores = self.fetch(column, 0 if line.lines else PARTS)
        for part in range_constexpr(PARTS):
            self.weigh(line, tile, block, column, part, scores, slopes[part])
            if const_expr(self.walk.keys):
                scores_done(stored=True)
                self.signals["weights"].arrive_once(step * PARTS + part)
        self.signals["gradients"].wait(step)
        scores_ready()
        column = self.shapes.gradients + self.left
        # With dQ there are registers for one part, and what is stored is kept in 16 bits.
        fetched = self.fetch(column, PARTS if self.shared is None else 0)
        row = self.row + hidden(step) if self.shapes.pair else self.row
        dS = [self.hand_over(row, column, part, fetched, slopes[part]) for part in range(PARTS)]
        if const_expr(self.shapes.pair):
            cute.arch.fence_proxy("async.shared", space="cluster")
        elif const_expr(self.shared is not None):
            cute.arch.fence_view_async_shared()
        scores_done(stored=True)
        self.signals["slopes"].arrive_once(step, written=True)
        if const_expr(self.stored is not None):
            assert self.stored is not None
            for part in range_constexpr(PARTS):
                first = block * COLS + self.left + part * HALF
                self.stored.store(tile, turn, self.row, first, dS[part])

    def fetch(self, column, parts: int) -> list[Any]:
        # this thread's columns of S or dP, in parts of 32
        registers = [self.memory.load(column + part * HALF, PART) for part in range(parts)]
        cute.arch.fence_view_async_tmem_load()
        return registers

    def pick(self, fetched: list[Any], column, part: int):
        """A part from `fetched`, or loaded now if that is empty."""
        return fetched[part] if fetched else self.fetch(column + part * HALF, 1)[0]

    @cute.jit
    def weigh(self, line: ProgramLine, tile: ResidentTile, block, column, part, fetched, slopes):
        """Turn S into P and the slope, for 32 columns. Both are 0 past the end of the sequence."""
        scores = self.pick(fetched, column, part)
        weights = cute.make_rmem_tensor(PART, Float32)
        first = block * COLS + self.left + part * HALF
        for i in cutlass.range(0, PART, 2, unroll_full=True):
            roots = line(Pair(scores[i], scores[i + 1]), Pair(first + i, first + i + 1))
            for into, value in zip((slopes, weights), roots, strict=False):
                lanes = pair(value).lanes
                into[i], into[i + 1] = Float32(lanes[0]), Float32(lanes[1])
        if (block + 1) * COLS > tile.length:
            for i in cutlass.range(PART, unroll_full=True):
                there = first + i < tile.length
                slopes[i] = select(there, slopes[i], Float32(0.0))
                weights[i] = select(there, weights[i], Float32(0.0))
        if const_expr(self.shared is not None):
            self.empty(tile, slopes)
        if const_expr(self.walk.keys):
            self.memory.store(column + part * (PART // 2), weights)

    @cute.jit
    def empty(self, tile: ResidentTile, slopes):
        """dQ sums over the resident rows, so those past the end of the sequence have no slope."""
        first = self.walk.own(tile)
        if first + ROWS > tile.rows:
            there = first + self.row < tile.rows
            for i in cutlass.range(PART, unroll_full=True):
                slopes[i] = select(there, slopes[i], Float32(0.0))

    def hand_over(self, row, column, part: int, fetched: list[Any], slopes):
        """Turn dP into dS, for 32 columns, where the products read it. Returns dS."""
        gradients = self.pick(fetched, column, part)
        self.slope(gradients, slopes)
        self.memory.store(column + part * (PART // 2), gradients)
        if self.shared is None:
            return gradients
        return self.shared.write(row, self.left, part, gradients)

    @cute.jit
    def slope(self, gradients, slopes):
        """Turn dP into dS. Masked scores get 0, even if dP is infinite or NaN."""
        for i in cutlass.range(0, PART, 2, unroll_full=True):
            gradients[i], gradients[i + 1] = cute.arch.mul_packed_f32x2(
                (gradients[i], gradients[i + 1]), (slopes[i], slopes[i + 1])
            )
        if const_expr(self.walk.ranges.selects):
            for i in cutlass.range(PART, unroll_full=True):
                gradients[i] = select(slopes[i] == 0.0, Float32(0.0), gradients[i])
