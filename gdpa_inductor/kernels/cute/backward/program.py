"""The score program in a backward: a thread has one resident row, and streamed rows pass by.

The roots are the slope ∂P/∂S and, on the keys side, the weight P. Both are evaluated in one pass,
so that common terms are computed once. The slope does not depend on dP, which may still be in the
making: dS = dP · slope is computed later.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cutlass import Int64

from ....program.expr import Expr
from ..config import LETTERS
from ..program import Program, element
from ..values import Fixed, Pair, smaller
from .walk import ResidentTile, Walk


class ProgramLine(Fixed):
    """The program for resident row `row` of a tile, and for query head `turn` of its group."""

    def __init__(self, program: Program, walk: Walk, tile: ResidentTile, turn, row) -> None:
        self.program, self.tile = program, tile
        batch, head = walk.place(tile, turn)
        fixed, self.runs, self.jagged = (
            ("kv_idx", "q_idx", "q") if walk.keys else ("q_idx", "kv_idx", "k")
        )
        self.fixed = {"b": batch, "h": head, fixed: row}
        there = smaller(row, tile.rows - 1)  # past the end any readable address will do
        places = {**self.fixed, fixed: there, "k" if walk.keys else "q": tile.start + there}
        self.loaded: dict[Expr, Pair] = {}
        self.lines: dict[Expr, Any] = {}
        for node in program.nodes:
            if node.op == "aux" and {self.runs, self.jagged} & set(program.access(node)):
                self.lines[node] = program.place(node, places)
            elif node.op == "aux":
                self.loaded[node] = Pair(program.read(node, places))

    def read(self, node: Expr, index):
        """The element of an aux operand at streamed row `index`, in the type of the node."""
        return self.program.of_kind(node, self.element(node, index))

    def element(self, node: Expr, index):
        # The element as it is stored. All threads of a warp have the same offset, so a thread needs
        # one addition for its address.
        place, _ = self.walked(node, smaller(index, self.tile.length - 1))
        return element(place)

    def walked(self, node: Expr, index) -> tuple[Any, Any]:
        """(pointer to the element at streamed row `index`, stride to the next). The row exists."""
        strides = dict(zip(LETTERS, self.program.aux[int(node.value or 0)][1], strict=True))
        offset = step = Int64(0)
        for letter, place in ((self.runs, index), (self.jagged, self.tile.origin + index)):
            if letter in self.program.access(node):
                offset += Int64(place) * Int64(strides[letter])
                step += Int64(strides[letter])
        return self.lines[node] + offset, step

    def __call__(
        self, scores: Pair, indices: Pair, values: Mapping[int | None, Pair] = MappingProxyType({})
    ) -> list[Any]:
        """The roots for two scores, at the streamed rows `indices`. values: Aux operands that were
        read.
        """

        def operand(node: Expr) -> Pair:
            number = int(node.value or 0)
            if number in values:
                return values[number]
            return self.loaded.get(node) or Pair(*(self.read(node, x) for x in indices.lanes))

        return self.program.evaluate({**self.fixed, self.runs: indices, "s": scores}, operand)
