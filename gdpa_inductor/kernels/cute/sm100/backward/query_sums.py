"""Add the parts of dQ in global memory, in the order of `backward/sums.py`, and convert the sums.

Four warps take dQ of a step from tensor memory. When it is the turn of the key tile, they add it,
16 bytes a thread, by reductions that return nothing. So dQ does not pass through shared memory,
which bounds a step (docs/blackwell.md).

The sums of a query tile lie side by side, in an order of their own: the first four columns of all
rows, then the next four. So the threads of a warp add to neighbouring places. The memory has as
many numbers as dQ.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, Int64, cute, range_constexpr

from ...backward.sums import UNKNOWN, Counters
from ...backward.turns import Turns
from ...backward.walk import ResidentTile
from ...config import VECTOR
from ...operands import Matrix, vector
from ...values import Fixed, smaller
from ..config import ROWS
from ..tensor_memory import TensorMemoryRow, scores_done, scores_ready
from .shapes import PART

ADDING_WARPS, CONVERTING_WARPS = 4, 2
ADDED = 1  # the named barrier on which the warps meet that add
QUAD = 4  # sums that a thread adds at a time
WARP = 32


@dataclass
class QueryRows(Fixed):
    """The sums of dQ in global memory."""

    walk: Turns
    pointer: Any  # fp32
    dim: int  # the head dim
    sizes: Any  # as kernels take them

    def of(self, tile: ResidentTile, head, block) -> tuple[Any, Any]:
        """(the first sum of query tile `block`, how many rows it has)."""
        first = block * ROWS
        unit, length = Int64(tile.batch * self.walk.query_heads + head), self.sizes[4]
        if self.walk.streamed[0] is not None:  # jagged
            unit, length = Int64(head), self.sizes[6]
        row = unit * length + tile.origin + first
        return self.pointer + row * self.dim, smaller(tile.length - first, Int32(ROWS))

    def place(self, sums, rows, row, column: int):
        """Four sums of a row, as a pointer."""
        return sums + (column * rows + row * QUAD)


@dataclass
class QueryParts(Fixed):
    """The role of the warps that add."""

    counters: Counters
    signals: dict[str, Any]
    memory: TensorMemoryRow
    column: int  # the first of dQ in tensor memory
    rows: QueryRows

    def __post_init__(self) -> None:
        self.walk, self.row = self.counters.walk, self.memory.thread % ROWS

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
        """Add one part. It is dropped if a mask empties the tile of scores."""
        self.signals["parts"].wait(step)
        scores_ready()
        columns = range(0, self.rows.dim, PART)
        parts = [self.memory.load(self.column + column, PART) for column in columns]
        scores_done(stored=False)
        self.signals["drained"].arrive_once(step)
        before, adds = self.walk.turn(tile, head, block)
        if adds:
            counter = self.counters.of(tile, head, block)
            self.counters.wait(counter, before, Int32(UNKNOWN))
            self.add(tile, head, block, before, parts)
            # The release shows other CTAs what all four warps have added.
            cute.arch.barrier(barrier_id=ADDED, number_of_threads=ADDING_WARPS * WARP)
            if self.row == 0:
                self.counters.advance(counter, before)

    @cute.jit
    def add(self, tile: ResidentTile, head, block, before, parts):
        sums, rows = self.rows.of(tile, head, block)
        if self.row < rows:
            if before == 0:
                self.each(sums, rows, parts, False)
            else:
                self.each(sums, rows, parts, True)

    def each(self, sums, rows, parts, adds: bool) -> None:
        for column in range(0, self.rows.dim, QUAD):
            place = self.rows.place(sums, rows, self.row, column)
            four = cute.make_tensor(
                parts[column // PART].iterator + column % PART, cute.make_layout(QUAD)
            )
            if adds:
                add_four(place, four)
            else:
                cute.autovec_copy(four, four_at(place))


@dataclass
class ConvertedRows(Fixed):
    """Half of the rows of a query tile: sums in fp32, and dQ."""

    rows: QueryRows
    grads: Matrix
    counters: Counters
    part: Any  # which half
    factor: float  # dQ is the sums times this

    def read(self, tile: ResidentTile, head, block, count, done) -> None:
        self.counters.watch(self.counters.of(tile, head, block), count)

    @cute.jit
    def write(self, tile: ResidentTile, head, block, done):
        sums, rows = self.rows.of(tile, head, block)
        for i in range_constexpr(ROWS // CONVERTING_WARPS // WARP):
            row = (self.part * (ROWS // CONVERTING_WARPS // WARP) + i) * WARP + cute.arch.lane_idx()
            if row < rows:
                target = self.grads.row(tile.origin, block * ROWS + row, head, tile.batch)
                for column in range_constexpr(0, self.rows.dim, VECTOR):
                    self.convert(sums, rows, row, column, target + column)

    def convert(self, sums, rows, row, column: int, target) -> None:
        """Store 8 numbers of a row."""
        wide = cute.make_rmem_tensor(VECTOR, Float32)
        for half in range(0, VECTOR, QUAD):
            part = cute.make_tensor(wide.iterator + half, cute.make_layout(QUAD))
            cute.autovec_copy(four_at(self.rows.place(sums, rows, row, column + half)), part)
        narrow = cute.make_rmem_tensor(VECTOR, target.dtype)
        whole = wide.load()
        if self.factor != 1.0:
            whole = whole * self.factor
        narrow.store(whole.to(target.dtype))
        cute.autovec_copy(narrow, vector(target))


def four_at(place):
    """The four sums from a pointer on."""
    aligned = cute.make_ptr(Float32, place.toint(), place.memspace, assumed_align=16)
    return cute.make_tensor(aligned, cute.make_layout(QUAD))


def add_four(place, four) -> None:
    cute.arch.inline_ptx(
        "red.relaxed.gpu.global.add.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[place.toint(), four[0], four[1], four[2], four[3]],
    )
