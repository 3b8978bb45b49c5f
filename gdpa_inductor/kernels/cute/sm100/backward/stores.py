"""Store dS as the gradient of a bias, from registers to global memory. Only the rows side does."""

from typing import Any

from cutlass import Int64, cute, range_constexpr

from ...backward.walk import ResidentTile, Walk
from ...config import VECTOR, whole_vectors
from ...operands import vector
from ...values import Fixed


class ScoreStores(Fixed):
    """Stores dS.

    pointer, strides: Those of [slots, H, M, N] in 16 bits. N is rounded up to a multiple of 8, and
    the columns in excess are written too. sizes: As kernels take them.
    """

    def __init__(self, walk: Walk, pointer: Any, strides: Any, sizes: Any) -> None:
        self.walk, self.pointer, self.strides = walk, pointer, strides
        self.rows, self.columns = sizes[4], whole_vectors(sizes[5])

    @cute.jit
    def store(self, tile: ResidentTile, row, column, numbers):
        """Store `numbers` in a row of the tile, from a column on.

        A row past the end of its sequence gets zeros.
        """
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
