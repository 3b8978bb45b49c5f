"""The score program of one query row: its leaves, and where aux operands are read from.

An aux operand is a pointer and a stride for each letter of its access map, "b", "h", "n", "m", and "q",
"k" (the row of a packed matrix). What does not vary along the keys is read once for a row.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from ...expr import Expr, postorder
from .config import Config
from .emit import emit
from .values import Fixed, Pair, each, smaller

LETTERS = "bhnmqk"
DTYPES = {
    "float32": cutlass.Float32, "float16": cutlass.Float16, "bfloat16": cutlass.BFloat16,
    "float64": cutlass.Float64, "bool": cutlass.Uint8, "uint8": cutlass.Uint8,
    "int8": cutlass.Int8, "int16": cutlass.Int16, "int32": cutlass.Int32, "int64": cutlass.Int64,
}  # fmt: skip


class Program(Fixed):
    """roots: the terms to compute, by default the weight. aux: (pointer, strides by `LETTERS`) of each
    operand. scalars: the integers of the op."""

    def __init__(
        self, config: Config, aux: Any, scalars: Any, roots: tuple[Expr, ...] | None = None
    ) -> None:
        self.mod, self.fast, self.aux, self.scalars = config.mod, config.fast, aux, scalars
        self.roots = roots or (self.mod.weight,)
        self.nodes = list(postorder(self.roots))
        self.wide = any(x.kind == "i" and x.op in ("mul", "int") for x in self.nodes)

    def row(self, tile: Any, n: Any) -> "Row":
        return Row(self, tile, n)

    def index(self, value: Any) -> Pair:
        return Pair(Int64(value)) if self.wide else Pair(Int32(value))


class Row(Fixed):
    """The program on row n of a tile's sequence."""

    def __init__(self, program: Program, tile: Any, n: Any) -> None:
        self.program, self.tile = program, tile
        self.fixed = {"b": tile.batch, "h": tile.head, "n": n}
        row = smaller(n, tile.q_rows - 1)  # past the end it only has to be a readable address
        self.places = {"b": tile.batch, "h": tile.head, "n": row, "q": tile.q_start + row}
        self.loaded: dict[Expr, Pair] = {}
        for node in program.nodes:
            if node.op == "aux" and not set("mk") & set(self.access(node)):
                self.loaded[node] = Pair(self.read(node, None))

    def access(self, node: Expr) -> tuple[str, ...]:
        return self.program.mod.aux[int(node.value or 0)].access

    def read(self, node: Expr, m: Any) -> Any:
        """The element for key m, as the register that the node's kind wants."""
        pointer, strides = self.program.aux[int(node.value or 0)]
        places = dict(self.places)
        if m is not None:
            column = smaller(m, self.tile.k_rows - 1)
            places |= {"m": column, "k": self.tile.k_start + column}
        place = Int64(0)
        for letter, stride in zip(LETTERS, strides, strict=True):
            if letter in self.access(node):
                place += Int64(places[letter]) * Int64(stride)
        value = cute.make_tensor(pointer + place, cute.make_layout(1))[0]
        if node.kind == "b":
            return value != 0
        if node.kind == "f":
            return Float32(value)
        return value if isinstance(value, Int64) else Int32(value)

    def __call__(self, s: Pair, m: Pair, g: Pair | None = None) -> list[Any]:
        """The roots for the scores s of columns m. g: the gradient of the weight, for a derivative."""

        def leaf(node: Expr) -> Any:
            if node.op in ("s", "g"):
                return s if node.op == "s" else g
            if node.op == "m":
                return each(Int64)(m) if self.program.wide else m
            if node.op == "scalar":
                return Pair(Int64(self.program.scalars[int(node.value or 0)]))
            if node.op == "aux":
                return self.loaded.get(node) or Pair(*(self.read(node, x) for x in m.lanes))
            return self.program.index(self.fixed[node.op])

        return emit(self.program.roots, self.program.mod.weight, leaf, self.program.fast)
