"""The kernel that sums stored gradients of scores by the places of a small table: by products.

The sums of a table are a product of matrices, [places, scores] of ones and zeros times [scores,
heads]. So heads share what their places cost, where all heads have the same. `mma.sync` multiplies,
which all architectures have, and its sums lie in registers, in fp32.
"""

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, Uint64, const_expr, cute, range_constexpr

from ..config import VECTOR, KernelConfig
from ..form import ALIGNMENT
from ..program import Program, Row
from ..ranges import LANES
from ..values import Fixed, Pair, pair, select, smaller
from .place_sums import StoredSequences, StoredTiles, copied, program_arguments

WARPS = 16  # of a CTA. A multiprocessor has one, and a thread up to 128 registers.
COLUMNS = 8  # of a product
HEIGHT = 16  # its rows
QUADS = 4  # vectors of a row, side by side, that a warp reads at once
VECTORS = 4  # of a thread in flight, QUADS apart
KEYS = QUADS * VECTORS * VECTOR  # of a unit, what a warp adds at once: 128 keys of a query
WORDS = VECTOR // 2  # of a vector
# fp16 has the integers from 1024 to 2048 one after the other. So two places are compared at once.
BEGIN, TWICE = 0x6400, 0x10001
FAR = 1023  # A place outside of the table is this one, or less if it is no place of the product.
ONE = {"float16": 1.0, "bfloat16": 2.0**-7}  # what the bits of an fp16 one are


class SumsByProduct:
    """parts[h, c, i] = the sum of the scores of head h at place i, of the rows of CTA c.

    CTA c owns rows c, c + C, ... of all batches, as a mask makes late rows longer. Its warps take
    units of 128 keys in turn, another one in each row. Lane l has column l // 4 of the product, and
    the 8 keys of vector l % 4.

    number, size: The table, and its places, at most 256. skips: See `StoredTiles`. halves: Heads
    are few, so a head has two columns, those of its even places and of its odd places.
    """

    def __init__(
        self, config: KernelConfig, number: int, size: int, skips: bool, halves: bool
    ) -> None:
        self.config, self.number, self.size, self.skips = config, number, size, skips
        self.split = 2 if halves else 1
        self.heads = COLUMNS // self.split  # of a product
        self.tiles = -(-size // (HEIGHT * self.split))

    @cute.jit
    def __call__(
        self, source, parts, pointers, jagged, strides, scalars, sizes, jagged_sizes, stream
    ):
        """Launch, as `place_sums.SumsByPlace`. The last of the sizes is not read."""
        _, heads, _, _, _, ctas, _ = sizes
        aux = tuple(zip(pointers, strides, strict=True))
        jagged = None if jagged is None else (jagged, jagged_sizes)
        self.kernel(source, parts, aux, scalars, sizes, jagged).launch(
            grid=(ctas, (heads + (self.heads - 1)) // self.heads, 1),
            block=(WARPS * LANES, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, source, parts, aux, scalars, sizes, jagged):
        _, heads, _, _, _, ctas, _ = sizes
        cta, group, _ = (Int32(x) for x in cute.arch.block_idx())
        thread = Int32(cute.arch.thread_idx()[0])
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), thread % LANES
        shape = (self.tiles * HEIGHT * self.split, self.heads, WARPS)
        memory = cutlass.memory.SmemAllocator()
        totals = memory.allocate_tensor(Float32, cute.make_layout(shape), ALIGNMENT)
        x = program_arguments(aux, scalars)
        exact = replace(self.config, fast=False)  # a place has no approximate functions
        program = Program(exact, x, [self.config.mod.places[self.number]])
        sequences = StoredSequences(self.config, jagged, sizes)
        stored = StoredTiles(self.config, x, sequences, self.skips)
        own = group * self.heads + lane // QUADS // self.split
        head = smaller(own, heads - 1)
        units = Units(self, program, stored, source, sizes, head, own < heads, lane)
        units.add_all(cta, warp)
        units.store(totals[None, None, warp])
        cute.arch.sync_threads()
        for i in cutlass.range(thread, self.heads * self.size, WARPS * LANES, unroll=1):
            head, place = i // self.size, i % self.size
            total = totals[place, head, 0]
            for k in range_constexpr(1, WARPS):
                total = total + totals[place, head, k]
            head = group * self.heads + head
            if head < heads:
                parts[(Int64(head) * ctas + cta) * self.size + place] = total


@dataclass
class Units(Fixed):
    """What one thread of `SumsByProduct` adds."""

    kernel: SumsByProduct
    program: Program
    stored: StoredTiles
    source: Any
    sizes: Any
    head: Any
    exists: Any  # whether there is such a head
    lane: Any

    def __post_init__(self) -> None:
        self.fetched = {
            node: cute.make_rmem_tensor((VECTOR, VECTORS), self.program.aux[node.value][0].dtype)
            for node in self.program.nodes
            if node.op == "aux" and node.value in self.program.vectors
        }
        self.terms = cute.make_rmem_tensor((WORDS, VECTORS), Uint32)
        self.sums = cute.make_rmem_tensor((4, self.kernel.tiles), Float32)
        self.begin = Uint32(BEGIN * TWICE) - Uint32(self.lane // QUADS) * Uint32(TWICE)
        parity = Uint32(self.lane // QUADS % 2)
        self.other = (parity ^ 1) * Uint32(TWICE)

    @cute.jit
    def add_all(self, cta, warp):
        """Add the units of a warp of a CTA."""
        batches, _, rows, cols, _, ctas, _ = self.sizes
        self.sums.fill(0.0)
        width = (cols + (KEYS - 1)) // KEYS  # units of a row
        own = (batches * rows - cta + (ctas - 1)) // ctas  # rows of the CTA
        count = (own * width - warp + (WARPS - 1)) // WARPS
        # Unit (i, j) has row i of the CTA, and of its units number (i + j) % width.
        i, j = warp // width, warp % width
        further = WARPS // width, WARPS % width
        row = cta + i * ctas
        at = (row // rows, row % rows, j, (i + j) % width)
        steps = (ctas // rows, ctas % rows, further[0] * ctas // rows, further[0] * ctas % rows)
        steps = (*steps, further[1], (further[0] + further[1]) % width, width)
        there = self.load(at)
        for _ in cutlass.range(count, unroll=1):
            terms, unit, valid = copied(self.terms), at[:2] + at[3:], there
            operands = {node: copied(ahead) for node, ahead in self.fetched.items()}
            # The next unit arrives while this one is added: see `TableSums`.
            at = self.after(at, steps)
            there = self.load(at)
            cute.arch.sync_warp()
            if valid != 0:
                self.add(terms, operands, unit)

    def after(self, at, steps):
        """The place of the next unit of the warp: (batch, query, j, number of the unit)."""
        batch, q_idx, j, number = at
        rows = self.sizes[2]
        _, _, _, _, j_step, number_step, width = steps
        j = j + j_step
        over = Int32(j >= width)  # in the next row of the CTA
        number = number + number_step
        number = number - select(number >= width, width, 0)
        for times, (more, step) in ((1, steps[2:4]), (over, steps[:2])):
            batch, q_idx = batch + times * more, q_idx + times * step
            past = Int32(q_idx >= rows)
            batch, q_idx = batch + past, q_idx - past * rows
        return batch, q_idx, j - over * width, self.turned(number, over, width)

    def turned(self, number, over, width):
        # In the next row j is less by the width, and i more by one.
        number = number + over
        return number - select(number >= width, width, 0)

    @cute.jit
    def load(self, at):
        """Load the vectors of a unit. Returns whether any lane has one that was stored."""
        batches, heads, rows, cols, vectors, _, _ = self.sizes
        batch, q_idx, _, number = at
        there = self.exists & (batch < batches)
        there = there & self.stored.has(batch, self.head, q_idx, number * KEYS)
        for g in range_constexpr(VECTORS):
            column = number * (KEYS // VECTOR) + g * QUADS + self.lane % QUADS
            exists = there & (column * VECTOR < cols)
            place = ((batch * heads + self.head) * rows + q_idx) * vectors + column
            self.load_vector(g, exists, select(exists, place, 0))
            if const_expr(bool(self.fetched)):
                own = [select(exists, x, 0) for x in (batch, q_idx, column)]
                loads = self.row(own[0], own[1]).fetch(own[2] * VECTOR, VECTOR)
                for node, target in self.fetched.items():
                    cute.autovec_copy(loads[node], target[None, g])
        return Int32(cute.arch.vote_any_sync(there))

    def load_vector(self, g, exists, place) -> None:
        start = (self.source + Int64(place) * VECTOR).toint()
        space = self.source.memspace
        pointer = cute.make_ptr(Uint32, start, space, assumed_align=ALIGNMENT)
        cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(WORDS)), self.terms[None, g])
        for w in range(WORDS):  # What nobody stored may be NaN.
            self.terms[w, g] = select(exists, self.terms[w, g], Uint32(0))

    def row(self, slot, q_idx) -> Row:
        return Row(self.program, self.stored.sequences.tile(slot, self.head), q_idx)

    @cute.jit
    def add(self, terms, operands, unit):
        batch, q_idx, number = unit
        row = self.row(smaller(batch, self.sizes[0] - 1), q_idx)
        for g in range_constexpr(VECTORS):
            first = number * KEYS + (g * QUADS + self.lane % QUADS) * VECTOR
            loads = {node: x[None, g] for node, x in operands.items()}
            for w in range_constexpr(0, WORDS, 2):
                places = [self.places(row, first, loads, x) for x in (w, w + 1)]
                self.multiply(places, [terms[w, g], terms[w + 1, g]])

    def places(self, row: Row, first, loads, word: int):
        """The places of the two scores of a word, each as 16 bits."""
        keys = Pair(first + 2 * word, first + 2 * word + 1)
        (place,) = row(Pair(Float32(0.0)), keys, loads, 2 * word)
        low, high = (self.near(x) for x in pair(place).lanes)
        return low | (high << 16)

    def near(self, place):
        unsigned = Uint64 if isinstance(place, Int64) else Uint32  # a negative place is a large one
        return Uint32(smaller(unsigned(place), unsigned(FAR)))

    def multiply(self, places, terms) -> None:
        if self.kernel.split == 2:
            # (bit ^ other) is 1 where the place has the parity of the column.
            own = [((x & TWICE) ^ self.other) * Uint32(0xFFFF) for x in places]
            terms = [x & y for x, y in zip(terms, own, strict=True)]
            places = [(x >> 1) & Uint32(FAR * TWICE) for x in places]
        numbers = [x + self.begin for x in places]
        for m in range(self.kernel.tiles):
            rows = [BEGIN + HEIGHT * m + x for x in (0, HEIGHT // 2)]
            ones = [equal(x, row) for x in numbers for row in rows]
            sums = [self.sums[k, m] for k in range(4)]
            for k, total in enumerate(product(self.kernel.config.dtype, ones, terms, sums)):
                self.sums[k, m] = total

    @cute.jit
    def store(self, totals):
        """Store the sums of the warp. totals: [places, heads of a product]."""
        split, one = self.kernel.split, ONE[self.kernel.config.dtype]
        for m in range_constexpr(self.kernel.tiles):
            for k in range_constexpr(4):
                number = m * HEIGHT + k // 2 * (HEIGHT // 2) + self.lane // QUADS
                column = self.lane % QUADS * 2 + k % 2
                totals[number * split + column % split, column // split] = self.sums[k, m] / one


def equal(numbers, row: int):
    """An fp16 one for each of two 16-bit numbers that is a row, else zero."""
    # `set` takes no constant, but ptxas makes it one again.
    both = instruction("mov.b32 {$w0}, {$r0};", Uint32(row * TWICE))
    return instruction("set.eq.f16x2.f16x2 {$w0}, {$r0}, {$r1};", numbers, both)


def instruction(code: str, *operands):
    return cute.arch.inline_ptx(code, write_only_types=[Uint32], read_only_args=[*operands])


def product(dtype: str, a, b, c):
    """The four registers of A B + C, by one instruction. A has four registers, B has two."""
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    return cute.arch.inline_ptx(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32 "
        "{{$w0}, {$w1}, {$w2}, {$w3}}, {{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, "
        "{{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[Float32] * 4,
        read_only_args=[*a, *b, *c],
    )
