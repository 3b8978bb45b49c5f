"""Aux operands that a backward reads from global memory for each score, without TMA.

They have another dtype than the matrices, such as a mask or a bias in fp32. A thread fetches all
that it needs for a step at once. If it read each number where it is used, it would wait several
times, and the addresses would take more registers than there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Int32, cute

from .....program.expr import POSITIONS, Expr
from ...program import Program, ProgramLine, element
from ...values import Fixed, Pair

BITS = 16  # truth values in a word


@dataclass
class RegisterOperand(Fixed):
    """The numbers of such an operand for one step, in registers. Truth values are kept as bits."""

    node: Expr
    program: Program
    S: Any  # the scores of a thread

    def __post_init__(self) -> None:
        self.count = cute.size(self.S)
        self.dtype = self.program.aux[self.node.value][0].dtype
        size, kind = (-(-self.count // BITS), Int32) if self.bits else (self.count, self.dtype)
        self.registers = cute.make_rmem_tensor(size, kind)

    @property
    def bits(self) -> bool:
        return self.node.kind == "b"

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
        if not self.bits:
            for r, value in enumerate(numbers):
                self.registers[r] = value
            return
        for word in range(cute.size(self.registers)):
            bits = Int32(0)
            for place, value in enumerate(numbers[word * BITS : (word + 1) * BITS]):
                bits = bits | (Int32(value != 0) << place)
            self.registers[word] = bits

    def pair(self, r: int) -> Pair:
        if self.bits:
            word = self.registers[r // BITS]
            return Pair(*((word & Int32(1 << (r % BITS + lane))) != 0 for lane in range(2)))
        return Pair(
            *(self.program.of_kind(self.node, self.registers[r + lane]) for lane in range(2))
        )


def register_operands(program: Program, tiled: int | None) -> list[Expr]:
    """The operands to fetch at once for all scores of a step.

    They have an element of at most 32 bits for each score. They are the first that has numbers, and
    all that have truth values. tiled: The operand that TMA loads is not among them.
    """

    def qualifies(node: Expr) -> bool:
        if node.op != "aux" or node.value == tiled:
            return False
        narrow = program.aux[node.value][0].dtype.width <= 32
        return narrow and set(program.access(node)) >= POSITIONS

    nodes = list(filter(qualifies, program.nodes))
    numbers = [node for node in nodes if node.kind != "b"]
    return numbers[:1] + [node for node in nodes if node.kind == "b"]
