"""Products, score program and stores of 64 queries, by one warpgroup.

Queries, and dO of two warpgroups, stay in registers, as operands of the products with all keys and
values of a run. A step (`|X` waits for X):

    S, dP in flight    P and the slope, from S |S    P to memory    dS = dP · slope |dP    dS to it

The warpgroups issue in turn. So one computes and stores while the tensor core multiplies for
another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp, warpgroup

from ...barriers import Cursor, Ring
from ...operands import Tiles
from ...program import Program, Row
from ...values import Fixed, Pair, pair, select, smaller
from ..config import ROWS, Sm90Weights
from ..forward.roles import WARPS
from ..wgmma import IssueTurns, first_row, issue, share, zero_after
from .runs import Run, Runs

HALVES = (0, 8)  # the rows of a thread in its tile, after `first_row`
STORES = 2  # buffers of a warpgroup: for P, and for dS
LOADED = 4  # words of a thread that one ldmatrix brings
WARP_ROWS = ROWS // WARPS  # of a tile of scores


@dataclass
class HopperWeightFragments(Fixed):
    """Registers and operands of a warpgroup."""

    config: Sm90Weights
    product: Any  # [64, k] by [k, 64], the first operand in registers
    flow_product: Any  # the same with dO in shared memory
    tiles: dict[str, Tiles]  # of "q", "k", "v" and "o" (dO)
    dtype: Any
    thread: Any  # of the warpgroup

    def __post_init__(self) -> None:
        own = self.product.get_slice(0)
        sX = {name: tiles.sX for name, tiles in self.tiles.items()}
        self.tK, self.tV = (own.make_fragment_B(own.partition_B(sX[x])) for x in "kv")
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype)
        self.copy = cute.make_tiled_copy_A(atom, self.product)
        self.part = self.copy.get_slice(self.thread)
        c = self.config
        widths = {"q": c.padded_head_dim, "o": c.padded_value_dim}
        self.resident = {
            x: cute.make_rmem_tensor(self.product.partition_shape_A((ROWS, widths[x])), self.dtype)
            for x in ("q" if c.flows else "qo")
        }
        self.sources = {x: self.part.partition_S(sX[x]) for x in self.resident}
        if c.flows:
            shared = self.flow_product.get_slice(0)
            self.tO = shared.make_fragment_A(shared.partition_A(sX["o"]))
        self.shape = self.product.partition_shape_C((ROWS, c.cols))

    def take(self, name: str, stage):
        """Copy a tile of queries or of dO from shared memory to registers. Returns `zero_after`."""
        source = self.sources[name][None, None, None, stage]
        cute.copy(self.copy, source, self.part.retile(self.resident[name]))
        words = cute.recast_tensor(self.resident[name], Int32)
        return zero_after(words[i] for i in range(0, cute.size(words), LOADED))

    def scores(self, stage):
        return self._product(self.product, self.resident["q"], self.tK, stage)

    def flow(self, stage, group):
        if "o" in self.resident:
            return self._product(self.product, self.resident["o"], self.tV, stage)
        return self._product(self.flow_product, self.tO[None, None, None, group], self.tV, stage)

    def _product(self, product, rows, columns, stage):
        # New registers, so that old ones do not live on.
        sums = cute.make_rmem_tensor(self.shape, Float32)
        issue(product, sums, rows, columns[None, None, None, stage], True)
        return sums

    def rounded(self, sums):
        halves = cute.make_rmem_tensor(sums.layout, self.dtype)
        halves.store(sums.load().to(self.dtype))
        return halves


@dataclass
class RunScores(Fixed):
    """Turns the scores of a run into P and the slope, in the registers of one thread.

    A thread has two rows, and two neighbouring columns in each 8 (`wgmma`). Past the ends of either
    side nothing is stored. So scores there are as others, but no operand is read.
    """

    programs: Sequence[Program]
    run: Run
    row: Any  # the first query of the warpgroup
    thread: Any

    def __post_init__(self) -> None:
        row = self.row + first_row(self.thread)
        self.lines = [
            [Row(program, self.run, program.position(row) + half) for half in HALVES]
            for program in self.programs
        ]
        self.column = self.thread % 4 * 2

    def fetch(self, column, pairs: int) -> list[dict[Any, Any]]:
        """Begin to load operands of the tile at a column, for one pair of scores after another."""
        program = self.programs[-1]
        alike = {x for x in program.vectors if "q_idx" not in program.mod.aux[x].axes}
        fetched: list[dict[Any, Any]] = []
        for pair_number in range(pairs):
            half, part = pair_number % 2, pair_number // 2
            # Rows have whole pairs.
            first = smaller(column + self.column + part * 8, self.run.k_rows - 2)
            own = self.lines[-1][half].fetch(first, 2, alike if half else ())
            fetched.append({**fetched[-1], **own} if half else own)
        return fetched

    def weigh(self, number: int, S, P, column, fetched) -> None:
        """Compute P, and turn S into the slope, in place. number: Of the program."""
        program, lines = self.programs[number], self.lines[number]
        first = program.position(column + self.column)
        for r in range(0, cute.size(S), 2):
            place = first + r // 4 * 8
            line, operands = lines[r // 2 % 2], fetched[r // 2]
            roots = line(Pair(S[r], S[r + 1]), Pair(place, place + 1), operands)
            (S[r], S[r + 1]), (P[r], P[r + 1]) = (map(Float32, pair(x).lanes) for x in roots)


@dataclass
class HopperWeightProducts(Fixed):
    """The role of a warpgroup."""

    runs: Runs
    ring: Ring
    flow: Any  # the ring of dO of this warpgroup, or None if dO is in registers
    fragments: HopperWeightFragments
    programs: Sequence[Program]  # for tiles that need no mask, and for all others
    stores: Sequence[Tiles]  # of P and of dS, a tile for each warp
    buffers: Any  # the same memory with a tile for each warpgroup
    warp: Any
    thread: Any  # of the warpgroup
    turns: IssueTurns

    def __post_init__(self) -> None:
        self.group, ranges = self.warp // WARPS, self.runs.ranges
        self.masks = tuple(ranges.full_terms) != self.programs[1].roots
        # Past the ends of either side nothing is stored, so only operands are not read there.
        self.alike = not (self.masks or ranges.config.aux)

    @cute.jit
    def run(self):
        number, end = self.runs.share()
        at, o_at = self.ring.start(), Cursor(1)
        self.turns.start()
        while number < end:
            run = self.runs.at(number, end)
            if const_expr(self.runs.ranges.skips):
                self.clear(run, run.begin, run.first)
            if run.first < run.last:
                at = self.take("q", at)
                if const_expr(self.flow is None):
                    at = self.take("o", at)
                row = run.row + self.group * ROWS
                scores = RunScores(self.programs, run, row, self.thread)
                if row < run.q_rows:
                    for block in cutlass.range(run.first, run.last, unroll=1):
                        at = self.step(scores, block, at, o_at)
                else:
                    for _ in cutlass.range(run.first, run.last, unroll=1):
                        at = self.pass_by(at)
                if const_expr(self.flow is not None):
                    self.flow.full.wait(o_at)  # where there are no queries, nobody has waited yet
                    self.flow.empty.arrive_once(o_at)
                o_at = o_at.next()
            if const_expr(self.runs.ranges.skips):
                self.clear(run, run.last, run.end)
            number += run.end - run.begin
        self.turns.finish()
        cute.arch.cp_async_bulk_wait_group(0, read=False)

    def take(self, name: str, at: Cursor) -> Cursor:
        """Take the tile of this warpgroup, and pass those of others by."""
        places = [at]
        for _ in range(1, self.turns.tiles):
            places.append(places[-1].next())
        own = places[0].index
        for t, place in enumerate(places):
            self.ring.full.wait(place)
            own = select(self.group == t, place.index, own)
        zero = self.fragments.take(name, own)
        for place in places:
            self.ring.empty.arrive_once(Cursor(place.stages, place.index + zero, place.phase))
        return places[-1].next()

    @cute.jit
    def clear(self, run: Run, begin, end):
        """Store zeros in key tiles that the program empties."""
        for block in cutlass.range(begin, end, unroll=1):
            nothing = cute.make_rmem_tensor(self.fragments.shape, self.fragments.dtype)
            nothing.fill(0.0)
            for number in range_constexpr(STORES):
                self.store(number, nothing, run, block)

    @cute.jit
    def step(self, scores: RunScores, block, at: Cursor, o_at: Cursor):
        """Compute and store P and dS of the tile at a key block. Returns the next place of keys."""
        x, run, key, value = self.fragments, scores.run, at, at.next()
        column = block * self.runs.width
        # Early, so that what is loaded is there when S is.
        fetched = scores.fetch(column, cute.size(x.shape) // 2)
        whole = self.alike or self.runs.ranges.needs_no_mask(run, scores.row, column)
        self.ring.full.wait(key)
        self.turns.wait()
        S = x.scores(key.index)
        if const_expr(self.flow is not None):  # in the first step of a run it may come after S
            self.flow.full.wait(o_at)
        self.ring.full.wait(value)
        dP = x.flow(value.index, self.group)
        self.turns.passes()
        P = cute.make_rmem_tensor(x.shape, Float32)
        warpgroup.wait_group(1)
        self.ring.empty.arrive_once(key)
        if const_expr(self.alike):
            scores.weigh(0, S, P, column, fetched)
        else:
            self.weigh(scores, S, P, column, fetched, whole)
        self.store(0, x.rounded(P), run, block)
        warpgroup.wait_group(0)
        self.ring.empty.arrive_once(value)
        self.chain(S, dP, whole)
        self.store(1, x.rounded(dP), run, block)
        return value.next()

    @cute.jit
    def pass_by(self, at: Cursor):
        """Free the keys and values of a tile in which this warpgroup has no queries."""
        self.turns.wait()
        self.turns.passes()
        for place in (at, at.next()):
            self.ring.full.wait(place)
            self.ring.empty.arrive_once(place)
        return at.next().next()

    @cute.jit
    def weigh(self, scores: RunScores, S, P, column, fetched, whole):
        if whole:
            scores.weigh(0, S, P, column, fetched)
        else:
            scores.weigh(1, S, P, column, fetched)

    @cute.jit
    def chain(self, slope, dP, whole):
        """Turn dP into dS, in place. Masked scores get zero, even if dP is infinite or NaN."""
        if const_expr(self.masks):
            if whole:
                self.multiply(slope, dP)
            else:
                for r in range_constexpr(cute.size(dP)):
                    dP[r] = select(slope[r] == 0.0, Float32(0.0), dP[r] * slope[r])
        else:
            self.multiply(slope, dP)

    @cute.jit
    def multiply(self, slope, dP):
        for r in range_constexpr(cute.size(dP)):
            dP[r] = dP[r] * slope[r]

    @cute.jit
    def store(self, number: cutlass.Constexpr, halves, run: Run, block):
        """Store a tile by way of shared memory. number: 0 for P, 1 for dS.

        Each warp has its own rows and its own buffer, so it waits for no other warp.
        """
        # At most the store of the other one still reads its buffer.
        cute.arch.cp_async_bulk_wait_group(STORES - 1, read=True)
        cute.arch.sync_warp()
        buffer = self.group * STORES + number
        share(self.fragments.product, halves, self.buffers, buffer, self.thread)
        cute.arch.sync_warp()
        row = run.row + self.warp * WARP_ROWS
        if row < run.q_rows:
            rows, stage = (run.q_start, row, run.q_rows), buffer * WARPS + self.warp % WARPS
            self.stores[number].store(rows, run.head, run.batch, stage, block)
        # A group also where there is nothing to store, so that groups count buffers.
        cute.arch.cp_async_bulk_commit_group()
