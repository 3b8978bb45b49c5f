"""Kernels that sum stored gradients of scores by the places of a table: see `table_gradients`.

`SumsByPlace` and `DiagonalSums` add up one part of a call, and write sums of sums. `Gathering` adds
those up at the end, when all parts are done. In all three every sum has a fixed order.

A tile of scores that the program skips is not read: nobody has stored it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import (
    Float32,
    Int32,
    Int64,
    Uint32,
    Uint64,
    const_expr,
    cute,
    range_constexpr,
)

from ..compiler import aux_operands, compile_kernel, pointer, stream
from ..config import VECTOR, KernelConfig, TileSize, classes
from ..form import ALIGNMENT
from ..operands import KernelArguments, vector
from ..program import Program, Row
from ..ranges import LANES, TileClass, span
from ..sequences import sequence_rows
from ..table_sums import TOGETHER, TableSums, add_terms
from ..values import Fixed, Pair, larger, pair, select, smaller
from .roots import table_keys, terms_of

GROUPS = 4  # vectors that a thread has in flight
WARPS = 4  # of a CTA of `DiagonalSums`
STRIP = LANES * VECTOR  # the keys of a strip: those of one warp
SIZES = 7  # numbers that each kernel takes
WIDTH = 8  # places of a CTA of `Gathering`: a sector of memory
SLICES = 128  # threads that share the terms of a place there


@dataclass
class SequenceTile(Fixed):
    """What `Row` reads of a tile: a dense call has sequences of one length."""

    batch: Any
    head: Any
    q_rows: Any
    k_rows: Any
    q_start: Any = 0
    k_start: Any = 0


class StoredSequences(Fixed):
    """The sequences of a launch. A slot is the place of one among the scores.

    jagged: None if no side is jagged. Else (hulls, the number of the sequence in each slot,
    `cu_seqlens` of the jagged sides, total rows of both), and how many heads and tiles have hulls.
    """

    def __init__(self, config: KernelConfig, jagged, sizes) -> None:
        self.tiling = config.tiling
        self.slots, self.heads, self.rows, self.cols = sizes[:4]
        self.jagged = jagged is not None
        if self.jagged:
            (self.hulls, self.order, *offsets, q, k), (self.hull_heads, self.tiles) = jagged
            most = (self.rows, self.cols)
            sides = iter(offsets)
            own = [next(sides) if x else None for x in (config.jagged_q, config.jagged_k)]
            self.sides = list(zip(own, most, (q, k), strict=True))

    def tile(self, slot, head) -> SequenceTile:
        if not self.jagged:
            return SequenceTile(slot, head, self.rows, self.cols)
        batch = Int32(self.order[slot])
        (q_start, q_rows), (k_start, k_rows) = (
            sequence_rows(cu, batch, most, total) for cu, most, total in self.sides
        )
        return SequenceTile(batch, head, q_rows, k_rows, q_start, k_start)

    def has(self, slot, head, row, column):
        """Whether the tile of a score is in a hull. Other tiles were not stored."""
        slot, column = smaller(slot, self.slots - 1), smaller(column, self.cols - 1)
        row_tile, column_tile = row // self.tiling.rows, column // self.tiling.cols
        own, other = row_tile, column_tile
        if self.tiling.by_keys:
            own, other = column_tile, row_tile
        unit = Int64(slot * self.hull_heads + head // (self.heads // self.hull_heads)) * self.tiles
        hull = self.hulls + (unit + own) * 2
        return (hull[0] <= other) & (other < hull[1])


class StoredTiles(Fixed):
    """Which scores were stored. skips: Those of tiles that the program empties were not."""

    def __init__(
        self, config: KernelConfig, x: KernelArguments, sequences: StoredSequences, skips: bool
    ) -> None:
        self.sequences, rows, cols = sequences, sequences.rows, sequences.cols
        conditions, tiling = classes(config, terms_of(config)), config.tiling
        self.rows, self.cols, self.size = rows, cols, TileSize(tiling.rows, tiling.cols)
        self.zero = None
        if skips:
            self.zero = TileClass(conditions.zero, config, x, conditions.bounds, self.size)

    def has(self, batch, head, row, column):
        """Whether the tile of a score was stored."""
        if self.sequences.jagged:
            return self.sequences.has(batch, head, row, column)
        if self.zero is None:
            return cutlass.Boolean(True)
        first_row = row // self.size.rows * self.size.rows
        first_column = column // self.size.cols * self.size.cols
        queries = span(first_row, self.size.rows, self.rows)
        keys = span(first_column, self.size.cols, self.cols)
        batch = smaller(batch, self.sequences.slots - 1)  # as past the end
        return self.zero.holds(batch, head, queries, keys) == 0


def program_arguments(aux, scalars) -> KernelArguments:
    """What a program reads of the arguments."""
    return KernelArguments((), (), (), None, None, None, aux, scalars or ())


class SumsByPlace:
    """parts[h, c, i] = the sum of the scores of head h at place first + i, of the rows of CTA c.

    Each thread has a table of `size` + 1 sums in shared memory. The last one takes what is left
    out. CTA c owns rows c, c + C, ... of all batches, as a mask makes late rows longer. A thread
    keeps its 8 columns from row to row.

    number, size: The table, and how many of its places. skips: see `StoredTiles`. even: Columns
    come in whole vectors, so that operands may be read 16 bytes at a time. whole: These are all
    places, so that the first one is 0.
    """

    def __init__(
        self,
        config: KernelConfig,
        number: int,
        size: int,
        threads: int,
        skips: bool,
        even: bool,
        whole: bool,
    ) -> None:
        self.config, self.number, self.skips = config, number, skips
        self.even, self.whole = even, whole
        self.tables = TableSums(size, threads, 0, 1)
        self.size, self.threads = size, threads

    @cute.jit
    def __call__(
        self, source, parts, pointers, jagged, strides, scalars, sizes, jagged_sizes, stream
    ):
        """Launch.

        pointers, strides: `KernelArguments.aux`, with its tables if tiles are skipped. jagged,
        jagged_sizes: See `StoredSequences`, or None. sizes: B (or slots), H, M, N, vectors of a row
        of the source, CTAs of a head, the first place.
        """
        _, heads, _, _, _, ctas, _ = sizes
        aux = tuple(zip(pointers, strides, strict=True))
        jagged = None if jagged is None else (jagged, jagged_sizes)
        self.kernel(source, parts, aux, scalars, sizes, jagged).launch(
            grid=(ctas, heads, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, parts, aux, scalars, sizes, jagged):
        batch, _, rows, _, vectors, ctas, _ = sizes
        cta, head, _ = (Int32(x) for x in cute.arch.block_idx())
        thread = Int32(cute.arch.thread_idx()[0])
        layout = cute.make_layout((self.size + 1, self.threads), stride=(self.threads, 1))
        tables = cutlass.memory.SmemAllocator().allocate_tensor(Float32, layout, ALIGNMENT)
        for i in cutlass.range(self.size + 1, unroll=4):
            tables[i, thread] = 0.0
        x = program_arguments(aux, scalars)
        place = self.config.mod.places[self.number]
        exact = replace(self.config, fast=False)  # a place has no approximate functions
        program = Program(exact, x, [place])
        stored = StoredTiles(
            self.config, x, StoredSequences(self.config, jagged, sizes), self.skips
        )
        work = RowVectors(self, program, stored, source, sizes, head)
        # Rows of few vectors are read some at a time.
        together = Int32(1)
        if vectors < self.threads:
            together = self.threads // vectors
        own, column = cta + thread // vectors * ctas, thread % vectors
        if thread >= together * vectors:
            own = batch * rows
        step = together * ctas
        passes = (vectors + (self.threads - 1)) // self.threads
        if passes > 1:
            own, column = cta, thread
        for p in cutlass.range(passes, unroll=1):
            work.add_all(tables, thread, column + p * self.threads, own, cta, step)
        cute.arch.sync_threads()
        self.tables.store(tables, parts + (Int64(head) * ctas + cta) * self.size, thread)


@dataclass
class RowVectors(Fixed):
    """What one thread of `SumsByPlace` adds."""

    kernel: SumsByPlace
    program: Program
    stored: StoredTiles
    source: Any
    sizes: Any
    head: Any

    def __post_init__(self) -> None:
        wanted = self.program.vectors if self.kernel.even else frozenset()
        self.program.vectors = wanted
        self.fetched = {
            node: cute.make_rmem_tensor((VECTOR, GROUPS), self.program.aux[node.value][0].dtype)
            for node in self.program.nodes
            if node.op == "aux" and node.value in wanted
        }
        self.terms = cute.make_rmem_tensor((VECTOR, GROUPS), self.source.dtype)
        # Batch and query of each vector, and whether it exists.
        self.rows = cute.make_rmem_tensor((3, GROUPS), Int32)

    @cute.jit
    def add_all(self, tables, thread, column, own, first, step):
        """Add the vectors of a column, in rows own, own + step, ... first: The first of the CTA."""
        batch, _, rows, _, vectors, _, _ = self.sizes
        end = batch * rows
        if column >= vectors:
            own = end
        # All threads take as many turns, so that they meet.
        count = (end - first + (step * GROUPS - 1)) // (step * GROUPS)
        steps = step // rows, step % rows
        place = self.load(column, own // rows, own % rows, steps)
        for _ in cutlass.range(count, unroll=1):
            terms, there = copied(self.terms), copied(self.rows)
            operands = {node: copied(ahead) for node, ahead in self.fetched.items()}
            # The next rows arrive while these are added: see `TableSums`.
            place = self.load(column, *place, steps)
            cute.arch.sync_warp()
            self.add(tables, thread, terms, there, operands, column)

    @cute.jit
    def load(self, column, batch, q_idx, steps):
        """Load the thread's next vectors, from a row on. Returns the batch and query of the row
        after them. Of those that do not exist it loads the first one.
        """
        batches, heads, rows, _, vectors, _, _ = self.sizes
        for g in range_constexpr(GROUPS):
            exists = (batch < batches) & self.stored.has(batch, self.head, q_idx, column * VECTOR)
            at = ((batch * heads + self.head) * rows + q_idx) * vectors + column
            at = Int64(select(exists, at, Int32(0)))
            cute.autovec_copy(vector(self.source + at * VECTOR), self.terms[None, g])
            own = [select(exists, x, Int32(0)) for x in (batch, q_idx, column)]
            if const_expr(bool(self.fetched)):
                loads = self.row(own[0], own[1]).fetch(own[2] * VECTOR, VECTOR)
                for node, target in self.fetched.items():
                    cute.autovec_copy(loads[node], target[None, g])
            self.rows[0, g], self.rows[1, g], self.rows[2, g] = own[0], own[1], Int32(exists)
            q_idx = q_idx + steps[1]
            over = Int32(q_idx >= rows)
            batch, q_idx = batch + steps[0] + over, q_idx - over * rows
        return batch, q_idx

    def row(self, slot, q_idx) -> Row:
        return Row(self.program, self.stored.sequences.tile(slot, self.head), q_idx)

    @cute.jit
    def add(self, tables, thread, terms, there, operands, column):
        for g in range_constexpr(GROUPS):
            if there[2, g] != 0:
                row = self.row(there[0, g], there[1, g])
                loads = {node: x[None, g] for node, x in operands.items()}
                for i in range_constexpr(0, VECTOR, TOGETHER):
                    slots: list[Any] = []
                    for j in range_constexpr(i, i + TOGETHER, 2):
                        keys = Pair(column * VECTOR + j, column * VECTOR + j + 1)
                        (place,) = row(Pair(Float32(0.0)), keys, loads, j)
                        slots += map(self.slot, pair(place).lanes, keys.lanes)
                    some = [Float32(terms[j, g]) for j in range(i, i + TOGETHER)]
                    add_terms(tables, thread, slots, some)

    def slot(self, place, kv_idx):
        """Which sum of the thread a score at this place is added to."""
        kernel, cols, least = self.kernel, self.sizes[3], self.sizes[6]
        at = place if kernel.whole else place - least
        unsigned = Uint64 if isinstance(at, Int64) else Uint32
        known = unsigned(at) < unsigned(kernel.size)  # a negative place is a large one
        if not kernel.even:
            known = known & (kv_idx < cols)
        return Int32(select(known, at, kernel.size))


def copied(tensor):
    copy = cute.make_rmem_tensor(tensor.layout, tensor.element_type)
    copy.store(tensor.load())
    return copy


class DiagonalSums:
    """parts[h, g, w, x] = the sum of a diagonal of head h, in row group g and strip w, of batches.

    A row group has `octets` times 8 queries, and a strip 256 keys. The diagonal has the number
    x = key - query + 8 · octets, where key and query count within strip and group. A CTA computes
    all of them. Its warps share the batches. A lane sums 8 × 8 scores over the batches of its warp,
    then along their 15 diagonals.
    """

    def __init__(self, config: KernelConfig, octets: int, skips: bool) -> None:
        self.config, self.octets, self.skips = config, octets, skips
        self.width = STRIP + VECTOR * octets

    @cute.jit
    def __call__(
        self, source, parts, pointers, jagged, strides, scalars, sizes, jagged_sizes, stream
    ):
        """Launch, as `SumsByPlace`. sizes: B, H, M, N, vectors of a row, strips, row groups."""
        _, heads, _, _, _, strips, groups = sizes
        aux = tuple(zip(pointers, strides, strict=True))
        jagged = None if jagged is None else (jagged, jagged_sizes)
        self.kernel(source, parts, aux, scalars, sizes, jagged).launch(
            grid=(strips * groups, heads, 1), block=(WARPS * LANES, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, parts, aux, scalars, sizes, jagged):
        _, _, rows, _, _, strips, groups = sizes
        item, head, _ = (Int32(x) for x in cute.arch.block_idx())
        thread = Int32(cute.arch.thread_idx()[0])
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), thread % LANES
        layout = cute.make_layout((self.width, WARPS))
        sums = cutlass.memory.SmemAllocator().allocate_tensor(Float32, layout, ALIGNMENT)
        own = sums[None, warp]
        for i in cutlass.range(lane, self.width, LANES, unroll=1):
            own[i] = 0.0
        cute.arch.sync_warp()
        x = program_arguments(aux, scalars)
        stored = StoredTiles(
            self.config, x, StoredSequences(self.config, jagged, sizes), self.skips
        )
        batches = Batches(stored, source, sizes, head, item % strips * LANES + lane)
        for i in cutlass.range(self.octets, unroll=1):
            row = (item // strips * self.octets + i) * VECTOR
            # The first batch of a warp varies, so that all have work if there is one batch.
            first = (warp + i) % WARPS
            if (row < rows) & (first < sizes[0]):
                scores = cute.make_rmem_tensor((VECTOR, VECTOR), Float32)  # (key, query)
                scores.fill(0.0)
                batches.sum(scores, row, first)
                self.add_diagonals(own, scores, lane, i)
                cute.arch.sync_warp()
        cute.arch.sync_threads()
        target = parts + (Int64(head) * strips * groups + item) * self.width
        for i in cutlass.range(thread, self.width, WARPS * LANES, unroll=1):
            total = sums[i, 0]
            for k in range_constexpr(1, WARPS):
                total = total + sums[i, k]
            target[i] = total

    @cute.jit
    def add_diagonals(self, own, scores, lane, i):
        diagonals = [Float32(0.0) for _ in range(2 * VECTOR - 1)]
        for a in range_constexpr(VECTOR):
            for j in range_constexpr(VECTOR):
                number = j - a + VECTOR - 1
                diagonals[number] = diagonals[number] + scores[j, a]
        # Diagonals below the lane's own first one are those of the lane before.
        before, mine = diagonals[: VECTOR - 1], diagonals[VECTOR - 1 :]
        first = (self.octets - i) * VECTOR
        slots = vector_of(own, first + lane * VECTOR)
        totals = cute.make_rmem_tensor(VECTOR, Float32)
        cute.autovec_copy(slots, totals)
        for d in range_constexpr(VECTOR):
            total = totals[d] + mine[d]
            if const_expr(d > 0):
                other = cute.arch.shuffle_sync_down(before[d - 1], 1)
                total = total + select(lane < LANES - 1, other, Float32(0.0))
            totals[d] = total
        cute.autovec_copy(totals, slots)
        if lane == 0:
            for d in range_constexpr(1, VECTOR):
                own[first - VECTOR + d] = own[first - VECTOR + d] + before[d - 1]


@dataclass
class Batches(Fixed):
    """The scores that a warp of `DiagonalSums` sums. column: The lane's vector."""

    stored: StoredTiles
    source: Any
    sizes: Any
    head: Any
    column: Any

    @cute.jit
    def sum(self, scores, row, first):
        """Add 8 queries from `row` on, of batches first, first + `WARPS`, ..."""
        batch, _, rows, cols, _, _, _ = self.sizes
        ahead = cute.make_rmem_tensor((VECTOR, VECTOR), self.source.dtype)
        ahead.fill(0.0)
        self.load(ahead, row, first)
        for b in cutlass.range(first, batch, WARPS, unroll=1):
            numbers = cute.make_rmem_tensor((VECTOR, VECTOR), self.source.dtype)
            numbers.store(ahead.load())
            # The next batch arrives while this one is added: see `TableSums`.
            self.load(ahead, row, b + WARPS)
            cute.arch.sync_warp()
            if self.exists(b, row):
                scores.store(scores.load() + numbers.load().to(Float32))
        # Past the ends there may be anything.
        if (row + VECTOR > rows) | ((self.column + 1) * VECTOR > cols):
            for a in range_constexpr(VECTOR):
                for j in range_constexpr(VECTOR):
                    there = (row + a < rows) & (self.column * VECTOR + j < cols)
                    scores[j, a] = select(there, scores[j, a], Float32(0.0))

    def exists(self, batch, row):
        there = (batch < self.sizes[0]) & (self.column < self.sizes[4])
        return there & self.stored.has(batch, self.head, row, self.column * VECTOR)

    @cute.jit
    def load(self, numbers, row, batch):
        """Load the scores of a batch, if the lane has any there."""
        _, heads, rows, _, vectors, _, _ = self.sizes
        if self.exists(batch, row):
            unit = (Int64(batch) * heads + self.head) * rows
            for a in range_constexpr(VECTOR):
                at = (unit + smaller(row + a, rows - 1)) * vectors + self.column
                cute.autovec_copy(vector(self.source + at * VECTOR), numbers[None, a])


def vector_of(tensor, first):
    """8 neighbouring fp32 numbers of shared memory, at a multiple of 16 bytes."""
    place = tensor.iterator + first
    aligned = cute.make_ptr(Float32, place.toint(), place.memspace, assumed_align=ALIGNMENT)
    return cute.make_tensor(aligned, cute.make_layout(VECTOR))


class Gathering:
    """target[h, t] = factor · the sum over what the parts of a call have written.

    octets:  None if that are the sums of `SumsByPlace` [units, C, size]. There t is first + i.
             Else those of `DiagonalSums`, and its number.
    sign:    Place t has the keys for which sign · (query - key) + offset = t.
    heads:   Each head has a table. Otherwise all share one.
    """

    def __init__(self, factor: float, octets: int | None, sign: int, heads: bool) -> None:
        self.factor, self.octets, self.sign, self.heads = factor, octets, sign, heads

    @cute.jit
    def __call__(self, parts, target, sizes, steps, stream):
        """Launch.

        sizes: The first place, how many places, slots (times that all heads were computed), heads,
        C or the row groups, size or the strips, and the offset of places. steps: Strides of the
        target from head to head, and from place to place.
        """
        _, count, _, heads, _, _, _ = sizes
        grid = ((count + (WIDTH - 1)) // WIDTH, heads if self.heads else 1, 1)
        self.kernel(parts, target, sizes, steps).launch(
            grid=grid, block=(SLICES * WIDTH, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, parts, target, sizes, steps):
        first, count, slots, heads, groups, width, offset = sizes
        cta, head, _ = (Int32(x) for x in cute.arch.block_idx())
        thread = Int32(cute.arch.thread_idx()[0])
        number, own, warps = cta * WIDTH + thread % WIDTH, thread // WIDTH, SLICES * WIDTH // LANES
        layout = cute.make_layout((WIDTH, warps))
        sums = cutlass.memory.SmemAllocator().allocate_tensor(Float32, layout, ALIGNMENT)
        total, place = Float32(0.0), first + number
        units = slots if const_expr(self.heads) else slots * heads
        terms = select(number < count, units * groups, 0)
        for i in cutlass.range(own, terms, SLICES, unroll=4):
            unit, group = i // groups, i % groups
            if const_expr(self.heads):
                unit = unit * heads + head
            row = Int64(unit) * groups + group
            if const_expr(self.octets is None):
                total = total + parts[row * width + number]
            else:
                total = total + self.of_diagonal(parts, row, group, place - offset, width)
        for distance in (LANES // 2, LANES // 4):
            total = total + cute.arch.shuffle_sync_bfly(total, distance)
        if thread % LANES < WIDTH:
            sums[thread % LANES, thread // LANES] = total
        cute.arch.sync_threads()
        if (own == 0) & (number < count):
            for i in range_constexpr(1, warps):
                total = total + sums[thread, i]
            at = Int64(head) * steps[0] + Int64(place) * steps[1]
            target[at] = target.dtype(total * self.factor)

    @cute.jit
    def of_diagonal(self, parts, row, group, distance, strips):
        """What a row group has of a diagonal: one or two strips have parts of it."""
        assert self.octets is not None
        height, total = VECTOR * self.octets, Float32(0.0)
        width = STRIP + height
        x = (group + 1) * height - self.sign * distance
        strip = larger(x, 0) // STRIP
        for before in range_constexpr(1 + -(-height // STRIP)):
            at, w = x - (strip - before) * STRIP, strip - before
            if (w >= 0) & (w < strips) & (at >= 0) & (at < width):
                total = total + parts[(row * strips + w) * width + at]
        return total


def compiled(kind: str, *arguments: Any):
    return _COMPILED[kind](*arguments)


def _compiled_sums(kernel: Any, config: KernelConfig, dtype: str):
    operands = aux_operands(config, table_keys(config) if kernel.skips else ())
    pointers, strides = zip(*operands, strict=True)
    scalars = tuple(Int64(0) for _ in range(config.mod.num_scalars))
    jagged = jagged_sizes = None
    if config.jagged:
        sides = [pointer(config.offsets)] * (config.jagged_q + config.jagged_k)
        jagged = (pointer("int32"), pointer("int64"), *sides, Int32(1), Int32(1))
        jagged_sizes = (Int32(1), Int32(1))
    arguments = (
        pointer(dtype, ALIGNMENT),
        pointer("float32", ALIGNMENT),
        pointers,
        jagged,
        strides,
        scalars or None,
        tuple(Int32(1) for _ in range(SIZES)),
        jagged_sizes,
        stream(),
    )
    return compile_kernel(kernel, arguments, config.arch)


def _places(config: KernelConfig, dtype: str, *rest: Any):
    return _compiled_sums(SumsByPlace(config, *rest), config, dtype)


def _diagonals(config: KernelConfig, dtype: str, *rest: Any):
    return _compiled_sums(DiagonalSums(config, *rest), config, dtype)


def _gathering(dtype: str, arch: str, *rest: Any):
    sizes, steps = tuple(Int32(1) for _ in range(SIZES)), (Int64(1), Int64(1))
    arguments = (pointer("float32"), pointer(dtype), sizes, steps, stream())
    return compile_kernel(Gathering(*rest), arguments, arch)


_COMPILED: dict[str, Callable[..., Any]] = {
    "places": _places,
    "diagonals": _diagonals,
    "gathering": _gathering,
}
