"""Instructions of a step by role, from the machine code of a kernel.

A step is the shortest way through the innermost loop that has all products of the loop (or all
accesses of tensor memory). So it is the way without masks. It is cut at the places where warps
wait, and `PARTS` names the pieces.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.kernels.cute_account import Binary, Instruction

PACKED = ("FFMA2", "FMUL2", "FADD2")
FLOAT = (*PACKED, "FFMA", "FMUL", "FADD", "IMAD")
OTHERS = re.compile("U[A-Z]|LDTM|STTM|LD|ST|BAR|BRA|SYNCS|FENCE|HGMMA|WARPGROUP|MUFU|NOP|S2|R2UR")


class Counts(NamedTuple):
    """Of one warp: instructions, special functions, clocks of the pipes of its scheduler."""

    issue: float = 0
    mufu: float = 0
    fma: float = 0  # 32 multiply-adds a clock
    alu: float = 0  # 16 comparisons, conversions or integer operations a clock

    def minus(self, other: "Counts") -> "Counts":
        return Counts(*(a - b for a, b in zip(self, other, strict=True)))


def name_of(x: Instruction) -> str:
    return x.opcode.split(".")[0]


def target(x: Instruction) -> int | None:
    found = re.search(r"0x([0-9a-f]+)\s*$", x.operands)
    return int(found[1], 16) if found and x.opcode.startswith("BRA") else None


def loops(code: Sequence[Instruction], kinds: Sequence[str]) -> list[list[Instruction]]:
    """All loops with instructions of all these kinds, the innermost first."""
    found = []
    for x in code:
        begin = target(x)
        # Waits try again behind the kernel, and come back by branches without a condition.
        if begin is not None and begin < x.address and conditional(x):
            body = [y for y in code if begin <= y.address <= x.address]
            if set(kinds) <= {name_of(y) for y in body}:
                found.append(body)
    return sorted(found, key=len)


def shortest(body: Sequence[Instruction], kinds: Sequence[str]) -> list[Instruction]:
    """The shortest of the ways with the most instructions of these kinds."""
    place = {x.address: i for i, x in enumerate(body)}
    best: list[tuple[int, int, int | None]] = [(0, 0, None)] * (len(body) + 1)
    for i in reversed(range(len(body))):
        x = body[i]
        to = place.get(target(x) or -1, -1)
        nexts = [] if x.opcode.startswith("BRA") and not conditional(x) and to > i else [i + 1]
        nexts += [to] if to > i else []
        wanted, cost, following = min((*best[j][:2], j) for j in nexts)
        best[i] = (wanted - (name_of(x) in kinds), cost + 1, following)
    way, i = [], 0
    while i < len(body):
        way.append(body[i])
        i = best[i][2]  # type: ignore[assignment]
    return way


def conditional(x: Instruction) -> bool:
    return x.guarded or bool(re.search(r"\bU?P\d", x.operands))


def counted(way: Sequence[Instruction]) -> Counts:
    names = [name_of(x) for x in way]
    fma = sum(1 + (x in PACKED) for x in names if x in FLOAT)
    alu = sum(2 for x in names if x not in FLOAT and not OTHERS.match(x))
    return Counts(len(names), names.count("MUFU"), fma, alu)


def cut(way: Sequence[Instruction], waits: str) -> list[Counts]:
    """The counts between instructions that match `waits`."""
    parts: list[list[Instruction]] = [[]]
    for x in way:
        parts[-1].append(x)
        if re.match(waits, x.opcode):
            parts.append([])
    return [counted(part) for part in parts]


def step(kernel: Binary, kinds: Sequence[str]) -> list[Instruction]:
    return shortest(loops(kernel.code, kinds)[0], kinds)


def tile(kernel: Binary, kinds: Sequence[str]) -> Counts:
    """Of a tile with one step, beside this step."""
    inner, *others = loops(kernel.code, kinds)
    outer = others[0] if others else kernel.code
    whole = counted(visible(shortest(outer, kinds)))
    return whole.minus(counted(visible(shortest(inner, kinds))))


def visible(way: Sequence[Instruction]) -> list[Instruction]:
    """Without the descriptors of products, which are computed while these products run."""
    products = [i for i, x in enumerate(way) if name_of(x) in ("HGMMA", "UTCHMMA")]
    hidden: set[int] = set()
    for first, second in itertools.pairwise(products):
        between = range(first + 1, second)
        if not any(re.match("WARPGROUP|BAR|SYNCS", way[i].opcode) for i in between):
            hidden |= {i for i in between if re.match("U|R2UR|MOV|IMAD|IADD|VIADD", way[i].opcode)}
    return [x for i, x in enumerate(way) if i not in hidden]


def begins(way: Sequence[Instruction]) -> Counts:
    """Up to the first product."""
    return counted(way[: next(i for i, x in enumerate(way) if name_of(x) == "HGMMA")])


def hopper_forward(kernel: Binary) -> dict[str, Counts]:
    """turn: from the turn to the first product; activate: between the scores and O; convert: P,
    after O; tile: of a tile, beside its steps.
    """
    way = visible(step(kernel, ["HGMMA"]))
    _, activate, convert = cut(way, r"WARPGROUP\.DEPBAR")
    taken = next(i for i, x in enumerate(way) if x.opcode.startswith("BAR.SYNC"))
    turn, rest = begins(way[taken:]), tile(kernel, ["HGMMA"]).minus(activate).minus(convert)
    return {"turn": turn, "activate": activate, "convert": convert, "tile": rest}


def hopper_backward(kernel: Binary) -> dict[str, Counts]:
    """weigh: until the turn; after: from there to dP; chain: from dP to dS; rest; tile: of a tile,
    beside its steps.
    """
    way = visible(step(kernel, ["HGMMA"]))
    weigh, *_ = cut(way, r"BAR\.SYNC")
    first, chain, *_ = cut(way, r"WARPGROUP\.DEPBAR|STSM")
    rest = counted(way).minus(first).minus(chain)
    # The last step of a tile is outside of the loop.
    outer = tile(kernel, ["HGMMA"]).minus(counted(way))
    parts = {"weigh": weigh, "after": first.minus(weigh), "chain": chain, "rest": rest}
    return parts | {"tile": outer}


def blackwell_forward(kernel: Binary) -> dict[str, Counts]:
    """The activation up to each of its four stores of weights, and what comes after the last."""
    parts = cut(step(kernel, ["LDTM", "STTM", "F2FP"]), "STTM")
    return {f"part{i}": x for i, x in enumerate(parts)}


def blackwell_backward(kernel: Binary) -> dict[str, Counts]:
    """weigh0, weigh1: until the parts of P are stored (keys side) or P is computed; chain: dS."""
    way = step(kernel, ["LDTM", "STTM"])
    parts = cut(way, r"SYNCS\.(ARRIVE|PHASECHK)")
    waits = [i for i, x in enumerate(way) if x.opcode.startswith("SYNCS.PHASECHK")]
    weigh, chain = counted(way[: waits[1]]), counted(way[waits[1] :])
    first = parts[1] if len(parts) > 4 else weigh
    return {"weigh0": first, "weigh1": weigh.minus(first), "chain": chain}
