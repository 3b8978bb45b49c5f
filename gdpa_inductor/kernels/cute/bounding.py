"""The kernel that makes a table of tile bounds (see `bounds`). A CTA reads one tile."""

import cutlass
from cutlass import Float32, Int32, Int64, cute, range_constexpr

from .compiler import compile_kernel, pointer, stream
from .config import ENDS
from .program import element, widened
from .ranges import LANES
from .values import larger, smaller

WARPS = 8  # of a CTA
THREADS = WARPS * LANES
UNROLLED = 4  # rows that a warp reads at a time
APART = 4  # the stride from warp to warp in shared memory, in numbers: 16 bytes or more


class Bounding:
    """table[b, h, i, j] = (smallest, largest) element of tile (i, j), which is `rows` × `cols`.

    Both are NaN if an element is NaN.
    """

    def __init__(self, source: str, table: str, rows: int, cols: int) -> None:
        self.source, self.rows, self.cols = source, rows, cols
        self.kind = {"float32": Float32, "int64": Int64}.get(table, Int32)

    @cute.jit
    def __call__(self, source, table, extents, strides, stream):
        """Launch the kernel. extents, strides: Those of the operand, Int32 and Int64."""
        batch, heads, rows, cols = extents
        tiles = ((rows + (self.rows - 1)) // self.rows, (cols + (self.cols - 1)) // self.cols)
        self.kernel(source, table, extents[1:], tiles, strides).launch(
            grid=(batch * heads * tiles[0] * tiles[1], 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, table, sizes, tiles, strides):
        cta, thread = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.thread_idx()[0])
        heads, rows, cols = sizes
        sb, sh, sr, sc = strides
        unit, rest = cta // (tiles[0] * tiles[1]), cta % (tiles[0] * tiles[1])
        row, col = rest // tiles[1] * self.rows, rest % tiles[1] * self.cols
        first = source + (unit // heads * sb + unit % heads * sh + row * sr + col * sc)
        last_row, last_col = rows - 1 - row, smaller(cols - col, self.cols) - 1
        lo = hi = self.element(first)
        for i in cutlass.range(thread // LANES, self.rows, WARPS, unroll=UNROLLED):
            own = first + smaller(i, last_row) * sr
            for j in range_constexpr(0, self.cols, LANES):
                value = self.element(own + smaller(j + thread % LANES, last_col) * sc)
                lo, hi = self.least(lo, value), self.most(hi, value)
        self.store(table + Int64(cta) * len(ENDS), thread, lo, hi)

    @cute.jit
    def store(self, place, thread, lo, hi):
        layout = cute.make_layout((WARPS, len(ENDS)), stride=(APART, 1))
        buffer = cutlass.memory.SmemAllocator().allocate_tensor(self.kind, layout, 16)
        for distance in (1, 2, 4, 8, 16):
            lo = self.least(lo, cute.arch.shuffle_sync_bfly(lo, distance))
            hi = self.most(hi, cute.arch.shuffle_sync_bfly(hi, distance))
        if thread % LANES == 0:
            buffer[thread // LANES, 0], buffer[thread // LANES, 1] = lo, hi
        cute.arch.sync_threads()
        if thread == 0:
            for warp in range_constexpr(1, WARPS):
                lo = self.least(lo, buffer[warp, 0])
                hi = self.most(hi, buffer[warp, 1])
            place[0], place[1] = place.dtype(lo), place.dtype(hi)

    def element(self, place):
        value = widened(element(place), self.source)
        return Int32(value != 0) if self.source == "bool" else self.kind(value)

    def least(self, x, y):
        return cute.arch.fmin(x, y, nan=True) if self.kind is Float32 else smaller(x, y)

    def most(self, x, y):
        return cute.arch.fmax(x, y, nan=True) if self.kind is Float32 else larger(x, y)


def compiled(source: str, table: str, rows: int, cols: int, arch: str):
    extents, strides = (tuple(kind(1) for _ in range(4)) for kind in (Int32, Int64))
    arguments = (pointer(source), pointer(table), extents, strides, stream())
    return compile_kernel(Bounding(source, table, rows, cols), arguments, arch)
