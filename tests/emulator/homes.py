"""Which kind each register is held in: the one that most of its definitions and uses ask for.

Moves ask for nothing; a register that only they touch takes the kind of what it is moved from or
to.
"""

import re
from collections import Counter, defaultdict

from . import kinds
from .ptx import Instruction, Kernel, identifier, split_operands
from .rules import rule_for

PASSES = 3  # over the moves: chains of them are short
MOVES = ("mov", "selp", "shfl", "ld", "st")


def register(text: str) -> str:
    return identifier(text.strip().lstrip("!"))


def choose(kernel: Kernel) -> dict[str, str]:
    """Register to kind."""
    votes: dict[str, Counter] = defaultdict(Counter)
    links: list[tuple[str, str]] = []
    for block in kernel.blocks:
        for instruction in block:
            for text, kind, weight in wishes(instruction):
                votes[register(text)][kind] += weight
            links += [(register(a), register(b)) for a, b in moves(instruction)]
    width = kernel.registers
    homes = {
        name: votes[name].most_common(1)[0][0]
        for name in width
        if votes[name] and width[name] > 1 and fits(votes[name].most_common(1)[0][0], width[name])
    }
    for _ in range(PASSES):
        for a, b in links:
            for one, other in ((a, b), (b, a)):
                if one in width and one not in homes and other in homes:
                    if kind := related(homes[other], width[one]):
                        homes[one] = kind
    return {name: homes.get(name, kinds.PLAIN[bits]) for name, bits in width.items()}


def fits(kind: str, bits: int) -> bool:
    pair = kind == "f32x2"
    return 8 * kinds.DTYPES[kind].itemsize * (1 + pair) == max(bits, 16)


def related(kind: str, bits: int) -> str | None:
    """The kind, of this width, of a register that is moved from or to one of `kind`."""
    if fits(kind, bits):
        return kind
    halves = {("f32x2", 32): "f32", ("f32", 64): "f32x2"}
    return halves.get((kind, bits))


def wishes(instruction: Instruction) -> list[tuple[str, str, int]]:
    """(operand, kind, weight)."""
    parts, operands = instruction.parts, instruction.operands
    if rule := rule_for(parts, len(operands)):
        wanted = zip(operands, (rule.out, *rule.ins), strict=True)
        return [(text, kind, 2 - bool(i)) for i, (text, kind) in enumerate(wanted)]
    if parts[0] == "setp":
        kind = kinds.PTX.get(parts[-1], "u32")
        return [(text, kind, 1) for text in operands[1:3]]
    if parts[0] == "cvt":
        out, source = (kinds.PTX.get(part) for part in parts[-2:])
        return [(operands[0], out, 2), (operands[1], source, 1)] if out and source else []
    if parts[:2] == ["wgmma", "mma_async"]:
        return [(text, "f32", 1) for text in members(operands[0])]
    if parts[0] in ("selp", "ld", "st", "atom", "red") and parts[-1] == "f32":
        names = [text for text in operands if not text.startswith("[")]
        return [(text, "f32", 1) for group in names for text in members(group)[:3]]
    return []


def moves(instruction: Instruction) -> list[tuple[str, str]]:
    if instruction.parts[0] not in ("mov", "selp") or instruction.parts[-1] in ("pred", "f32"):
        return []
    sources = instruction.operands[1:3]
    return [
        (target, source)
        for target in members(instruction.operands[0])
        for text in sources
        for source in members(text)
    ]


def members(text: str) -> list[str]:
    """The registers of `{a, b}`, or the one that the text is."""
    match = re.fullmatch(r"\{(.*)\}", text.strip(), flags=re.S)
    return split_operands(match.group(1)) if match else [text]
