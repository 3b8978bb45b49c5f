"""dQ of the kernel of both sides: from tensor memory to sums in global memory, then to 16 bits.

Four warps copy dQ of a step to shared memory. Another warp adds it to the sums when it is the turn
of the key tile (`backward/sums.py`), by one bulk copy. The last key tile to add to a query tile
does not: its four warps read the sums instead, add dQ of their step, and store dQ in 16 bits. Of a
pair of CTAs each does so with 64 of the 128 rows. Then lanes 0-63 have half of the columns of these
rows, and lanes 64-127 the others.

The sums of a query tile lie side by side, in an order of their own: the first four columns of all
rows, then the next four. So the threads of a warp write neighbouring places, and a part is one
piece of memory. All sums have as many numbers as dQ.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Boolean, Float32, Int32, Int64, cute, range_constexpr

from ...backward.sums import UNKNOWN, Counters
from ...backward.turns import Turns
from ...backward.walk import ResidentTile
from ...config import VECTOR
from ...operands import Matrix, vector
from ...values import Fixed, larger, smaller
from ..config import ROWS
from ..tensor_memory import TensorMemoryRow, scores_done, scores_ready
from .shapes import HALF, PART

COPYING_WARPS = 4
QUAD = 4  # sums that a thread moves at a time
STORE = "cp.async.bulk.global.shared::cta.bulk_group [{$r0}], [{$r1}], {$r2};"
ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{$r0}], [{$r1}], {$r2};"


@dataclass
class QueryRows(Fixed):
    """The sums of dQ in global memory."""

    walk: Turns
    pointer: Any  # fp32
    dim: int  # the head dim
    height: int  # the rows of a query tile that this CTA adds
    sizes: Any  # as kernels take them

    def of(self, tile: ResidentTile, head, block) -> tuple[Any, Any]:
        """(the first sum of query tile `block`, how many rows it has)."""
        unit, length = Int64(tile.batch * self.walk.query_heads + head), self.sizes[4]
        if self.walk.streamed[0] is not None:  # jagged
            unit, length = Int64(head), self.sizes[6]
        row = unit * length + tile.origin + self.first(block)
        return self.pointer + row * self.dim, self.count(tile, block)

    def first(self, block):
        """The first of the rows, counted within the sequence."""
        return block * ROWS + self.walk.rank * self.height

    def count(self, tile: ResidentTile, block):
        rows = smaller(tile.length - self.first(block), Int32(self.height))
        return rows if self.height == ROWS else larger(rows, Int32(0))

    def place(self, sums, rows, row, column: int):
        """Four sums of a row. sums: A pointer to those of the tile, in either memory."""
        place = sums + (column * rows + row * QUAD)
        aligned = cute.make_ptr(Float32, place.toint(), place.memspace, assumed_align=16)
        return cute.make_tensor(aligned, cute.make_layout(QUAD))


@dataclass
class SharedParts(Fixed):
    """Parts of dQ in shared memory."""

    rows: QueryRows
    signals: dict[str, Any]
    pointer: Any  # fp32, a buffer for each stage of "copied"

    def at(self, step):
        place = self.signals["copied"].index(step) * (self.rows.height * self.rows.dim)
        return self.pointer + place

    def takes(self, tile: ResidentTile, head, block, before):
        """Whether other key tiles add after this one."""
        return before + 1 != self.rows.walk.adders(tile, head, block)

    def start(self) -> None:
        pass

    def wait(self, step) -> None:
        self.signals["copied"].wait(step)

    def issue(self, tile: ResidentTile, head, block, step, adds) -> None:
        sums, rows = self.rows.of(tile, head, block)
        move = self.move if self.rows.height == ROWS else self.move_any
        move(sums, rows * (4 * self.rows.dim), step, adds)

    @cute.jit
    def move_any(self, sums, size, step, adds):
        """A pair of CTAs may have rows for the first one only."""
        if size > 0:
            self.move(sums, size, step, adds)

    @cute.jit
    def move(self, sums, size, step, adds):
        with cute.arch.elect_one():
            ends = [sums.toint(), self.at(step).toint(), size]
            cute.arch.inline_ptx(ADD if adds else STORE, read_only_args=ends)

    def free(self, step) -> None:
        self.signals["added"].arrive_once(step)


@dataclass
class QueryCopies(Fixed):
    """The role of the warps that copy dQ of a step from tensor memory, or store it."""

    parts: SharedParts
    counters: Counters
    memory: TensorMemoryRow
    column: int  # the first of dQ in tensor memory
    grads: Matrix
    factor: float  # dQ is the sums times this

    def __post_init__(self) -> None:
        self.rows, self.signals = self.parts.rows, self.parts.signals
        lane, height = self.memory.thread % ROWS, self.rows.height
        # A lane has so many columns, from `left` on, of this row.
        self.width = self.rows.dim if height == ROWS else HALF
        self.walk, self.row = self.rows.walk, lane % height
        self.left = 0 if height == ROWS else lane // height * HALF

    @cute.jit
    def run(self):
        step, deal = Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            entry = self.walk.entry(tile)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for i in range(tile.end - tile.begin):
                    self.step(tile, head, self.walk.block(tile, entry, i), step)
                    step += 1
            deal += 1

    @cute.jit
    def step(self, tile: ResidentTile, head, block, step):
        self.signals["parts"].wait(step)
        scores_ready()
        self.signals["added"].wait_before(step)
        before, adds = self.walk.turn(tile, head, block)
        if adds & (not self.parts.takes(tile, head, block, before)):
            self.finish(tile, head, block, before)
        else:
            self.copy(tile, block, self.parts.at(step))
        scores_done(stored=False)
        self.signals["drained"].arrive_once(step)
        cute.arch.fence_view_async_shared()
        self.signals["copied"].arrive_once(step)

    @cute.jit
    def copy(self, tile: ResidentTile, block, buffer):
        rows = self.rows.count(tile, block)
        for first in range_constexpr(0, self.width, PART):
            columns = self.fetch(first)
            for column, four in self.fours(first, columns):
                if (self.row < rows) & self.there(column):
                    place = self.rows.place(buffer, rows, self.row, self.left + column)
                    cute.autovec_copy(four, place)

    @cute.jit
    def finish(self, tile: ResidentTile, head, block, before):
        """Store dQ in 16 bits. All other key tiles have added."""
        sums, rows = self.rows.of(tile, head, block)
        if before > 0:
            self.counters.wait(self.counters.of(tile, head, block), before, Int32(UNKNOWN))
        row = self.rows.first(block) + self.row
        target = self.grads.row(tile.origin, row, head, tile.batch) + self.left
        for first in range_constexpr(0, self.width, PART):
            columns = self.fetch(first)
            if self.row < rows:
                others = cute.make_rmem_tensor(PART, Float32)
                others.fill(0.0)
                if before > 0:
                    for column, four in self.fours(first, others):
                        if self.there(column):
                            place = self.rows.place(sums, rows, self.row, self.left + column)
                            cute.autovec_copy(place, four)
                self.store(columns.load() + others.load(), first, target + first)

    def there(self, column: int):
        """Whether a column of this lane exists."""
        most = column + ROWS - self.width if self.rows.height < ROWS else column
        return Boolean(True) if most < self.rows.dim else self.left + column < self.rows.dim

    def fetch(self, first: int):
        columns = self.memory.load(self.column + first, PART)
        cute.arch.fence_view_async_tmem_load()
        return columns

    def fours(self, first: int, numbers) -> list[tuple[int, Any]]:
        """(column, four numbers from it on)."""
        layout, count = cute.make_layout(QUAD), min(PART, self.width - first)
        return [
            (first + i, cute.make_tensor(numbers.iterator + i, layout))
            for i in range(0, count, QUAD)
        ]

    @cute.jit
    def store(self, whole, first: int, target):
        narrow = cute.make_rmem_tensor(PART, target.dtype)
        narrow.store((whole * self.factor if self.factor != 1.0 else whole).to(target.dtype))
        for i in range_constexpr(0, min(PART, self.width - first), VECTOR):
            if self.there(first + i):
                part = cute.make_tensor(narrow.iterator + i, cute.make_layout(VECTOR))
                cute.autovec_copy(part, vector(target + i))
