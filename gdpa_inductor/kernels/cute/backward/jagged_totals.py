"""Sums of the stored gradients of scores where a side is jagged, in one order.

What a kernel has stored are numbers [slots, H, M, N] in 16 bits, and which query tiles each key
tile has met, or the other way round: `hulls`, Int32 [slots, Hk, key tiles, 2] or [slots, H, query
tiles, 2], half open. A slot holds one sequence, that which `order` names. Only what is in the hulls
was written, and only that is read. It is zero past the ends of a sequence.
"""

import functools
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute
from torch import Tensor

from .. import disk
from ..launcher import WordLauncher, pointer
from ..operands import VECTOR, vector
from ..plan import ALIGNMENT, name
from ..ranges import LANES
from ..values import Fixed, larger, smaller

THREADS = 256
WARPS = THREADS // LANES
MOST = 65535  # heads or slots: CTAs along a dimension of a grid other than the first


@dataclass(frozen=True)
class StoredTiling:
    """Queries and keys of a tile. by_keys: each key tile has a hull, else each query tile."""

    rows: int
    cols: int
    by_keys: bool

    def units(self, key_heads: int, heads: int, rows: int, cols: int) -> tuple[int, int]:
        """Heads, and tiles of each, that have hulls."""
        if self.by_keys:
            return key_heads, -(-cols // self.cols)
        return heads, -(-rows // self.rows)


@dataclass(frozen=True)
class StoredScores:
    """What one launch has stored, of `count` sequences. scores: [slots, H, M, N]; its rows begin
    at multiples of 16 bytes. order: Int64, of these sequences."""

    scores: Tensor
    hulls: Tensor
    order: Tensor
    count: int
    tiling: StoredTiling

    @property
    def vectors(self) -> int:
        """Of a row."""
        return self.scores.stride(2) // VECTOR

    @property
    def sizes(self) -> tuple[int, ...]:
        """As the kernels take them."""
        _, heads, rows, _ = self.scores.shape
        return (self.count, heads, *self.hulls.shape[1:3], rows, self.vectors)


def add_tiles(
    stored: StoredScores, total: Tensor, axes: frozenset[str], factor: float, adds: bool, arch: str,
    stream: int,
) -> None:  # fmt: skip
    """total [B|1, H|1, C, N'] = factor · the sums of chunks of rows, C of them; with `adds`, plus
    what is there, in fp32. axes: "b" if each sequence has its own, "h" if each head has."""
    given = (factor, "b" in axes, "h" in axes, stored.tiling)
    made = _launcher(TileSums, given, name(stored.scores.dtype), name(total.dtype), arch)
    chunks, rows = total.shape[2], stored.scores.shape[2]
    shares = (chunks, -(-rows // chunks), int(adds))
    made(*_addresses(stored, total), *stored.sizes, *shares, stream)


def add_rows(stored: StoredScores, total: Tensor, factor: float, arch: str, stream: int) -> None:
    """total [B, H, M] = factor · the sum of each row, in fp32, of the stored sequences."""
    given = (factor, stored.tiling)
    made = _launcher(RowSums, given, name(stored.scores.dtype), "float32", arch)
    made(*_addresses(stored, total), *stored.sizes, stream)


def _addresses(stored: StoredScores, total: Tensor) -> list[int]:
    return [x.data_ptr() for x in (stored.scores, total, stored.hulls, stored.order)]


class Hulls(Fixed):
    """Where a row or a vector of scores was stored. heads, tiles: that have hulls. group: of the
    heads of scores that share one. tiling: of vectors."""

    def __init__(
        self, hulls: Any, heads: Any, tiles: Any, group: Any, tiling: StoredTiling
    ) -> None:
        self.hulls, self.heads, self.tiles, self.group = hulls, heads, tiles, group
        self.rows, self.vectors, self.by_keys = tiling.rows, tiling.cols // VECTOR, tiling.by_keys

    def of(self, slot: Any, head: Any, tile: Any, height: int) -> tuple[Any, Any]:
        unit = Int64(slot * self.heads + head // self.group) * self.tiles
        hull = self.hulls + (unit + tile) * 2
        return hull[0] * height, hull[1] * height

    def rows_of(self, slot: Any, head: Any, column: Any, first: Any, end: Any) -> tuple[Any, Any]:
        """Of the rows from `first` to `end` those that may have the vector of a column; `has` says
        which do."""
        if self.by_keys:
            low, high = self.of(slot, head, column // self.vectors, self.rows)
            first, end = larger(first, low), smaller(end, high)
        return first, end

    def columns_of(self, slot: Any, head: Any, row: Any, count: Any) -> tuple[Any, Any]:
        """Of `count` vectors those that may lie in a row; `holds` says which do."""
        if self.by_keys:
            return Int32(0), count
        low, high = self.of(slot, head, row // self.rows, self.vectors)
        return low, smaller(count, high)

    def has(self, slot: Any, head: Any, row: Any, column: Any) -> Any:
        """Whether one of `rows_of` has the vector."""
        if self.by_keys:
            return Boolean(True)
        low, high = self.of(slot, head, row // self.rows, self.vectors)
        return (low <= column) & (column < high)

    def holds(self, slot: Any, head: Any, row: Any, column: Any) -> Any:
        """Whether one of `columns_of` lies in the row."""
        if not self.by_keys:
            return Boolean(True)
        low, high = self.of(slot, head, column // self.vectors, self.rows)
        return (low <= row) & (row < high)


class TileSums:
    """target[b, h, c, j] = factor · the sum of source[slot, h, i, j] over the rows i of chunk c,
    and over what the target has one of. A thread owns 8 neighbouring columns j."""

    SIZES = 9

    def __init__(self, factor: float, batch: bool, heads: bool, tiling: StoredTiling) -> None:
        self.factor, self.batch, self.heads, self.tiling = factor, batch, heads, tiling

    @cute.jit
    def __call__(
        self, source, target, hulls, order, slots: Int32, heads: Int32, hull_heads: Int32,
        tiles: Int32, rows: Int32, vectors: Int32, chunks: Int32, height: Int32, adds: Int32,
        stream,
    ):  # fmt: skip
        """height: rows of a chunk."""
        ctas = (chunks * vectors + (THREADS - 1)) // THREADS
        grid = (ctas, heads if self.heads else 1, slots if self.batch else 1)
        sizes = (slots, heads, hull_heads, tiles, rows, vectors, chunks, height, adds)
        self.kernel(source, target, hulls, order, sizes).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, hulls, order, sizes):
        slots, heads, hull_heads, tiles, rows, vectors, chunks, height, adds = sizes
        cta, head, slot = cute.arch.block_idx()
        own = Int32(cta) * THREADS + cute.arch.thread_idx()[0]
        found = Hulls(hulls, hull_heads, tiles, heads // hull_heads, self.tiling)
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
                    low, high = found.rows_of(s, h, column, first, end)
                    for i in cutlass.range(low, high, unroll=4):
                        if found.has(s, h, i, column):
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
    """target[b, h, i] = factor · the sum of source[slot, h, i, :]. A warp owns a row."""

    SIZES = 6

    def __init__(self, factor: float, tiling: StoredTiling) -> None:
        self.factor, self.tiling = factor, tiling

    @cute.jit
    def __call__(
        self, source, target, hulls, order, slots: Int32, heads: Int32, hull_heads: Int32,
        tiles: Int32, rows: Int32, vectors: Int32, stream,
    ):  # fmt: skip
        grid = ((rows + (WARPS - 1)) // WARPS, heads, slots)
        sizes = (heads, hull_heads, tiles, rows, vectors)
        self.kernel(source, target, hulls, order, sizes).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, hulls, order, sizes):
        heads, hull_heads, tiles, rows, vectors = sizes
        cta, head, slot = cute.arch.block_idx()
        row = Int32(cta) * WARPS + cute.arch.warp_idx()
        found = Hulls(hulls, hull_heads, tiles, heads // hull_heads, self.tiling)
        if row < rows:
            start = source + Int64(slot * heads + head) * rows * vectors * VECTOR
            start = start + Int64(row * vectors) * VECTOR
            sums = cute.make_rmem_tensor(VECTOR, Float32)
            sums.fill(0.0)
            low, high = found.columns_of(slot, head, row, vectors)
            for column in cutlass.range(low + cute.arch.lane_idx(), high, LANES, unroll=1):
                if found.holds(slot, head, row, column):
                    sums.store(sums.load() + _floats(start + Int64(column) * VECTOR))
            total = sums[0]
            for i in cutlass.range_constexpr(1, VECTOR):
                total = total + sums[i]
            total = cute.arch.warp_reduction_sum(total)
            with cute.arch.elect_one():
                target[(Int64(order[slot]) * heads + head) * rows + row] = total * self.factor


def _floats(place: Any) -> Any:
    """8 numbers from there on, in fp32."""
    found = cute.make_rmem_tensor(VECTOR, place.dtype)
    cute.autovec_copy(vector(place), found)
    return found.load().to(Float32)


def compiled(sums: Any, source: str, target: str, arch: str, more: str = "") -> Any:
    """sums: of the classes above, for scores and sums of these dtypes. Needs no GPU. more: compiler
    options."""
    matrices = (pointer(x, ALIGNMENT) for x in (source, target))
    sizes = (Int32(1) for _ in range(sums.SIZES))
    given = (*matrices, pointer("int32"), pointer("int64"), *sizes, cuda.CUstream(0))
    return cute.compile(sums, *given, options=f"--gpu-arch={arch} {more}".rstrip())


@functools.cache
def _launcher(kind: Any, given: tuple[Any, ...], source: str, target: str, arch: str) -> Any:
    """Of `kind(*given)`."""
    form = (source, target, arch)
    made = disk.kept(lambda: compiled(kind(*given), *form), kind.__name__, *given, *form)
    return WordLauncher(made, 4 + kind.SIZES + 1)
