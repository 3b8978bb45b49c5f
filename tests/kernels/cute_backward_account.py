"""`python -m tests.kernels.cute_backward_account`: what the machine code of the backward says.

Two tables for docs/blackwell.md (`--write` puts them there), one row for each side of each
configuration. The first: tensor-core and TMA instructions, registers, stack, shared memory. The
second: cycles that one step (128 resident rows against 128 streamed ones) costs each unit, and the
rate of both sides together if the busiest unit were always busy. Arithmetic on counted
instructions, not a measurement: nothing here has run on hardware.
"""

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.sm100.backward.shapes import Shapes
from gdpa_inductor.kernels.cute.sm100.config import COLS, ROWS, SIDES, Sm100Config
from tests.kernels.cute_account import (
    BYTES,
    CLOCK,
    CONFIGS,
    FMA,
    MUFU,
    PACKED,
    PROCESSORS,
    SCALAR,
    SCHEDULERS,
    TENSOR,
    publish,
    tool,
)

WARPS = 8  # that activate
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);")
SKIPPED = 8  # a branch over more instructions than this goes around code for tails


@dataclass(frozen=True)
class Instruction:
    """One line of machine code."""

    address: int
    guarded: bool
    opcode: str
    operands: str


@dataclass(frozen=True)
class Binary:
    """A compiled side."""

    code: list[Instruction]
    usage: dict[str, int]

    def count(self, opcode: str) -> int:
        return sum(x.opcode.startswith(opcode) for x in self.code)


def binary(config: Sm100Config, side: str) -> Binary:
    """Compiled for sm_100a; needs no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = replace(config, kernel=side)
        made = launch.compiled(kernel, f"--keep-cubin --dump-dir={folder}")
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.__cubin__)
        listing = tool("cuobjdump", "-sass", str(path))
        usage = tool("cuobjdump", "-res-usage", str(path))
    code = [
        Instruction(int(address, 16), bool(guard), opcode, operands)
        for address, guard, opcode, operands in LINE.findall(listing)
    ]
    numbers = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return Binary(code, numbers)


def step(code: list[Instruction]) -> Counter[str]:
    """Instructions of one warp for a step without tails: from the first load of scores to the last
    store of dS, less what a forward branch may skip."""
    first = next(i for i, x in enumerate(code) if x.opcode.startswith("LDTM"))
    last = max(i for i, x in enumerate(code) if x.opcode.startswith("STTM"))
    found, skip = Counter(), 0
    for one in code[first : last + 1]:
        if one.address < skip:
            continue
        found[one.opcode.split(".")[0]] += 1
        target = re.search(r"0x([0-9a-f]+)\s*$", one.operands)
        conditional = one.guarded or "UP" in one.operands
        if one.opcode.startswith("BRA") and conditional and target:
            place = int(target[1], 16)
            if one.address + 16 * SKIPPED < place <= code[last].address:
                skip = place
    return found


def cycles(config: Sm100Config, side: str, code: list[Instruction]) -> dict[str, float]:
    """What a step costs each unit."""
    a, b, ops = config.padded_head_dim, config.padded_value_dim, step(code)
    lanes = 32 * WARPS
    sums = a + b if side == "keys" else a
    return {
        "tensor": 2 * ROWS * COLS * (a + b + sums) / TENSOR,
        "MUFU": ops["MUFU"] * lanes / MUFU,
        "FMA": (2 * sum(ops[x] for x in PACKED) + sum(ops[x] for x in SCALAR)) * lanes / FMA,
        "issue": sum(ops.values()) * WARPS / SCHEDULERS,
        # Both score products read both operands, a sum one of them; TMA writes the streamed ones.
        "shared": 2 * ((ROWS + COLS) * (a + b) + COLS * sums + COLS * (a + b)) / BYTES,
    }


def shared_memory(config: Sm100Config) -> float:
    """KiB of tiles."""
    shapes = Shapes(config, keys=True)
    return sum(2 * ROWS * (1 + shapes.rings[x]) * shapes.widths[x] for x in "AB") / 1024


def tables() -> str:
    """Both, as Markdown."""
    code = [
        "| kernel, side | tcgen05.mma | TMA loads | registers | stack | shared memory |",
        "|" + "---|" * 6,
    ]
    unit = [
        "| kernel, side | tensor | MUFU | FMA | issue | shared | bound | TFLOP/s at most |",
        "|" + "---|" * 8,
    ]
    for name, config in CONFIGS.items():
        total = 0.0
        for side in SIDES:
            made = binary(config, side)
            stack = made.usage["STACK"] + made.usage["LOCAL"]
            code.append(
                f"| {name}, {side} | {made.count('UTCHMMA')} | {made.count('UTMALDG')} "
                f"| {made.usage['REG']} | {stack} | {shared_memory(config):.0f} KiB |"
            )
            found = cycles(config, side, made.code)
            bound = max(found, key=lambda x: found[x])
            total += found[bound]
            # Five products, as published figures count a backward.
            flops = 2 * ROWS * COLS * (3 * config.head_dim + 2 * config.value_dim)
            rate = f"{flops / total * PROCESSORS * CLOCK / 1e12:.0f}" if side == "rows" else ""
            numbers = " | ".join(f"{x:.0f}" for x in found.values())
            unit.append(f"| {name}, {side} | {numbers} | {bound} | {rate} |")
            print(code[-1], unit[-1], sep="\n", flush=True)
    return "\n".join([*code, "", *unit])


if __name__ == "__main__":
    publish(tables, "backward account", __doc__)
