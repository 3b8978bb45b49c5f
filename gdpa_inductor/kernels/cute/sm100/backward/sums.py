"""The end of a tile: store the accumulators, from tensor memory to global memory."""

from typing import Any

from cutlass import Boolean, Int64, const_expr, cute, range_constexpr

from ...backward.walk import ResidentTile, Walk
from ..config import ROWS

PART = 16  # columns in registers at a time
VECTOR = 8  # columns that one check of the bound covers; head dims are multiples of it


class GradientSums:
    """The gradients that one side writes.

    outputs:  By operand: (pointer, strides (batch, head, row), head dim, the same padded). The
              gradient is [B, H, M, D], or jagged [L, H, D]. Rows past the end of a sequence are not
              written.
    factor:   A gradient is its sums times this.
    """

    def __init__(
        self, walk: Walk, memory: Any, outputs: dict[str, tuple[Any, ...]], factor: float
    ) -> None:
        self.walk, self.memory, self.outputs, self.factor = walk, memory, outputs, factor

    def write(self, tile: ResidentTile, summed: bool) -> None:
        """Store the row of this thread. Each warpgroup stores half of the columns.

        summed: False if the tile met no streamed tile. Then zeros are stored.
        """
        for name in self.outputs:
            self._write(name, tile, summed)

    @cute.jit
    def _write(self, name, tile: ResidentTile, summed):
        pointer, strides, dim, width = self.outputs[name]
        row = tile.first + self.memory.thread % ROWS
        place = Int64(tile.head) * strides[1] + Int64(tile.start + row) * strides[2]
        if const_expr(not self.walk.jagged):
            place += Int64(tile.batch) * strides[0]
        half = self.memory.thread // ROWS * (width // 2)
        for part in range_constexpr(width // 2 // PART):
            column = half + part * PART
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
                if (row < tile.rows) & within(half, part * PART + i, dim, width):
                    source = cute.make_tensor(numbers.iterator + i, cute.make_layout(VECTOR))
                    target = cute.make_ptr(
                        pointer.dtype, (pointer + place + column + i).toint(),
                        cute.AddressSpace.gmem, assumed_align=16,
                    )  # fmt: skip
                    cute.autovec_copy(source, cute.make_tensor(target, cute.make_layout(VECTOR)))


def within(half: Any, offset: int, dim: int, width: int) -> Any:
    """Whether the column at `offset` of a half of the padded width exists. half: Its first one."""
    return half + offset < dim if width // 2 + offset >= dim else Boolean(True)
