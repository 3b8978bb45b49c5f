"""The score program along one resident row: one index is fixed for the thread, the other runs.

The roots are the slope ∂P/∂S and, on the keys side, the weight P, evaluated in one pass, so that
the derivative shares the terms of the weight, and before dP is there: dS = dP · slope.
"""

from typing import Any

from cutlass import Boolean, Float32, Int32, Int64, cute

from ...expr import SCORE, Expr, const, differentiate
from .backward_tiles import Tile, Walk
from .config import Config
from .emit import emit
from .program import LETTERS, Program
from .values import Pair, each, smaller


def roots_of(config: Config, keys: bool) -> tuple[Expr, ...]:
    """What a side evaluates: the slope, and P where it is summed."""
    weight = config.mod.weight
    slope = differentiate(weight, [SCORE], const(1.0))[0]
    found = (const(0.0) if slope is None else slope, weight)
    return found if keys else found[:1]


class Line:
    """The program on resident row `row` of a tile while head `turn` of its group streams past."""

    def __init__(self, program: Program, walk: Walk, tile: Tile, turn: Any, row: Any) -> None:
        self.program, self.tile = program, tile
        batch, head = walk.place(tile, turn)
        fixed, self.runs, self.packed = ("m", "n", "q") if walk.keys else ("n", "m", "k")
        self.fixed = {"b": batch, "h": head, fixed: row}
        there = smaller(row, tile.rows - 1)  # past the end it only has to be a readable address
        place = {fixed: there, "k" if walk.keys else "q": tile.start + there}
        self.places = {"b": batch, "h": head} | place
        self.loaded: dict[Expr, Pair] = {}
        for node in program.nodes:
            if node.op == "aux" and not {self.runs, self.packed} & set(self.access(node)):
                self.loaded[node] = Pair(self.read(node, None))

    def access(self, node: Expr) -> tuple[str, ...]:
        return self.program.mod.aux[int(node.value or 0)].access

    def read(self, node: Expr, index: Any) -> Any:
        """The element of an aux operand at streamed row `index`, in the register of its kind."""
        pointer, strides = self.program.aux[int(node.value or 0)]
        places = dict(self.places)
        if index is not None:
            there = smaller(index, self.tile.length - 1)
            places |= {self.runs: there, self.packed: self.tile.origin + there}
        offset = Int64(0)
        for letter, stride in zip(LETTERS, strides, strict=True):
            if letter in self.access(node):
                offset += Int64(places[letter]) * Int64(stride)
        value = cute.make_tensor(pointer + offset, cute.make_layout(1))[0]
        if node.kind == "b":
            return Boolean(value != 0)
        if node.kind == "f":
            return Float32(value)
        return value if isinstance(value, Int64) else Int32(value)

    def __call__(self, scores: Pair, indices: Pair) -> list[Any]:
        """The roots for two scores at the streamed rows `indices`."""

        def leaf(node: Expr) -> Any:
            if node.op == "s":
                return scores
            if node.op == self.runs:
                return each(Int64)(indices) if self.program.wide else indices
            if node.op == "scalar":
                return Pair(Int64(self.program.scalars[int(node.value or 0)]))
            if node.op == "aux":
                return self.loaded.get(node) or Pair(*(self.read(node, x) for x in indices.lanes))
            return self.program.index(self.fixed[node.op])

        weight = self.program.mod.weight
        return emit(self.program.roots, weight, leaf, self.program.fast)
