"""The load warp: queries, dO, keys and values, each 64 rows at a time, through one ring.

Three warpgroups have dO in buffers of their own, which are free at the end of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from ...barriers import Cursor, Ring
from ...operands import Tiles
from ...values import Fixed
from ..config import ROWS
from .runs import Run, Runs


@dataclass
class HopperWeightLoads(Fixed):
    """The load warp. Warpgroups take the tiles in the same order."""

    runs: Runs
    ring: Ring
    flows: Sequence[Ring]  # for dO of each warpgroup, if it has buffers of its own
    tiles: dict[str, Tiles]  # of "q", "k", "v" and "o" (dO)
    groups: int

    @cute.jit
    def run(self):
        number, end = self.runs.share()
        at, o_at = self.ring.start(), Cursor(1)
        while number < end:
            run = self.runs.at(number, end)
            if run.first < run.last:
                for t in range_constexpr(self.groups):
                    at = self.load("q", self.queries(run, t), run.head, run.batch, at)
                for t in range_constexpr(self.groups - len(self.flows)):
                    at = self.load("o", self.queries(run, t), run.head, run.batch, at)
                for block in cutlass.range(run.first, run.last, unroll=1):
                    rows = (run.k_start, block * ROWS, run.k_rows)
                    at = self.load("k", rows, run.key_head, run.batch, at)
                    if block == run.first:  # the first scores need no dO
                        self.load_flows(run, o_at)
                    at = self.load("v", rows, run.value_head, run.batch, at)
                o_at = o_at.next()
            number += run.end - run.begin
        self.ring.wait_all(at)
        for t in range_constexpr(len(self.flows)):
            self.flows[t].wait_all(o_at)

    def queries(self, run: Run, t: int) -> tuple[Any, Any, Any]:
        return run.q_start, run.row + t * ROWS, run.q_rows

    def load_flows(self, run: Run, at: Cursor) -> None:
        for t, ring in enumerate(self.flows):
            ring.wait_for_room(at)
            self.tiles["o"].load(self.queries(run, t), run.head, run.batch, t, ring.full, at)

    def load(self, name: str, rows, head, batch, at: Cursor) -> Cursor:
        self.ring.wait_for_room(at)
        self.tiles[name].load(rows, head, batch, at.index, self.ring.full, at)
        return at.next()
