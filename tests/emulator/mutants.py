"""Mutants of PTX: each changes one instruction that a correct kernel cannot do without.

All mutants of a kernel are translated at once, beside the instructions that they stand for; which
one runs is `Mutants.selected`. So a mutant costs one run, and no compilation.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from .homes import choose, register
from .ptx import Instruction, Kernel

SCRATCH = "%mutated"  # a register that no kernel has
END = "end"  # no mutant, but a question: does anything that matters follow a wait?
BARRIERS = ("bar.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "barrier.cluster.wait")
ORDERED = ("lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")
INTEGERS = ("s32", "u32", "s64", "u64", "s16", "u16")


@dataclass(frozen=True)
class Mutant:
    """kind: of the change; line: of the PTX; text: of the instruction that it changes."""

    number: int
    kind: str
    kernel: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind:8} {self.kernel[-24:]} line {self.line}: {self.text}"


@dataclass
class Mutants:
    """All mutants of the kernels that were added; 0 selects none.

    kinds: the ones to make, all if empty. reached: the numbers of those that stand where execution
    came by. ends: for each (kernel, line) of a wait the number that ends the warps there.
    """

    kinds: tuple[str, ...] = ()
    selected: int = 0
    reached: set[int] = field(default_factory=set)
    all: list[Mutant] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    _variants: dict[int, list[tuple[int, list[Instruction]]]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _kept: list[Kernel] = field(default_factory=list)  # the identities stay theirs

    def add(self, kernel: Kernel) -> None:
        self._kept.append(kernel)
        kernel.registers["mutated"] = 32
        masks = masking(kernel)
        for block in kernel.blocks:
            for instruction in block:
                for kind, changed in changes(instruction, masks):
                    if not self.kinds or kind in (*self.kinds, END):
                        self._record(kernel, kind, instruction, changed)

    def _record(self, kernel: Kernel, kind: str, old: Instruction, new: list[Instruction]) -> None:
        number = next(self._numbers)
        if kind == END:
            self.ends[kernel.name, old.line] = number
            self._variants.setdefault(id(old), []).append((number, new))
            return
        text = f"{old.opcode} {', '.join(old.operands)}"
        self.all.append(Mutant(number, kind, kernel.name, old.line, text))
        self._variants.setdefault(id(old), []).append((number, new))

    def variants(self, instruction: Instruction) -> list[tuple[int, list[Instruction]]]:
        """(number, what stands for the instruction when it is selected)."""
        return self._variants.get(id(instruction), [])


def changes(i: Instruction, masks: set[int]) -> Iterator[tuple[str, list[Instruction]]]:
    """(kind, replacement) of every mutant of an instruction."""

    def plain(opcode: str, *operands: str) -> Instruction:
        return Instruction(opcode, list(operands), None, False, i.line)

    def moved(opcode: str, position: int, amount: str) -> list[Instruction]:
        operands = list(i.operands)
        before = plain(opcode, SCRATCH, operands[position], amount)
        operands[position] = SCRATCH
        return [before, plain(i.opcode, *operands)]

    name = i.opcode
    if name.startswith("mbarrier.try_wait.parity"):
        yield "wait", [plain("mov.pred", i.operands[0], "-1")]
        yield "phase", moved("xor.b32", 2, "1")
        yield END, [plain("exit")]
    elif "expect_tx" in name:
        yield "bytes", moved("add.s32", len(i.operands) - 1, "16")
    elif name.startswith("mbarrier.init"):
        yield "count", moved("add.s32", 1, "1")
    elif name.startswith(("mbarrier.arrive", "cp.async.mbarrier")):
        yield "arrive", []
    elif name.startswith("tcgen05.commit"):
        yield "commit", []
    elif name.startswith(("fence.proxy.async", "fence.mbarrier_init")):
        yield "fence", []
    elif name.startswith(BARRIERS):
        yield "barrier", []
    elif name.startswith("mapa"):
        yield "peer", moved("xor.b32", 2, "1")
    elif name.startswith("tcgen05.wait::st"):
        yield "store", []
    elif name.startswith("tcgen05.fence"):
        yield "order", []
    elif name.startswith("cp.async.bulk.wait_group"):
        yield "drain", []
    elif id(i) in masks:
        if i.parts[-1] in ("s32", "u32"):
            yield "mask", moved("add.s32", 2, "1")
        yield "mask", [plain("mov.pred", i.operands[0].split("|")[0], "-1")]


def masking(kernel: Kernel) -> set[int]:
    """Identities of the comparisons of integers that guard a number or an access to global memory:
    tails and masks. A predicate counts that selects an f32 (not an index), guards an access, or
    guards a branch around one; and so do those that it is made of."""
    homes = choose(kernel)
    every = [i for block in kernel.blocks for i in block]
    wanted: set[str] = set()
    for i in every:
        if i.parts[0] == "selp" and homes.get(register(i.operands[0])) in ("f32", "f32x2"):
            wanted.add(register(i.operands[3]))
        elif i.guard and touches_memory(i):
            wanted.add(i.guard)
    for index, block in enumerate(kernel.blocks[:-1]):
        last = block[-1] if block else None
        if last and last.parts[0] == "bra" and last.guard:
            skips = kernel.labels[last.operands[0]] > index  # else it is the end of a loop
            if skips and any(touches_memory(i) for i in kernel.blocks[index + 1]):
                wanted.add(last.guard)
    growing = True
    while growing:
        before = len(wanted)
        for i in every:
            targets = [register(part) for part in i.operands[0].split("|")] if i.operands else []
            if wanted.intersection(targets):
                if i.opcode in ("and.pred", "or.pred", "xor.pred", "not.pred", "mov.pred"):
                    wanted.update(register(text) for text in i.operands[1:])
                elif i.parts[0] == "setp" and len(i.operands) > 3:
                    wanted.add(register(i.operands[3]))
        growing = len(wanted) > before
    return {id(i) for i in every if ordered(i) and register(i.operands[0].split("|")[0]) in wanted}


def touches_memory(i: Instruction) -> bool:
    return i.parts[0] in ("ld", "st", "red", "atom") and "global" in i.parts


def ordered(i: Instruction) -> bool:
    return i.parts[0] == "setp" and i.parts[1] in ORDERED and i.parts[-1] in INTEGERS
