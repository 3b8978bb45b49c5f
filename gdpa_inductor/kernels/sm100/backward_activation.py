"""The activation warps: P and dS from S and dP, and the sums of a finished tile to global memory.

Two warpgroups share the columns of the scores: a thread has one resident row and 64 streamed ones.
While dP is still being multiplied the program gives P, which goes back into tensor memory, and its
slope, which stays in registers for dS = dP · slope.
"""

from typing import Any

from cutlass import Float32, Int32, cute, range_constexpr
from cutlass.cute.nvgpu import tcgen05

from .backward_products import GRADIENTS, HALF, SCORES
from .backward_program import Line
from .backward_sums import Sums
from .backward_tiles import Tile, Walk
from .config import COLS, ROWS
from .pipeline import scores_done, scores_ready
from .program import Program
from .values import Pair, pair

PART = 32  # columns in registers at a time
PARTS = HALF // PART


class Activation:
    """What each thread of the activation warps does. program: with the roots of the side."""

    def __init__(
        self, walk: Walk, program: Program, signals: dict[str, Any], memory: Any, sums: Sums
    ) -> None:
        self.walk, self.program, self.signals, self.memory = walk, program, signals, memory
        self.sums = sums
        self.row, self.left = memory.thread % ROWS, memory.thread // ROWS * HALF

    @cute.jit
    def run(self):
        """All tiles of the CTA."""
        tile_step, step, number = Int32(0), Int32(0), self.walk.first
        while number < self.walk.count:
            tile = self.walk.at(number)
            for turn in range(tile.passes):
                for block in range(tile.begin, tile.end):
                    self.step(tile, turn, block, step)
                    step += 1
            if tile.steps > 0:
                self.signals["sums"].wait(tile_step)
                scores_ready()
                self.sums.write(tile, True)
                scores_done(stored=False)
                self.signals["stored"].arrive(tile_step)
                tile_step += 1
            else:
                self.sums.write(tile, False)
            number += self.walk.stride

    @cute.jit
    def step(self, tile: Tile, turn, block, step):
        """P and dS of one tile of scores."""
        line = Line(self.program, self.walk, tile, turn, tile.first + self.row)
        slopes = [cute.make_rmem_tensor(PART, Float32) for _ in range(PARTS)]
        self.signals["scores"].wait(step)
        scores_ready()
        for part in range_constexpr(PARTS):
            self.weigh(line, tile, block, part, slopes[part])
        scores_done(stored=self.walk.keys)
        self.signals["weights"].arrive(step)
        self.signals["gradients"].wait(step)
        scores_ready()
        for part in range_constexpr(PARTS):
            self.slope(part, slopes[part])
        scores_done(stored=True)
        self.signals["slopes"].arrive(step)

    @cute.jit
    def weigh(self, line: Line, tile: Tile, block, part, slopes):
        """S -> P and slope, 32 columns; zero past the end of the streamed rows."""
        column = self.left + part * PART
        scores, weights = (
            self.memory.load(SCORES + column, PART),
            cute.make_rmem_tensor(PART, Float32),
        )
        cute.arch.fence_view_async_tmem_load()
        first = block * COLS + column
        for i in range_constexpr(0, PART, 2):
            found = line(Pair(scores[i], scores[i + 1]), Pair(first + i, first + i + 1))
            for into, value in zip((slopes, weights), found, strict=False):
                lanes = pair(value).lanes
                into[i], into[i + 1] = Float32(lanes[0]), Float32(lanes[1])
        if (block + 1) * COLS > tile.length:
            for i in range_constexpr(PART):
                if first + i >= tile.length:
                    slopes[i] = Float32(0.0)
                    weights[i] = Float32(0.0)
        if self.walk.keys:
            self.memory.store(SCORES + self.left + part * (PART // 2), weights)

    @cute.jit
    def slope(self, part, slopes):
        """dP -> dS, 32 columns."""
        gradients = self.memory.load(GRADIENTS + self.left + part * PART, PART)
        cute.arch.fence_view_async_tmem_load()
        for i in range_constexpr(0, PART, 2):
            gradients[i], gradients[i + 1] = cute.arch.mul_packed_f32x2(
                (gradients[i], gradients[i + 1]), (slopes[i], slopes[i + 1])
            )
        self.memory.store(GRADIENTS + self.left + part * (PART // 2), gradients)


class TensorMemory:
    """The row of tensor memory that belongs to a thread, by columns of 32 bits."""

    def __init__(self, pointer: Any, thread: Any, dtype: Any) -> None:
        self.pointer, self.thread, self.dtype = pointer, thread, dtype

    def load(self, column: Any, width: int) -> Any:
        """fp32 registers, there after `fence_view_async_tmem_load`."""
        copy, window = self._copy(tcgen05.Ld32x32bOp, column, width)
        part = copy.get_slice(self.thread % ROWS)
        rows = part.partition_D(cute.make_identity_tensor((ROWS, width)))
        registers = cute.make_rmem_tensor(rows.shape, Float32)
        cute.copy(copy, part.partition_S(window), registers)
        return cute.make_tensor(registers.iterator, cute.make_layout(width))

    def store(self, column: Any, registers: Any) -> None:
        """fp32 registers as 16-bit elements, two to a column."""
        width = cute.size(registers) // 2
        copy, window = self._copy(tcgen05.St32x32bOp, column, width)
        part = copy.get_slice(self.thread % ROWS)
        rows = part.partition_S(cute.make_identity_tensor((ROWS, width)))
        packed = cute.make_rmem_tensor(rows.shape, Float32)
        narrow = cute.recast_ptr(packed.iterator, dtype=self.dtype)
        cute.make_tensor(narrow, cute.make_layout(2 * width)).store(registers.load().to(self.dtype))
        cute.copy(copy, packed, part.partition_D(window))

    def _copy(self, operation: Any, column: Any, width: int) -> tuple[Any, Any]:
        """The copy of `width` columns, and the columns of all rows."""
        atom = cute.make_copy_atom(operation(tcgen05.Repetition(width)), Float32)
        layout = cute.make_layout((ROWS, width), stride=(1 << 16, 1))
        window = cute.make_tensor(self.pointer + column, layout)
        return tcgen05.make_tmem_copy(atom, window), window
