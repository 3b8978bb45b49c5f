"""The kernel that sums the gradient of a look-up in a learned table: see `tables`."""

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr

from .compiler import compile_kernel, pointer, stream
from .form import ALIGNMENT
from .operands import vector
from .ranges import LANES
from .values import select

TOGETHER = 4  # terms that a thread adds at a time


class TableSums:
    """parts[p, w, i] = the sum of grad[w, r] over the rows r of part p with index[r] = i.

    size:     How many places there are.
    threads:  The threads of a CTA. Each has a table of size + 1 sums in shared memory. The last sum
              takes terms that are left out.
    tile:     How many rows a CTA loads at once.
    width:    How many neighbouring rows a thread loads: 1, or 8 if all addresses allow it.
    """

    def __init__(self, size: int, threads: int, tile: int, width: int) -> None:
        self.size, self.threads, self.tile, self.width = size, threads, tile, width
        self.groups = tile // (threads * width)

    @cute.jit
    def __call__(
        self, grad, index, parts, rows: Int64, height: Int64, ctas: Int32, columns: Int32, stream
    ):
        """Launch. height: The rows of a part, a multiple of `width`."""
        self.kernel(grad, index, parts, rows, height, columns).launch(
            grid=(ctas, columns, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, grad, index, parts, rows, height, columns):
        cta, column, _ = cute.arch.block_idx()
        thread = cute.arch.thread_idx()[0]
        # Neighbouring threads have neighbouring words, so their additions meet in no bank.
        layout = cute.make_layout((self.size + 1, self.threads), stride=(self.threads, 1))
        tables = cutlass.memory.SmemAllocator().allocate_tensor(Float32, layout, 16)
        for i in cutlass.range(self.size + 1, unroll=4):
            tables[i, thread] = 0.0
        first = Int64(cta) * height
        end = first + height
        end = end if end < rows else rows
        own = first + thread * self.width
        shape = (self.width, self.groups)
        terms, places = (cute.make_rmem_tensor(shape, x.dtype) for x in (grad, index))
        source = grad + Int64(column) * rows
        self.load(source, index, own, end, terms, places)
        for _ in cutlass.range(Int32((end - first + (self.tile - 1)) // self.tile), unroll=1):
            read, at = (cute.make_rmem_tensor(shape, x.dtype) for x in (grad, index))
            read.store(terms.load())
            at.store(places.load())
            # The next rows arrive while these are added. The compiler would move these loads behind
            # the additions, but moves none across this.
            self.load(source, index, own + self.tile, end, terms, places)
            cute.arch.sync_warp()
            self.add(read, at, own, end, tables, thread)
            own += self.tile
        cute.arch.sync_threads()
        self.store(tables, parts + (Int64(cta) * columns + column) * self.size, thread)

    @cute.jit
    def load(self, grad, index, own, end, terms, places):
        """Load the thread's next rows. For those past the end it loads the first ones."""
        for g in range_constexpr(self.groups):
            row = own + g * (self.threads * self.width)
            row = row if row < end else Int64(0)
            if const_expr(self.width == 1):
                terms[0, g], places[0, g] = grad[row], index[row]
            else:
                cute.autovec_copy(vector(grad + row), terms[None, g])
                cute.autovec_copy(vector(index + row), places[None, g])

    @cute.jit
    def add(self, terms, places, own, end, tables, thread):
        """Add rows to the thread's table. Those past the end are left out."""
        for g in range_constexpr(self.groups):
            exists = own + g * (self.threads * self.width) < end
            for first in range_constexpr(0, self.width, TOGETHER):
                some = range(first, min(first + TOGETHER, self.width))
                slots = [self.slot(places[i, g], exists) for i in some]
                add_terms(tables, thread, slots, [Float32(terms[i, g]) for i in some])

    def slot(self, place, exists):
        """Which sum of the thread a term of this place is added to."""
        place = select(place < 0, place + self.size, place)
        known = exists & (place >= 0) & (place < self.size)
        return select(known, Int32(place), Int32(self.size))

    @cute.jit
    def store(self, tables, target, thread):
        """Sum the tables of all threads. A warp sums one place after the other."""
        lane = thread % LANES
        # The reductions of several places overlap.
        for i in cutlass.range(thread // LANES, self.size, self.threads // LANES, unroll=4):
            total = tables[i, lane]
            for k in range_constexpr(LANES, self.threads, LANES):
                total = total + tables[i, lane + k]
            total = cute.arch.warp_reduction_sum(total)
            if lane == 0:
                target[i] = total


def add_terms(tables, thread, slots, terms) -> None:
    """Add a few terms to a thread's table, one after the other.

    All sums are read before any is written, so no addition waits for the memory of the one before.
    The bits are those of one addition after the other.
    """
    sums = [tables[slot, thread] for slot in slots]
    for number, (slot, term) in enumerate(zip(slots, terms, strict=True)):
        total = sums[number]
        for other in range(number):
            total = select(slots[other] == slot, sums[other], total)
        sums[number] = total + term
    for slot, total in zip(slots, sums, strict=True):
        tables[slot, thread] = total


def compiled(grad: str, index: str, size: int, threads: int, tile: int, width: int, arch: str):
    align = ALIGNMENT if width > 1 else 0
    pointers = (pointer(grad, align), pointer(index, align), pointer("float32"))
    counts = (Int64(1), Int64(1), Int32(1), Int32(1))
    return compile_kernel(
        TableSums(size, threads, tile, width), (*pointers, *counts, stream()), arch
    )
