"""Store what a tile has computed: dS from registers, accumulators from tensor memory."""

from dataclasses import dataclass
from typing import Any

from cutlass import Boolean, Int64, const_expr, cute, range_constexpr

from ...backward.walk import ResidentTile, Walk
from ...config import VECTOR, whole_vectors
from ...operands import vector
from ...values import Fixed
from ..config import ROWS

PART = 16  # columns of an accumulator in registers at a time


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

    @cute.jit
    def store(self, tile: ResidentTile, row, column, numbers):
        """Store `numbers` in a row of the tile. Past the end of its sequence a row gets zeros."""
        sb, sh, sr = (Int64(s) for s in self.strides)
        number = tile.first + row
        start = self.pointer + (tile.slot * sb + tile.head * sh + number * sr + column)
        narrow = cute.make_rmem_tensor(cute.size(numbers), self.pointer.dtype)
        narrow.store(numbers.load().to(self.pointer.dtype))
        if number >= tile.rows:
            narrow.fill(0.0)
        for i in range_constexpr(0, cute.size(numbers), VECTOR):
            if (number < self.rows) & (column + i < self.columns):
                part = cute.make_tensor(narrow.iterator + i, cute.make_layout(VECTOR))
                cute.autovec_copy(part, vector(start + i))


@dataclass
class GradientSums(Fixed):
    """The gradients that one side writes."""

    walk: Walk
    memory: Any
    # By operand: (pointer, strides (batch, head, row), head dim, the same padded). The gradient is
    # [B, H, M, D], or jagged [L, H, D]. Rows past the end of a sequence are not written.
    outputs: dict[str, tuple[Any, ...]]
    factor: float  # a gradient is its sums times this

    def write(self, tile: ResidentTile, summed: bool) -> None:
        for name in self.outputs:
            self._write(name, tile, summed)

    @cute.jit
    def _write(self, name, tile: ResidentTile, summed):
        pointer, strides, dim, width = self.outputs[name]
        row = tile.first + self.memory.thread % ROWS
        place = Int64(tile.head) * strides[1] + Int64(tile.start + row) * strides[2]
        if const_expr(not self.walk.jagged):
            place += Int64(tile.batch) * strides[0]
        # Each warpgroup stores half of the columns.
        half = self.memory.thread // ROWS * (width // 2)
        for number in range_constexpr(width // 2 // PART):
            column = half + number * PART
            numbers = cute.make_rmem_tensor(PART, pointer.dtype)
            if summed:
                sums = self.memory.load(self.memory.shapes.sums[name] + column, PART)
                cute.arch.fence_view_async_tmem_load()
                whole = sums.load()
                if const_expr(self.factor != 1.0):
                    whole = whole * self.factor
                numbers.store(whole.to(pointer.dtype))
            else:
                numbers.fill(0)
            for i in range_constexpr(0, PART, VECTOR):
                if (row < tile.rows) & within(half, number * PART + i, dim, width):
                    part = cute.make_tensor(numbers.iterator + i, cute.make_layout(VECTOR))
                    cute.autovec_copy(part, vector(pointer + place + column + i))


def within(half, offset: int, dim: int, width: int):
    """Whether the column at `offset` of a half of the padded width exists. half: Its first one."""
    return half + offset < dim if width // 2 + offset >= dim else Boolean(True)
