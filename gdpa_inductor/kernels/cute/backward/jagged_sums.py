"""Two kernels that sum the stored gradients of scores of jagged sequences: see `jagged_biases`.

In both, "a vector" is 8 neighbouring columns of scores. Only tiles that the backward has stored are
read; `Hulls` says which.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute

from ..compiler import compile_kernel, pointer, stream
from ..config import VECTOR, StoredTiling
from ..form import ALIGNMENT
from ..operands import vector
from ..ranges import LANES
from ..values import Fixed, larger, smaller

THREADS = 256
WARPS = THREADS // LANES


@dataclass
class Hulls(Fixed):
    """Which rows and vectors of scores were stored."""

    hulls: Any  # (begin, end) tiles for each slot, head and tile, as in `jagged_biases`
    heads: Any  # how many heads, and tiles of each, have hulls
    tiles: Any
    group: Any  # how many heads of scores share a hull
    tiling: StoredTiling

    def __post_init__(self) -> None:
        self.rows, self.vectors = self.tiling.rows, self.tiling.cols // VECTOR
        self.by_keys = self.tiling.by_keys

    def of(self, slot, head, tile, height: int) -> tuple[Any, Any]:
        unit = Int64(slot * self.heads + head // self.group) * self.tiles
        hull = self.hulls + (unit + tile) * 2
        return hull[0] * height, hull[1] * height

    def rows_of(self, slot, head, column, first, end) -> tuple[Any, Any]:
        """The rows in [first, end) that may have the vector of a column. `has` decides for each."""
        if self.by_keys:
            low, high = self.of(slot, head, column // self.vectors, self.rows)
            first, end = larger(first, low), smaller(end, high)
        return first, end

    def columns_of(self, slot, head, row, count) -> tuple[Any, Any]:
        """The vectors in [0, count) that a row may have. `holds` decides for each."""
        if self.by_keys:
            return Int32(0), count
        low, high = self.of(slot, head, row // self.rows, self.vectors)
        return low, smaller(count, high)

    def has(self, slot, head, row, column):
        if self.by_keys:
            return Boolean(True)
        low, high = self.of(slot, head, row // self.rows, self.vectors)
        return (low <= column) & (column < high)

    def holds(self, slot, head, row, column):
        if not self.by_keys:
            return Boolean(True)
        low, high = self.of(slot, head, column // self.vectors, self.rows)
        return (low <= row) & (row < high)


class TileSums:
    """target[b, h, c, j] = factor · the sum of source[slot, h, i, j] over the rows i of chunk c.

    If the target has one batch or one head, the sum is over all slots or heads too. A thread
    computes 8 neighbouring columns j.
    """

    SIZES = 9

    def __init__(self, factor: float, batch: bool, heads: bool, tiling: StoredTiling) -> None:
        self.factor, self.batch, self.heads, self.tiling = factor, batch, heads, tiling

    @cute.jit
    def __call__(self, source, target, hulls, order, sizes, stream):
        """Launch. sizes: Those of `StoredScores`, how many chunks there are, the rows of a chunk,
        and 1 to add to what the target has, else 0.
        """
        slots, heads, _, _, _, vectors, chunks, _, _ = sizes
        ctas = (chunks * vectors + (THREADS - 1)) // THREADS
        grid = (ctas, heads if self.heads else 1, slots if self.batch else 1)
        self.kernel(source, target, hulls, order, sizes).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, hulls, order, sizes):
        slots, heads, hull_heads, tiles, rows, vectors, chunks, height, adds = sizes
        cta, head, slot = cute.arch.block_idx()
        own = Int32(cta) * THREADS + cute.arch.thread_idx()[0]
        ranges = Hulls(hulls, hull_heads, tiles, heads // hull_heads, self.tiling)
        if own < chunks * vectors:
            column, chunk = own % vectors, own // vectors
            first, end = chunk * height, smaller(chunk * height + height, rows)
            unit = Int64(order[slot]) if const_expr(self.batch) else Int64(0)
            unit = unit * heads + head if const_expr(self.heads) else unit
            place = target + ((unit * chunks + chunk) * vectors + column) * VECTOR
            sums = cute.make_rmem_tensor(VECTOR, Float32)
            sums.fill(0.0)
            slot_end = slot + 1 if const_expr(self.batch) else slots
            head_end = head + 1 if const_expr(self.heads) else heads
            for s in cutlass.range(slot, slot_end, unroll=1):
                for h in cutlass.range(head, head_end, unroll=1):
                    start = source + (Int64(s * heads + h) * rows * vectors + column) * VECTOR
                    low, high = ranges.rows_of(s, h, column, first, end)
                    for i in cutlass.range(low, high, unroll=4):
                        if ranges.has(s, h, i, column):
                            row = Int64(i * vectors) * VECTOR
                            sums.store(sums.load() + _floats(start + row))
            self.write(place, sums, adds)

    @cute.jit
    def write(self, place, sums, adds):
        whole = sums.load() * self.factor
        if const_expr(place.dtype is Float32):  # noqa: SIM102 (decided at compile time)
            if adds != 0:
                whole = whole + vector(place).load()
        narrow = cute.make_rmem_tensor(VECTOR, place.dtype)
        narrow.store(whole.to(place.dtype))
        cute.autovec_copy(narrow, vector(place))


class RowSums:
    """target[b, h, i] = factor · the sum of source[slot, h, i, :]. A warp computes a row."""

    SIZES = 6

    def __init__(self, factor: float, tiling: StoredTiling) -> None:
        self.factor, self.tiling = factor, tiling

    @cute.jit
    def __call__(self, source, target, hulls, order, sizes, stream):
        slots, heads, _, _, rows, _ = sizes
        grid = ((rows + (WARPS - 1)) // WARPS, heads, slots)
        self.kernel(source, target, hulls, order, sizes[1:]).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, hulls, order, sizes):
        heads, hull_heads, tiles, rows, vectors = sizes
        cta, head, slot = cute.arch.block_idx()
        row = Int32(cta) * WARPS + cute.arch.warp_idx()
        ranges = Hulls(hulls, hull_heads, tiles, heads // hull_heads, self.tiling)
        if row < rows:
            start = source + Int64(slot * heads + head) * rows * vectors * VECTOR
            start = start + Int64(row * vectors) * VECTOR
            sums = cute.make_rmem_tensor(VECTOR, Float32)
            sums.fill(0.0)
            low, high = ranges.columns_of(slot, head, row, vectors)
            for column in cutlass.range(low + cute.arch.lane_idx(), high, LANES, unroll=1):
                if ranges.holds(slot, head, row, column):
                    sums.store(sums.load() + _floats(start + Int64(column) * VECTOR))
            total = sums[0]
            for i in cutlass.range_constexpr(1, VECTOR):
                total = total + sums[i]
            total = cute.arch.warp_reduction_sum(total)
            with cute.arch.elect_one():
                target[(Int64(order[slot]) * heads + head) * rows + row] = total * self.factor


def _floats(place):
    numbers = cute.make_rmem_tensor(VECTOR, place.dtype)
    cute.autovec_copy(vector(place), numbers)
    return numbers.load().to(Float32)


KINDS: dict[str, Any] = {"tiles": TileSums, "rows": RowSums}


def compiled(
    kind: str, arguments: tuple[Any, ...], source: str, target: str, arch: str, more: str = ""
):
    sums = KINDS[kind](*arguments)
    matrices = (pointer(x, ALIGNMENT) for x in (source, target))
    sizes = tuple(Int32(1) for _ in range(sums.SIZES))
    operands = (*matrices, pointer("int32"), pointer("int64"), sizes, stream())
    return compile_kernel(sums, operands, arch, more)
