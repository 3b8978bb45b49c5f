"""Products and activation of one query tile, by one warpgroup.

A step does three things:

1. It issues S of the next key block.
2. It issues O += P V of this key block.
3. It activates S while the tensor core computes O.

So the tensor core always has a product that does not depend on what this warpgroup computes now.
The step waits for O before it ends. If O were in flight over the end of the loop, the compiler
would wait for every product.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, cute, range_constexpr
from cutlass.cute.nvgpu import warpgroup

from ...barriers import Cursor, Loan
from ...config import VECTOR
from ...forward.ranges import KeyRanges
from ...operands import Matrix, PageTable, Tiles, numbers
from ...program import Program, Row
from ...values import Fixed, Pair, choose, larger, pair, select, smaller
from ..bands import Band, Bands, again, elements_at
from ..config import BUFFERS, ROWS, Sm90Config
from ..shared_tables import SharedTables
from ..wgmma import (
    WARPGROUP,
    IssueTurns,
    as_operand,
    first_row,
    issue,
    replace_operand,
    share,
    transposed,
    wait_for_stores,
)
from .bias import PAIRS, HopperBias
from .roles import HopperChannels, together

HALVES = (0, 8)  # the rows of a thread in its tile, after `first_row`


@dataclass
class HopperFragments(Fixed):
    """Registers and operands of a warpgroup."""

    config: Sm90Config
    qk: Any  # the tiled products
    pv: Any
    sQ: Any  # their operands in shared memory
    sK: Any
    sV: Any
    dtype: Any

    def __post_init__(self) -> None:
        scores, sums = self.qk.get_slice(0), self.pv.get_slice(0)
        self.tQ = scores.make_fragment_A(scores.partition_A(self.sQ))
        self.tK = scores.make_fragment_B(scores.partition_B(self.sK))
        self.tV = sums.make_fragment_B(sums.partition_B(transposed(self.sV)))
        shape = (ROWS, self.config.padded_value_dim)
        self.O = cute.make_rmem_tensor(self.pv.partition_shape_C(shape), Float32)
        self.R = cute.make_rmem_tensor(len(HALVES), Float32)
        self.shape = self.qk.partition_shape_C((ROWS, self.config.cols))
        self.P = as_operand(cute.make_rmem_tensor(self.shape, Float32), self.dtype)

    @cute.jit
    def scale(self, query, t, thread):
        """Multiply a buffer of Q by `Sm90Config.query_factor`, in place. Its warpgroup calls it."""
        factor = self.config.query_factor
        if cutlass.const_expr(factor != 1.0):
            tile = self.sQ[None, None, query]
            count = cute.size(tile)
            words = cute.make_tensor(tile.iterator, cute.make_layout(count))
            parts = cute.logical_divide(words, cute.make_layout(VECTOR))
            for i in range_constexpr(count // (VECTOR * WARPGROUP)):
                own = parts[None, i * WARPGROUP + thread]
                registers = cute.make_rmem_tensor(VECTOR, self.dtype)
                cute.autovec_copy(own, registers)
                registers.store((registers.load().to(Float32) * factor).to(self.dtype))
                cute.autovec_copy(registers, own)
            cute.arch.fence_view_async_shared()
            together(t)

    def score(self, query, key):
        # S has new registers, so that old scores do not live on.
        S = cute.make_rmem_tensor(self.shape, Float32)
        q, k = self.tQ[None, None, None, query], self.tK[None, None, None, key]
        issue(self.qk, S, q, k, True)
        return S

    def sum_up(self, value) -> None:
        issue(self.pv, self.O, self.P, self.tV[None, None, None, value], False)


@dataclass
class HopperEpilogue(Fixed):
    """The epilogue of all query tiles: warpgroup t stores O_t, by way of shared memory.

    TMA drops rows past the end of the sequence. A tile without key blocks has sums of zero.
    """

    pv: Any  # the tiled product of the sums
    o: Tiles  # of O, with a buffer for each query tile
    dtype: Any
    factors: Sequence[float]  # O is the sums times the first, row sums are theirs times the second
    row_sums: Matrix | None
    pages: PageTable | None  # of the keys

    @cute.jit
    def store(self, tile, t, thread, sums):
        """Store all existing rows of query tile t. The TMA copy is still in flight afterwards."""
        halves = cute.make_rmem_tensor(sums.layout, self.dtype)
        values = sums.load()
        if cutlass.const_expr(self.factors[0] != 1.0):
            values = values * self.factors[0]
        halves.store(values.to(self.dtype))
        if cutlass.const_expr(self.pages is not None):  # noqa: SIM102 (decided at compile time)
            if self.lacks(tile, t):
                halves.fill(float("nan"))
        wait_for_stores(thread, True)
        together(t)
        share(self.pv, halves, self.o.sX, t, thread)
        together(t)
        row = tile.row + t * ROWS
        if (thread < 32) & (row < tile.q_rows):
            self.o.store((tile.q_start, row, tile.q_rows), tile.head, tile.batch, t)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def lacks(self, tile, t):
        """Whether query tile t met a key that is in no page."""
        cols = self.pages.config.cols
        end = smaller(tile.last(t) * cols, tile.k_rows)
        return self.pages.lacks(tile.first * cols, end, tile.batch)

    @cute.jit
    def store_row_sums(self, tile, t, thread, sums):
        """Store those of query tile t. Four threads share a row."""
        if cutlass.const_expr(self.row_sums is not None):
            if cutlass.const_expr(self.pages is not None):
                missing = self.lacks(tile, t)
            for number, half in enumerate(HALVES):
                total = sums[number] * self.factors[1]
                for offset in (1, 2):
                    total = total + cute.arch.shuffle_sync_bfly(total, offset)
                if cutlass.const_expr(self.pages is not None):
                    total = select(missing, Float32(float("nan")), total)
                row = tile.row + t * ROWS + first_row(thread) + half
                if (thread % 4 == number) & (row < tile.q_rows):
                    place = self.row_sums.row(tile.q_start, row, tile.head, tile.batch)
                    numbers(place, 1)[0] = total


@dataclass
class HopperProducts(Fixed):
    """The role of a warpgroup."""

    channels: HopperChannels
    fragments: HopperFragments
    epilogue: HopperEpilogue
    ranges: KeyRanges
    # For key blocks that need no mask, for all others, and if that is a saving, for those of the
    # others whose places are in the tables.
    programs: Sequence[Program]
    # The places of `tables`, if TMA loads some of their operands, else nothing.
    places: Sequence[Program]
    turns: IssueTurns  # of the warpgroup, as the bias and the tables
    bias: HopperBias | None
    tables: SharedTables
    bands: Bands

    @cute.jit
    def run(self, scheduler, t, thread):
        queries = self.channels.queries_of(t)
        at, q_at, k_at = scheduler.start(), queries.start(), self.channels.keys.start()
        b_at = () if cutlass.const_expr(self.bias is None) else self.bias.ring.start()
        tile, at = scheduler.take(at)
        self.turns.start()
        while tile.valid == 1:
            self.fragments.O.fill(0.0)
            self.fragments.R.fill(0.0)
            if tile.first < tile.last(t):
                if cutlass.const_expr(isinstance(queries, Loan)):
                    wait_for_stores(thread, True)
                    queries.empty.arrive_once(q_at)
                queries.full.wait(q_at)
                k_at, b_at = self.sum_of_blocks(tile, t, thread, q_at, k_at, b_at)
                if cutlass.const_expr(queries.stages > 1):
                    queries.empty.arrive_once(q_at)
                q_at = q_at.next()
            for _ in cutlass.range(larger(tile.last(t), tile.first), tile.end, unroll=1):
                self.turns.wait()
                self.turns.passes()
                k_at = self.pass_by(self.pass_by(k_at))
            self.epilogue.store(tile, t, thread, self.fragments.O)
            self.epilogue.store_row_sums(tile, t, thread, self.fragments.R)
            tile, at = scheduler.take(at)
        self.turns.finish()
        wait_for_stores(thread, False)

    @cute.jit
    def pass_by(self, at: Cursor):
        """Free a buffer of K or V that only other warpgroups need."""
        self.channels.keys.full.wait(at)
        self.channels.keys.empty.arrive_once(at)
        return at.next()

    @cute.jit
    def sum_of_blocks(self, tile, t, thread, q_at: Cursor, at: Cursor, b_at):
        """Compute O over the key blocks of a tile, from the places of K and of the bias on. Returns
        the next places.
        """
        keys, x = self.channels.keys, self.fragments
        query = q_at.index * self.channels.roles.tiles + t
        row = tile.row + t * ROWS
        known = (tile, row, thread, self.bias, self.tables, self.bands, x.R)
        weigh = HopperWeights(self.ranges, self.programs, self.places, *known)
        elements = self.tables.fetch(tile.batch, tile.head)
        x.scale(query, t, thread)
        keys.full.wait(at)
        self.turns.wait()
        S = x.score(query, at.index)
        self.turns.passes()
        self.keep(elements, t)
        early = weigh.looked_up(tile.first * self.ranges.cols, b_at)
        warpgroup.wait_group(0)
        keys.empty.arrive_once(at)
        self.scored(tile, t, tile.first, q_at)
        b_at = weigh.run(S, tile.first * self.ranges.cols, b_at, early)
        replace_operand(x.P, as_operand(S, x.dtype))
        for block in cutlass.range(tile.first + 1, tile.last(t), unroll=1):
            value, at = at.next(), at.next().next()
            keys.full.wait(at)
            self.turns.wait()
            S = x.score(query, at.index)
            keys.full.wait(value)
            x.sum_up(value.index)
            self.turns.passes()
            early = weigh.looked_up(block * self.ranges.cols, b_at)
            warpgroup.wait_group(1)
            keys.empty.arrive_once(at)
            self.scored(tile, t, block, q_at)
            b_at = weigh.run(S, block * self.ranges.cols, b_at, early)
            following = as_operand(S, x.dtype)
            warpgroup.wait_group(0)
            keys.empty.arrive_once(value)
            replace_operand(x.P, following)
        value = at.next()
        keys.full.wait(value)
        x.sum_up(value.index)
        warpgroup.wait_group(0)
        keys.empty.arrive_once(value)
        return value.next(), b_at

    def keep(self, elements, t) -> None:
        # All warps have stored O of the tile before, so none reads its tables.
        if elements:
            self.tables.keep(elements)
            together(t)

    @cute.jit
    def scored(self, tile, t, block, q_at: Cursor):
        # Q with one buffer that O does not use is free after the last S of a tile. So the next Q is
        # loaded while this tile is summed up and stored.
        queries = self.channels.queries_of(t)
        if cutlass.const_expr(queries.stages == 1 and not isinstance(queries, Loan)):  # noqa: SIM102 (decided at compile time)
            if block + 1 == tile.last(t):
                queries.empty.arrive_once(q_at)


@dataclass
class Early(Fixed):
    """Operands of a key block, which were read before there are scores: some of the first scores,
    and tables of distances.
    """

    values: list[dict[int, Any]]
    bands: list[Band]


@dataclass
class HopperWeights(Fixed):
    """Turns scores into weights, in the registers of one thread.

    A thread has two rows, and two neighbouring columns in each 8 (`wgmma`). It adds up what it has
    of their row sums, R.
    """

    ranges: KeyRanges
    programs: Sequence[Program]
    places: Sequence[Program]
    tile: Any
    first: Any  # the first query of the tile
    thread: Any
    bias: HopperBias | None
    tables: SharedTables
    bands: Bands
    R: Any

    def __post_init__(self) -> None:
        self.plain, self.careful, *self.masked = self.rows_of(self.programs)
        self.rows = self.rows_of(self.places)
        self.column = self.thread % 4 * 2

    def rows_of(self, programs: Sequence[Program]) -> list[list[Row]]:
        row = self.first + first_row(self.thread)
        return [
            [Row(program, self.tile, program.position(row) + half) for half in HALVES]
            for program in programs
        ]

    def looked_up(self, column, b_at) -> Early:
        """Look up the first half of a key block in shared memory, while its scores are computed."""
        loaded = self.bands.fetch(self.tile.batch, self.tile.head, self.first, column)
        values: list[dict[int, Any]] = []
        # There are registers for a half, if two warpgroups share them all.
        if self.rows and self.ranges.tiles == 2:
            values = [*self.values(column + self.column, b_at, 0, 1)]
        return Early(values, self.bands.keep(loaded, column // self.ranges.cols % BUFFERS))

    def values(self, column, b_at, first: int, end: int) -> Iterator[dict[int, Any]]:
        """Operands in shared memory, for one pair of scores after the other, of some parts."""
        if self.bias is None:
            yield from itertools.repeat(dict(self.tables.values))
            return
        for i, value in enumerate(self.bias.of_scores(b_at, first, end), first * PAIRS):
            own: dict[int, Any] = {self.bias.number: value}
            for rows in self.rows:
                own |= self.tables.elements_at(rows[i % 2], column + i // 2 * 8, own)
            yield {**self.tables.values, **own}

    @cute.jit
    def run(self, S, column, b_at, early):
        if self.ranges.needs_no_mask(self.tile, self.first, column):
            self.weigh(S, self.plain, column + self.column, None, b_at, early)
        else:
            self.weigh_masked(S, column, b_at, early)
        return b_at if cutlass.const_expr(self.bias is None) else self.bias.after(b_at)

    @cute.jit
    def weigh_masked(self, S, column, b_at, early):
        first, end = column + self.column, self.tile.k_rows
        if cutlass.const_expr(len(self.masked) > 0):
            if self.ranges.needs_no_check(self.tile, self.first, column):
                self.weigh(S, self.masked[0], first, None, b_at, early)
            else:
                self.weigh(S, self.careful, first, end, b_at, early)
        else:
            self.weigh(S, self.careful, first, end, b_at, early)

    @cute.jit
    def weigh(self, S, rows, column, end, b_at, early):
        parts = 0 if self.bias is None else self.bias.parts
        late = self.values(column, b_at, len(early.values) // PAIRS, parts)
        values_of = itertools.chain(early.values, late)
        bands = again(early.bands)
        for r in range_constexpr(0, cute.size(S), 2):
            row = rows[r // 2 % 2]
            first = row.program.position(column) + r // 4 * 8
            kv_idx, values = Pair(first, first + 1), next(values_of)
            values = {**values, **elements_at(bands, r)}
            operands = row.fetch(first, 2, values) if cutlass.const_expr(end is None) else {}
            terms = row(Pair(S[r], S[r + 1]), kv_idx, operands, values=values)
            if cutlass.const_expr(end is not None):  # program(0) may differ from 0
                inside = Pair(*(x < end for x in kv_idx.lanes))
                terms = [choose(inside, x, 0.0) for x in terms]
            weight, *summed = (pair(x).lanes for x in terms)
            S[r], S[r + 1] = weight
            for first_term, second_term in summed:
                self.R[r // 2 % 2] = self.R[r // 2 % 2] + (first_term + second_term)
