"""Aux operands that a backward reads from global memory for each step, without TMA.

Some have a number for each score, but another dtype than the matrices, such as a mask or a bias in
fp32. A thread fetches all that it needs for a step at once. If it read each number where it is
used, it would wait several times, and the addresses would take more registers than there are.

The gradient of row sums has a number for each query. A warp fetches it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, cute

from .....program.expr import POSITIONS, Expr, aux
from ...backward.roots import RowGradient
from ...config import KernelConfig
from ...operands import KernelArguments
from ...program import Program, ProgramLine, element, widened
from ...ranges import LANES
from ...values import Bytes, Fixed, Pair, add, multiply, select
from ..wgmma import swizzled

# How many numbers share a word. So they take fewer registers.
TOGETHER = {"bool": 16, "uint8": 4}


@dataclass
class RegisterOperand(Fixed):
    """The numbers of such an operand for one step, in registers, some `TOGETHER` in a word."""

    node: Expr
    program: Program
    S: Any  # the scores of a thread

    def __post_init__(self) -> None:
        self.count = cute.size(self.S)
        self.dtype = self.program.aux[self.node.value][0].dtype
        self.stored = self.program.dtypes[self.node.value]
        self.together = TOGETHER.get(self.stored, 1)
        kind = self.dtype if self.together == 1 else Int32
        self.registers = cute.make_rmem_tensor(-(-self.count // self.together), kind)
        self.bits = 1 if self.stored == "bool" else 8  # of a number in a word

    def take(self, lines: Sequence[ProgramLine], first) -> None:
        """Fetch the numbers of a query tile. lines: The program for both keys of the thread."""
        # Past the end of the tile they may be any numbers.
        places = ((lines[r // 2 % 2], first + r // 4 * 8 + r % 2) for r in range(self.count))
        self.keep([line.element(self.node, index) for line, index in places])

    def take_whole(self, lines: Sequence[ProgramLine], first) -> None:
        """The same for a query tile that ends within its sequence. It needs fewer registers."""
        numbers: list[Any] = [None] * self.count
        for half, line in enumerate(lines):
            place, step = line.walked(self.node, first)
            for r in range(2 * half, self.count, 4):
                for lane in range(2):
                    numbers[r + lane] = element(place + lane * step)
                place = place + 8 * step
        self.keep(numbers)

    def keep(self, numbers: Sequence[Any]) -> None:
        if self.together == 1:
            for r, value in enumerate(numbers):
                self.registers[r] = value
            return
        for word in range(cute.size(self.registers)):
            bits, first = Int32(0), word * self.together
            for place, value in enumerate(numbers[first : first + self.together]):
                narrow = widened(value, self.stored) if self.bits > 1 else Int32(value != 0)
                bits = bits | (narrow << (place * self.bits))
            self.registers[word] = bits

    def pair(self, r: int) -> Pair:
        lanes = Pair(*(self.number(r + lane) for lane in range(2)))
        if self.stored != "uint8":
            return lanes
        return Bytes(lanes, self.registers[r // self.together], r % self.together)

    def number(self, r: int):
        word, place = self.registers[r // self.together], r % self.together * self.bits
        if self.together == 1:
            return self.program.of_kind(self.node, word)
        if self.bits == 1:
            return (word & Int32(1 << place)) != 0
        return self.program.of_kind(self.node, word >> place)  # which masks the others off


@dataclass
class TiledIntegers(RegisterOperand):
    """Integers that TMA has loaded to shared memory in tiles of queries × keys.

    A thread has two keys. So it reads number by number.
    """

    begin: Any  # of the buffers, in bytes
    rows: int  # of a tile
    size: int  # bytes from one buffer to the next
    query: Any  # the first query and the first key of the thread in the tile
    key: Any

    def fetch(self, stage) -> None:
        begin = self.begin + stage * self.size
        places = (
            (self.query + r // 4 * 8 + r % 2, self.key + r // 2 % 2 * 8) for r in range(self.count)
        )
        self.keep([self.at(begin, query, key) for query, key in places])

    def at(self, begin, query, key):
        byte = key * (self.dtype.width // 8)
        # A swizzle is 128 bytes wide.
        block = (byte >> 7) * (self.rows * 128)
        place = begin + (block + swizzled(query, byte & 127, 128))
        return element(cute.recast_ptr(place, None, self.dtype))


class RowGradients(Fixed):
    """The gradients of the row sums of a query tile. Lane l of each warp has those of the queries
    l, l + 32, ...
    """

    def __init__(
        self, config: KernelConfig, x: KernelArguments, gradient: RowGradient, rows: int
    ) -> None:
        assert gradient.ratio is not None
        self.leaf = aux(gradient.number, "f")
        self.program = Program(config, x, [self.leaf])
        self.ratio = Program(config, x, [gradient.ratio])
        self.values = cute.make_rmem_tensor(rows // LANES, Float32)

    def fetch(self, walk, tile, turn, first) -> None:
        """Fetch those of the query tile from `first` on. Past the end of a sequence they are 0."""
        line = ProgramLine(self.program, walk, tile, turn, tile.first)
        for number in range(cute.size(self.values)):
            index = first + cute.arch.lane_idx() + number * LANES
            value = Float32(line.element(self.leaf, index))
            self.values[number] = select(index < tile.length, value, 0.0)

    def add_to(self, dP, P, column) -> None:
        """Add them to dP, times the ratio. column: The first query of the thread."""
        weights = cute.make_tensor(P.iterator, cute.make_layout(cute.size(dP)))
        for group in range(cute.size(dP) // 4):
            lanes = (group % 4 * 8 + column + i for i in range(2))
            own = Pair(*(cute.arch.shuffle_sync(self.values[group // 4], x) for x in lanes))
            for r in (4 * group, 4 * group + 2):
                weight = Pair(Float32(weights[r]), Float32(weights[r + 1]))
                (ratio,) = self.ratio.evaluate({"g": weight}, None)
                sums = add(Pair(dP[r], dP[r + 1]), multiply(own, ratio))
                dP[r], dP[r + 1] = sums.lanes


def register_operands(program: Program, tiled: int | None) -> list[Expr]:
    """The operands to fetch at once for all scores of a step.

    They have an element of at most 32 bits for each score. They are the first that has numbers, and
    all that have truth values. tiled: The operand that TMA loads is not among them.
    """

    def qualifies(node: Expr) -> bool:
        if node.op != "aux" or node.kind == "t" or node.value == tiled:
            return False
        narrow = program.aux[node.value][0].dtype.width <= 32
        return narrow and set(program.access(node)) >= POSITIONS

    nodes = list(filter(qualifies, program.nodes))
    numbers = [node for node in nodes if node.kind != "b"]
    return numbers[:1] + [node for node in nodes if node.kind == "b"]
