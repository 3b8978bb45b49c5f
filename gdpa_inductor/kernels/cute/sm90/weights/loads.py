"""The load warp: queries, dO, keys and values, each 64 rows at a time, through one ring."""

from dataclasses import dataclass

import cutlass
from cutlass import cute, range_constexpr

from ...barriers import Cursor, Ring
from ...operands import Tiles
from ...values import Fixed
from ..config import ROWS
from .runs import Runs


@dataclass
class HopperWeightLoads(Fixed):
    """The load warp. Warpgroups take the tiles in the same order."""

    runs: Runs
    ring: Ring
    tiles: dict[str, Tiles]  # of "q", "k", "v" and "o" (dO)
    groups: int

    @cute.jit
    def run(self):
        number, end = self.runs.share()
        at = self.ring.start()
        while number < end:
            run = self.runs.at(number, end)
            if run.first < run.last:
                for name in "qo":
                    for t in range_constexpr(self.groups):
                        rows = (run.q_start, run.row + t * ROWS, run.q_rows)
                        at = self.load(name, rows, run.head, run.batch, at)
                for block in cutlass.range(run.first, run.last, unroll=1):
                    rows = (run.k_start, block * ROWS, run.k_rows)
                    at = self.load("k", rows, run.key_head, run.batch, at)
                    at = self.load("v", rows, run.value_head, run.batch, at)
            number += run.end - run.begin
        self.ring.wait_all(at)

    def load(self, name: str, rows, head, batch, at: Cursor) -> Cursor:
        self.ring.wait_for_room(at)
        self.tiles[name].load(rows, head, batch, at.index, self.ring.full, at)
        return at.next()
