"""The score program inside a kernel: evaluate its terms, and read its aux operands.

A kernel has a pointer and strides for each aux operand. The access map of the operand says what
indexes it: indices of the score ("b", "h", "q_idx", "kv_idx"), or "q" and "k", which are rows of a
jagged matrix. An operand that does not vary along the keys is read once for each query.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ...program.elements import of_elements
from ...program.expr import Expr, postorder
from ...program.integers import wide
from .config import LETTERS, KernelConfig
from .emit import values_of, written
from .operands import KernelArguments
from .places import unchecked
from .values import Fixed, Pair, Table, each, smaller


class Program(Fixed):
    """The terms `roots` of a score program, by default the weight, for any score.

    on_full: The program runs only on tiles for which the condition of `places.unchecked` holds.
    """

    def __init__(
        self,
        config: KernelConfig,
        x: KernelArguments,
        roots: Sequence[Expr] = (),
        on_full: bool = False,
    ) -> None:
        self.mod, self.aux, self.scalars = config.mod, x.aux, x.scalars
        self.vectors, self.dtypes = config.vectors, config.aux
        self.roots = tuple(roots or (self.mod.weight,))
        self.written = written(self.roots, self.mod.weight, config.fast)
        self.nodes = list(postorder(self.roots))
        self.wide = wide(self.roots)
        self.lookups = {x.number: x for x in config.lookups}
        self.unchecked = unchecked(config, always=not on_full).tables
        # Without checks that tiles decide about.
        self.saves_checks = self.unchecked != unchecked(config, always=True).tables
        # The compiler adds constants to an address without an instruction if the place has the
        # 64 bits of an address. It does not where a narrower sum might wrap.
        self.far = on_full and bool(self.unchecked)

    def index(self, value) -> Pair:
        """A position as an integer of the program: 64 bits if the program multiplies integers."""
        pair = value if isinstance(value, Pair) else Pair(value)
        return each(Int64)(pair) if self.wide or self.far else each(Int32)(pair)

    def position(self, value):
        """A position to which constants will be added."""
        return Int64(value) if self.far else value

    def access(self, node: Expr) -> tuple[str, ...]:
        return self.mod.aux[node.value].access

    def place(self, number: int, places: dict[str, Any]):
        """A pointer to the element of an operand, or to the first element of a table."""
        return address(self.aux[number], self.mod.aux[number].access, places)

    def read(self, node: Expr, places: dict[str, Any]):
        """The element, or the pointer to the first element of a table."""
        place = self.place(node.value, places)
        return place if node.kind == "t" else self.of_kind(node, element(place))

    def of_kind(self, node: Expr, value):
        """A loaded element, in the type that the node has."""
        return of_kind(node, widened(value, self.dtypes[node.value]), self.wide)

    def evaluate(self, leaves: dict[str, Any], operand) -> list[Any]:
        """The values of the roots, from those of s, g and the indices, by name.

        operand: Gives the value of an aux node, or of a node of its bounds.
        """

        def leaf(node: Expr):
            if node.kind == "t":
                return self.table(node.value, operand(node))
            if node.op.startswith("aux"):
                return operand(node)
            if node.op == "scalar":
                return Pair(Int64(self.scalars[node.value]))
            return self.index(leaves[node.op]) if node.kind == "i" else leaves[node.op]

        return values_of(self.written, leaf)

    def table(self, number: int, source):
        """source: Pointers to the first element, or a table that a kernel has copied."""
        if not isinstance(source, Pair):
            return source
        return Table(source, self.lookups[number], number in self.unchecked)


def with_elements(programs: Sequence[Program], tables: Iterable[int]) -> dict[int, Expr]:
    """Have programs look up functions of the elements of copied tables: those that it returns."""
    # (`elements.of_elements`)
    roots, functions = of_elements([x for y in programs for x in y.written], set(tables))
    for program in programs:
        count = len(program.written)
        program.written, roots = roots[:count], roots[count:]
    return functions


def address(operand, access: Iterable[str], places: Mapping[str, Any]):
    """A pointer to the element of an operand, (pointer, strides), that the letters in `access`
    index.
    """
    pointer, strides = operand
    place = Int64(0)
    for letter, stride in zip(LETTERS, strides, strict=True):
        if letter in access and letter in places:
            place += Int64(places[letter]) * Int64(stride)
    return pointer + place


def element(place):
    return cute.make_tensor(place, cute.make_layout(1))[0]


def widened(value, dtype: str):
    """A loaded element. CuTe loads uint8 with a sign, so the sign is masked off."""
    return Int32(value) & 0xFF if dtype == "uint8" else value


def of_kind(node: Expr, value, wide: bool = False):
    """An element as bool, Float32 or an integer. wide: Integers have 64 bits."""
    if node.kind == "b":
        return value != 0
    if node.kind == "f":
        return Float32(value)
    return value if isinstance(value, Int64) else (Int64 if wide else Int32)(value)


class Row(Fixed):
    """A program for one query, `q_idx` of a tile's sequence. Calling it gives the roots."""

    def __init__(self, program: Program, tile, q_idx) -> None:
        self.program, self.tile = program, tile
        row = smaller(q_idx, tile.q_rows - 1)  # past the end it only has to be a readable address
        self.fixed = {"b": tile.batch, "h": tile.head, "q_idx": q_idx}
        self.places = {**self.fixed, "q_idx": row, "q": tile.q_start + row}
        self.loaded = {
            node: Pair(program.read(node, self.places))
            for node in program.nodes
            if node.op == "aux" and not {"kv_idx", "k"} & set(program.access(node))
        }

    def fetch(self, column, count: int, excluded: Iterable[int | None] = ()) -> dict[Expr, Any]:
        """Load operands whose keys are contiguous, for `count` existing keys from `column` on."""
        loads = {}
        wanted = self.program.vectors - set(excluded)
        for node in self.program.nodes:
            if node.op == "aux" and node.value in wanted:
                start = self.program.place(node.value, self.places) + column
                align = min(16, count * start.dtype.width // 8)
                source = cute.make_ptr(
                    start.dtype, start.toint(), cute.AddressSpace.gmem, assumed_align=align
                )
                loads[node] = cute.make_rmem_tensor(count, start.dtype)
                cute.autovec_copy(cute.make_tensor(source, cute.make_layout(count)), loads[node])
        return loads

    def __call__(
        self, s: Pair, kv_idx: Pair, fetched=None, at: int = 0, values=MappingProxyType({})
    ) -> list[Any]:
        """The roots for two scores. fetched, at: The result of `fetch`, and where in it the first
        of the two keys is. values: Those of aux operands for these scores, by number.
        """

        def one(node: Expr, kv_idx):
            column = smaller(kv_idx, self.tile.k_rows - 1)
            return self.program.read(
                node, {**self.places, "kv_idx": column, "k": self.tile.k_start + column}
            )

        def operand(node: Expr) -> Pair:
            number = node.value
            if number in values:
                return values[number]
            if fetched and node in fetched:
                return Pair(
                    *(self.program.of_kind(node, fetched[node][at + lane]) for lane in range(2))
                )
            return self.loaded.get(node) or Pair(*(one(node, x) for x in kv_idx.lanes))

        return self.program.evaluate({**self.fixed, "s": s, "kv_idx": kv_idx}, operand)


class ProgramLine(Fixed):
    """The program in a backward, for resident row `row` of a tile and query head `turn`.

    A thread has one resident row, and streamed rows pass by. The roots are the slope ∂P/∂S and, on
    the keys side, the weight P. Both are evaluated in one pass, so that common terms are computed
    once. The slope does not depend on dP, which may still be in the making: dS = dP · slope is
    computed later.
    """

    def __init__(self, program: Program, walk, tile, turn, row) -> None:
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
                self.lines[node] = program.place(node.value, places)
            elif node.op == "aux":
                self.loaded[node] = Pair(program.read(node, places))

    def read(self, node: Expr, index):
        """What `Program.read` gives, at streamed row `index`."""
        if node.kind == "t":
            place, _ = self.walked(node, smaller(index, self.tile.length - 1))
            return place
        return self.program.of_kind(node, self.element(node, index))

    def element(self, node: Expr, index):
        """The element as it is stored.

        All threads of a warp have the same offset, so a thread needs one addition for its address.
        """
        place, _ = self.walked(node, smaller(index, self.tile.length - 1))
        return element(place)

    def walked(self, node: Expr, index) -> tuple[Any, Any]:
        """(pointer to the element at streamed row `index`, stride to the next). The row exists."""
        strides = dict(zip(LETTERS, self.program.aux[node.value][1], strict=True))
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
            number = node.value
            if number in values:
                return values[number]
            return self.loaded.get(node) or Pair(*(self.read(node, x) for x in indices.lanes))

        return self.program.evaluate({**self.fixed, self.runs: indices, "s": scores}, operand)
