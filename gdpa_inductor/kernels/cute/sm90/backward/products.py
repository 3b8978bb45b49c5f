"""Products and activation of a key tile, by two warpgroups: 64 keys each, all queries.

A step begins with S of its query tile computed, and issues S of the next one. `|X` waits for X:

    dP    P and the slope, from S    dV += P dO |dP    dS = dP · slope    dK += dS Q |dV
    dQ = dSᵀ K of the step before    S of the next query tile |dQ    dQ to a warp that adds it |

Scores are transposed, keys by queries, so P and dS are operands in registers. Only dQ reads dS from
shared memory, because it sums over the keys of both warpgroups. A gradient of row sums is added to
dP (`roots.py`).

- Usually dQ lags one step (`Sm90Config.lags`), so that no warpgroup waits for the other's dS. By
  `IssueTurns` they are half a step apart: one activates while the tensor core multiplies for the
  other. dQ of the last step is handed over when dV and dK are stored.
- If an aux operand has a number for each score, dQ does not lag. The warpgroups wait for each
  other's dS, and S of the next query tile is issued before dQ.

TMA loads an aux operand (`KernelConfig.tiled`) to the buffer where dS of its step will be. Each
warp reads the numbers that it overwrites later, unless they are integers. These it reads at once,
and signals that others may overwrite them. If the gradient of an aux operand is stored, dS is
that gradient: the slope is that of the operand, and dQ and dK get a factor at the end (`roots.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, Uint8, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warpgroup

from ...backward.turns import Turns
from ...backward.walk import ResidentTile
from ...operands import Tiles
from ...program import Program, ProgramLine
from ...ranges import LANES
from ...values import Fixed, Pair, choose, pair, select
from ..bands import Bands, Elements, again, elements_at
from ..shared_tables import SharedTables
from ..wgmma import (
    WARPGROUP,
    IssueTurns,
    as_operand,
    first_row,
    wait_for_stores,
)
from .epilogue import KeyGradients
from .fragments import HopperBackwardFragments
from .register_operands import RegisterOperand, RowGradients, TiledIntegers, register_operands
from .roles import EMPTY, FULL, GROUPS, HALF, HANDED, TURNS, HopperSignals, both


@dataclass
class HopperBackwardProducts(Fixed):
    """The role of the warpgroups."""

    walk: Turns
    signals: HopperSignals
    fragments: HopperBackwardFragments
    epilogue: KeyGradients
    # For tiles that need no mask, for all others, and if that is a saving, for those of the others
    # whose places are in the tables. The roots are the slope and P.
    programs: Sequence[Program]
    stored: Tiles | None  # of an aux operand's gradient, if it is stored
    thread: Any
    sA: Any  # the buffers of TMA's aux operand
    tables: SharedTables
    bands: Bands
    row_gradients: RowGradients | None

    def __post_init__(self) -> None:
        programs, fragments, thread = self.programs, self.fragments, self.thread
        self.tiled, self.lags = self.walk.ranges.config.tiled, self.walk.ranges.config.lags
        self.register_operands = [
            RegisterOperand(node, programs[1], fragments.S)
            for node in register_operands(programs[1], self.tiled)
        ]
        self.group, self.own = thread // WARPGROUP, thread % WARPGROUP
        self.row = self.group * HALF + first_row(self.own)
        self.column = self.own % 4 * 2
        self.turns = IssueTurns(self.group, GROUPS, TURNS)
        self.integers = self.tiled_integers()
        self.bias = None if self.integers else self.tiled

    def tiled_integers(self) -> list[TiledIntegers]:
        """TMA's aux operand, if it has integers."""
        program, shapes = self.programs[1], self.fragments.shapes
        begin = cute.recast_ptr(self.sA.iterator, None, Uint8)
        place = (begin, shapes.rows, shapes.score_bytes, self.column, self.row)
        return [
            TiledIntegers(node, program, self.fragments.S, *place)
            for node in program.nodes
            if node.op == "aux" and node.value == self.tiled and node.kind == "i"
        ]

    @cute.jit
    def run(self):
        tile_step, step, deal = Int32(0), Int32(0), Int32(0)
        if const_expr(self.lags):
            self.turns.start()
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            self.fragments.dK.fill(0.0)
            self.fragments.dV.fill(0.0)
            if tile.steps > 0:
                if const_expr(self.tiled is not None):
                    self.signals.empty["x"].arrive_once(tile_step)
                self.sum_of_steps(tile, tile_step, step)
                tile_step += 1
            step += tile.steps
            if tile.first < tile.rows:
                self.store_gradients(tile, step)
            deal += 1
        if const_expr(self.lags):
            self.turns.finish()
        wait_for_stores(self.own, False)

    @cute.jit
    def store_gradients(self, tile: ResidentTile, end):
        # The last dQ waits longest.
        for store in (self.epilogue.store_values, self.epilogue.store_keys):
            store(tile, self.group, self.own, self.fragments)
        if const_expr(self.lags):  # noqa: SIM102 (decided at compile time)
            if tile.steps > 0:
                self.hand_over(self.fragments.S)
        self.epilogue.free(self.own, self.signals.empty.get("s"), tile.steps, end)

    @cute.jit
    def sum_of_steps(self, tile: ResidentTile, tile_step, first):
        """Compute dK and dV of a tile. first: The number of its first step."""
        full, empty, x = self.signals.full, self.signals.empty, self.fragments
        entry, last = self.walk.entry(tile), first + tile.steps - 1
        full["k"].wait(tile_step)
        full["q"].wait(first)
        x.multiply_scores(full["q"].index(first))
        full["v"].wait(tile_step)
        # In flight into the loop, S would make ptxas serialize all products: its copies read S.
        warpgroup.wait_group(0)
        for i in cutlass.range(tile.steps - 1, unroll=1):
            self.step(tile, entry, i, first + i, False)
        self.step(tile, entry, tile.steps - 1, last, True)
        if const_expr(self.lags):
            full["s"].wait(last)
            x.query_part(last % 2, x.S)
            warpgroup.wait_group(0)
        for name in "kv":
            empty[name].arrive_once(tile_step)

    def step(self, tile: ResidentTile, entry, i, step, last: bool) -> None:
        """Step i of the tile. entry: The query tile of step 0. step: The number for the signals."""
        full, empty, x = self.signals.full, self.signals.empty, self.fragments
        count = tile.end - tile.begin
        turn, block = i // count, self.walk.block(tile, entry, i % count)
        stage, q_stage, shared = full["o"].index(step), full["q"].index(step), step % 2
        whole = self.walk.ranges.needs_no_mask(tile, self.walk.streamed_head(tile, turn), block)
        self.learn(tile, turn, i % count)
        self.fetch_all(tile, turn, block, whole)
        loaded = self.elements(tile, turn, block)
        for integers in self.integers:
            full["a"].wait(step)
            integers.fetch(shared)
            full["i"].arrive_once(step)
        full["o"].wait(step)
        dP = x.flow(stage)
        if const_expr(self.bias is not None):
            full["a"].wait(step)
        bands = self.bands.keep(loaded, 0)
        slope = self.weigh(tile, turn, block, shared, whole, bands)
        if self.lags:
            self.turns.wait()
        P = as_operand(x.S, x.shapes.dtype)
        x.sum_values(P, stage)
        warpgroup.wait_group(1)
        self.chain(slope, dP, P, whole)
        dS = as_operand(dP, x.shapes.dtype)
        if self.lags:
            empty["s"].wait_before(step)
        if self.integers:
            full["i"].wait(step)
        x.share(dS, shared)
        x.sum_keys(dS, q_stage)
        if self.lags:
            cute.arch.fence_view_async_shared()
            full["s"].arrive_once(step)
        warpgroup.wait_group(1)
        empty["o"].arrive_once(step)
        if self.lags:
            self.finish_with_last_part(i, step, last)
        else:
            self.finish_with_own_part(tile, turn, block, i, step, last)

    @cute.jit
    def finish_with_last_part(self, i, step, last: Constexpr):
        """The rest of step i if dQ lags: S of the next step, and dQ of the step before."""
        full, empty, x = self.signals.full, self.signals.empty, self.fragments
        if i > 0:
            full["s"].wait(step - 1)
            dQ = x.query_part((step - 1) % 2)
            self.next_scores(step, last)
            self.turns.passes()
            warpgroup.wait_group(0 if last else 1)
            if const_expr(not last):
                empty["s"].arrive_once(step - 1)
            empty["q"].arrive_once(step)
            self.hand_over(dQ)
            warpgroup.wait_group(0)
        else:
            self.next_scores(step, last)
            self.turns.passes()
            warpgroup.wait_group(0)
            empty["q"].arrive_once(step)

    def finish_with_own_part(self, tile: ResidentTile, turn, block, i, step, last: bool) -> None:
        """The rest of step i if dQ does not lag: S of the next step, and dQ of this step."""
        self.next_scores(step, last)
        cute.arch.fence_view_async_shared()  # here: earlier it crashed the compiler (4.8.1)
        self.stored_is_read(i, step)
        both()
        self.store(tile, turn, block, step % 2)
        dQ = self.fragments.query_part(step % 2)
        warpgroup.wait_group(0)
        self.signals.empty["q"].arrive_once(step)
        self.operand_is_read(step, last)
        self.hand_over(dQ)

    @cute.jit
    def learn(self, tile: ResidentTile, turn, number):
        """Copy the tables of a query head before its first step."""
        # All warps have met since they read those of the head before.
        if const_expr(self.tables.values):  # noqa: SIM102 (decided at compile time)
            if number == 0:
                self.tables.keep(self.tables.fetch(*self.walk.place(tile, turn)))
                both()

    def elements(self, tile: ResidentTile, turn, block) -> list[Elements]:
        """Load tables of distances for a step."""
        key, query = tile.first + self.group * HALF, block * self.walk.heights.streamed
        return self.bands.fetch(*self.walk.place(tile, turn), key, query)

    def next_scores(self, step, last: bool) -> None:
        # The last step of a tile has no next one.
        if not last:
            full = self.signals.full["q"]
            full.wait(step + 1)
            self.fragments.multiply_scores(full.index(step + 1))

    def fetch_all(self, tile: ResidentTile, turn, block, whole) -> None:
        if self.row_gradients:
            self.row_gradients.fetch(self.walk, tile, turn, block * self.walk.heights.streamed)
        for operand in self.register_operands:
            fetch = self.fetch if operand.node in self.programs[0].nodes else self.fetch_mask
            fetch(operand, tile, turn, block, whole)

    @cute.jit
    def fetch(self, operand: RegisterOperand, tile: ResidentTile, turn, block, whole=None):
        # dP is not issued yet, so there are registers for all loads in flight.
        row, first = tile.first + self.row, block * self.walk.heights.streamed + self.column
        lines = [ProgramLine(self.programs[1], self.walk, tile, turn, row + x) for x in (0, 8)]
        if (block + 1) * self.walk.heights.streamed <= tile.length:
            operand.take_whole(lines, first)
        else:
            operand.take(lines, first)

    @cute.jit
    def fetch_mask(self, operand: RegisterOperand, tile: ResidentTile, turn, block, whole):
        # Only tiles with a mask read the operand.
        if whole == 0:
            self.fetch(operand, tile, turn, block)

    def is_first_warp(self):
        return self.group * WARPGROUP + self.own < LANES

    @cute.jit
    def store(self, tile: ResidentTile, turn, block, shared):
        # dS is the gradient of an aux operand. The first warp stores it.
        if const_expr(self.stored is not None):  # noqa: SIM102 (decided at compile time)
            if self.is_first_warp():
                row, head = block * self.walk.heights.streamed, self.walk.streamed_head(tile, turn)
                column = tile.first // self.walk.heights.resident
                assert self.stored is not None
                self.stored.store((Int32(0), row, tile.length), head, tile.slot, shared, column)
                cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def stored_is_read(self, i, step):
        """The store of the step before has to read its buffer of dS before all warps meet in step
        i. So the next step may overwrite that buffer.
        """
        if const_expr(self.stored is not None):  # noqa: SIM102 (decided at compile time)
            if self.is_first_warp():
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                if const_expr(self.tiled is not None):  # noqa: SIM102 (decided at compile time)
                    if i > 0:
                        self.signals.empty["a"].arrive_once(step - 1)

    @cute.jit
    def operand_is_read(self, step, last):
        # This warp has read the buffer of dS, so that TMA may load there. In all steps but the last
        # of a tile, the first warp, which stores, signals a step later.
        if const_expr(self.tiled is not None):
            if const_expr(self.stored is None):
                self.signals.empty["a"].arrive_once(step)
            elif const_expr(last):
                if self.is_first_warp():
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                self.signals.empty["a"].arrive_once(step)
            elif not self.is_first_warp():
                self.signals.empty["a"].arrive_once(step)

    @cute.jit
    def hand_over(self, dQ):
        # to the warp that adds dQᵀ to the sums
        cute.arch.barrier(barrier_id=EMPTY + self.group, number_of_threads=HANDED)
        target = self.fragments.to_dQ[None, None, None, self.group]
        for r in range_constexpr(cute.size(dQ)):
            target[r] = dQ[r]
        cute.arch.fence_view_async_shared()
        cute.arch.barrier_arrive(barrier_id=FULL + self.group, number_of_threads=HANDED)

    @cute.jit
    def weigh(self, tile: ResidentTile, turn, block, stage, whole, bands):
        """Turn S into P, in place, and return the slope. stage: The buffer of TMA's aux operand."""
        slope = self.fragments.scores()
        if whole:
            self.evaluate(tile, turn, block, stage, self.programs[0], slope, False, bands)
        else:
            self.evaluate_masked(tile, turn, block, stage, slope, bands)
        return slope

    @cute.jit
    def evaluate_masked(self, tile: ResidentTile, turn, block, stage, slope, bands):
        if const_expr(len(self.programs) > 2):
            head = self.walk.streamed_head(tile, turn)
            if self.walk.ranges.needs_no_check(tile, head, block):
                self.evaluate(tile, turn, block, stage, self.programs[2], slope, False, bands)
            else:
                self.evaluate(tile, turn, block, stage, self.programs[1], slope, True, bands)
        else:
            self.evaluate(tile, turn, block, stage, self.programs[1], slope, True, bands)

    @cute.jit
    def chain(self, slope, dP, P, whole):
        """Turn dP into dS, in place. Masked scores get zero, even if dP is infinite or NaN. So do
        scores past the end of a sequence, if dS is stored (`StreamedRanges.selects`).
        """
        if const_expr(self.row_gradients is not None):
            self.row_gradients.add_to(dP, P, self.column)
        if const_expr(self.walk.ranges.selects):
            if whole:
                for r in range_constexpr(cute.size(dP)):
                    dP[r] = dP[r] * slope[r]
            else:
                for r in range_constexpr(cute.size(dP)):
                    dP[r] = select(slope[r] == 0.0, Float32(0.0), dP[r] * slope[r])
        else:
            for r in range_constexpr(cute.size(dP)):
                dP[r] = dP[r] * slope[r]

    @cute.jit
    def evaluate(self, tile: ResidentTile, turn, block, stage, program, slope, careful, bands):
        # careful: P and the slope are zero past the end of either side, as program(0) may differ
        # from 0.
        S, row = self.fragments.S, program.position(tile.first + self.row)
        lines = [ProgramLine(program, self.walk, tile, turn, row + half) for half in (0, 8)]
        first = program.position(block * self.walk.heights.streamed + self.column)
        operand = cute.make_rmem_tensor(S.layout, self.fragments.shapes.dtype)
        bands = again(bands)
        for r in range_constexpr(0, cute.size(S), 2):
            half, column = r // 2 % 2, first + r // 4 * 8
            indices = Pair(column, column + 1)
            values: dict[Any, Any] = {**self.tables.values, **elements_at(bands, r)}
            if const_expr(self.bias is not None):
                if const_expr(r % 8 == 0):
                    self.fragments.fetched(operand, stage, r // 8)
                values[self.bias] = Pair(Float32(operand[r]), Float32(operand[r + 1]))
            registers = self.register_operands + self.integers
            values |= {x.node.value: x.pair(r) for x in registers}
            roots = lines[half](Pair(S[r], S[r + 1]), indices, values)
            if const_expr(careful):
                there = row + half * 8 < tile.rows
                inside = Pair(*(there & (x < tile.length) for x in indices.lanes))
                roots = [choose(inside, x, 0.0) for x in roots]
            (slope[r], slope[r + 1]), (S[r], S[r + 1]) = (
                map(Float32, pair(x).lanes) for x in roots
            )
