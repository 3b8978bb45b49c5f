"""`python -m tests.kernels.cute_account`: what the machine code of the Blackwell kernels says.

Two tables for docs/blackwell.md (`--write` puts them there), for the forward and for each kernel of
the backward: those of a side, and that of both, which is one of a pair of CTAs at wide heads. The
first: tensor-core and TMA instructions, registers, stack, shared memory. The second: cycles that a
step costs each unit, the greatest of which bounds the kernel. A step is one key block of two query
tiles, or two of one; in the backward, 128 resident rows against 128 streamed ones, and the rate is
of all gradients. It is arithmetic on counted instructions, not a measurement: nothing here has run
on hardware.
"""

import argparse
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.compiler import compile_kernel, example
from gdpa_inductor.kernels.cute.config import KernelConfig
from gdpa_inductor.kernels.cute.sm100.backward.shapes import Shapes
from gdpa_inductor.kernels.cute.sm100.config import BOTH, COLS, ROWS, SIDES, Sm100Config
from gdpa_inductor.kernels.cute.sm100.costs import ADDED
from tests.emulator.disk_cache import cached
from tests.emulator.recording import linked

from .fake_cuda import tool

DOCS = Path(__file__).parents[2] / "docs" / "blackwell.md"
SILU, GELU = "silu(mul(s,0.088))", "gelu_tanh(mul(s,0.088))"
RELU2 = "mul(relu(mul(s,0.088)),relu(mul(s,0.088)))"
CAUSAL = "where(ge(q_idx,kv_idx),sigmoid(s),0.0)"
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.088),a0))"
CONFIGS = {
    "silu, D 128": Sm100Config("bfloat16", 128, 128, SILU),
    "silu, D 128, fp16": Sm100Config("float16", 128, 128, SILU),
    "silu, D 64": Sm100Config("bfloat16", 64, 64, SILU),
    "silu, D 96, Dv 64": Sm100Config("bfloat16", 96, 64, SILU),
    "tanh-gelu, D 128": Sm100Config("bfloat16", 128, 128, GELU),
    "tanh-gelu, D 64": Sm100Config("bfloat16", 64, 64, GELU),
    "relu², D 128": Sm100Config("bfloat16", 128, 128, RELU2),
    "relu², D 64": Sm100Config("bfloat16", 64, 64, RELU2),
    "causal sigmoid, D 128": Sm100Config("bfloat16", 128, 128, CAUSAL),
    "causal sigmoid, D 64": Sm100Config("bfloat16", 64, 64, CAUSAL),
    "silu + bias (bf16), D 128": Sm100Config(
        "bfloat16", 128, 128, BIAS, ("bfloat16",), vectors=frozenset([0])
    ),
    "silu + bias by elements, D 128": Sm100Config("bfloat16", 128, 128, BIAS, ("bfloat16",)),
    "silu + bias (bf16), D 64": Sm100Config(
        "bfloat16", 64, 64, BIAS, ("bfloat16",), vectors=frozenset([0])
    ),
    "silu, D 32": Sm100Config("bfloat16", 32, 32, SILU),
    "jagged silu, D 128": Sm100Config("bfloat16", 128, 128, SILU, (), True, True),
    "jagged silu, D 64": Sm100Config("bfloat16", 64, 64, SILU, (), True, True),
    "short keys, silu, D 128": Sm100Config("bfloat16", 128, 128, SILU, (), True, False),
    "seeds, silu, D 128": Sm100Config(
        "bfloat16", 128, 128, SILU, (), False, True, shared=frozenset("q")
    ),
}  # fmt: skip
# Forwards at head dims above 128, which have no backward:
WIDE = {
    "silu, D 256": Sm100Config("bfloat16", 256, 256, SILU),
    "silu, D 192": Sm100Config("bfloat16", 192, 192, SILU),
    "silu, D 192, Dv 128": Sm100Config("bfloat16", 192, 128, SILU),
    "jagged silu, D 192, Dv 128": Sm100Config("bfloat16", 192, 128, SILU, (), True, True),
    "causal sigmoid, D 192, Dv 128": Sm100Config("bfloat16", 192, 128, CAUSAL),
    "silu + bias by elements, D 192, Dv 128": Sm100Config(
        "bfloat16", 192, 128, BIAS, ("bfloat16",)
    ),
    "silu, D 64, Dv 256": Sm100Config("bfloat16", 64, 256, SILU),
    "tanh-gelu, D 224, fp16": Sm100Config("float16", 224, 224, GELU),
    "causal sigmoid, D 256": Sm100Config("bfloat16", 256, 256, CAUSAL),
    "silu + bias (bf16), D 256": Sm100Config(
        "bfloat16", 256, 256, BIAS, ("bfloat16",), vectors=frozenset([0])
    ),
    "silu + bias by elements, D 256": Sm100Config("bfloat16", 256, 256, BIAS, ("bfloat16",)),
    "jagged silu, D 256": Sm100Config("bfloat16", 256, 256, SILU, (), True, True),
}

# Of one B200 multiprocessor, per clock.
TENSOR = 8192  # bf16 operations
MUFU = 16  # special functions
FMA = 128  # fp32 multiply-adds; a packed instruction is two
BYTES = 128  # of shared memory
SCHEDULERS = 4  # each issues one instruction of a warp
CLOCK, PROCESSORS = 1.85e9, 148
PACKED = ("FFMA2", "FMUL2", "FADD2")
SCALAR = ("FFMA", "FMUL", "FADD", "IMAD")
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
    """A compiled kernel: its machine code, registers and stack, shared memory in bytes."""

    code: list[Instruction]
    usage: dict[str, int]
    shared: int

    @property
    def opcodes(self) -> list[str]:
        return [x.opcode for x in self.code]

    def count(self, opcode: str) -> int:
        return sum(x.opcode.startswith(opcode) for x in self.code)

    @property
    def stack(self) -> int:
        return self.usage["STACK"] + self.usage["LOCAL"]

    @property
    def spills(self) -> int:
        """Instructions that move a register to memory, or back."""
        return self.count("STL") + self.count("LDL")

    def before(self, opcode: str) -> "Binary":
        """The same up to the first instruction of that kind."""
        first = next(i for i, x in enumerate(self.code) if x.opcode.startswith(opcode))
        return replace(self, code=self.code[:first])


def binary(config: KernelConfig) -> Binary:
    """Compiled for its architecture; needs no GPU."""

    def compiled() -> Binary:
        kernel, arguments = launch.kernel_of(config), example(config)

        def compile_with(options: str) -> Any:
            return compile_kernel(kernel, arguments, config.arch, options)

        return disassembled(compile_with, lambda: kernel.memory.size_in_bytes())

    return cached(compiled, "binary", config)


def backward_binary(config: Sm100Config, side: str) -> Binary:
    """A kernel of the backward of Blackwell; needs no GPU."""
    kernel = replace(config, kernel=side)
    compiled = lambda: disassembled(lambda options: launch.compiled(kernel, options))
    return cached(compiled, "backward binary", kernel)


def disassembled(
    compile_with: Callable[[str], Any], shared: Callable[[], int] = lambda: 0
) -> Binary:
    """Of a kernel as a function of compiler options. shared: its bytes, once it is compiled."""
    # A folder of its own: names of dumped files are cut, and other tests dump at the same time.
    # Linked as the emulator's kernels are: else none of these could run in this process.
    with tempfile.TemporaryDirectory() as folder, linked():
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compile_with(f"--keep-cubin --dump-dir={folder}").__cubin__)
        listing = tool("cuobjdump", "-sass", str(path))
        usage = tool("cuobjdump", "-res-usage", str(path))
    code = [
        Instruction(int(address, 16), bool(guard), opcode, operands)
        for address, guard, opcode, operands in LINE.findall(listing)
    ]
    numbers = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return Binary(code, numbers, shared())


def block(opcodes: list[str]) -> Counter[str]:
    """Instructions of one warp for one key block without masks: from the first load of scores to
    the last store of weights in the variant that comes first and is the shorter one."""
    loads = [i for i, x in enumerate(opcodes) if x.startswith("LDTM")]
    stores = [i for i, x in enumerate(opcodes) if x.startswith("STTM")]
    spans = [opcodes[loads[4 * i] : stores[4 * i + 3] + 1] for i in range(len(stores) // 4)]
    return Counter(x.split(".")[0] for x in min(spans, key=len))


def step(code: list[Instruction]) -> Counter[str]:
    """Instructions of one warp for a step of the backward without tails: from the first load of
    scores to the last store of dS, less what a forward branch may skip."""
    first = next(i for i, x in enumerate(code) if x.opcode.startswith("LDTM"))
    last = max(i for i, x in enumerate(code) if x.opcode.startswith("STTM"))
    counts, skip = Counter(), 0
    for one in code[first : last + 1]:
        if one.address < skip:
            continue
        counts[one.opcode.split(".")[0]] += 1
        target = re.search(r"0x([0-9a-f]+)\s*$", one.operands)
        conditional = one.guarded or "UP" in one.operands
        if one.opcode.startswith("BRA") and conditional and target:
            place = int(target[1], 16)
            if one.address + 16 * SKIPPED < place <= code[last].address:
                skip = place
    return counts


def cycles(operations: Counter[str], products: int, shared: float) -> dict[str, float]:
    """What a step costs each unit. products: sum of the widths of its products. shared: the bytes
    that it moves through shared memory."""
    lanes = 32 * WARPS
    scalar, packed = (sum(operations[x] for x in kind) for kind in (SCALAR, PACKED))
    return {
        "tensor": 2 * ROWS * COLS * products / TENSOR,
        "MUFU": operations["MUFU"] * lanes / MUFU,
        "FMA": (2 * packed + scalar) * lanes / FMA,
        "issue": sum(operations.values()) * WARPS / SCHEDULERS,
        "shared": shared / BYTES,
    }


def forward_cycles(config: Sm100Config, kernel: Binary) -> dict[str, float]:
    """Of one key block of both query tiles, or of two key blocks of one query tile."""
    d, dv = config.query_width, config.padded_value_dim
    # Each tile of scores reads both operands of S = Q Kᵀ, and V. K and V are written once.
    blocks = 2 // config.tiles
    moved = 2 * 2 * (ROWS * d + COLS * d + COLS * dv) + blocks * 2 * COLS * (d + dv)
    return cycles(block(kernel.opcodes), 2 * (d + dv), moved)


def backward_cycles(config: Sm100Config, side: str, kernel: Binary) -> dict[str, float]:
    shapes = Shapes(config.side(side, None))
    (a, b), ctas = shapes.widths.values(), shapes.ctas
    sums = a if side == "rows" else a + b
    # Both score products read both operands, a sum one of them; TMA writes the streamed ones. A
    # pair of CTAs shares what streams. TMA writes it twice: half of the rows, half of the columns.
    streamed = COLS * (a + b)
    moved = 2 * (ROWS * (a + b) + (streamed + COLS * sums) // ctas + streamed)
    if side != BOTH:
        return {**cycles(step(kernel.code), a + b + sums, moved), "adds": 0.0}
    # dS is written, and read with K. dQ is written in fp32, and read by the copy that adds it.
    dq = 4 * shapes.height * a
    moved += 2 * (2 * ROWS * COLS + COLS * a) + 2 * dq
    return {**cycles(step(kernel.code), a + b + sums + a, moved), "adds": dq / ADDED}


def shared_memory(config: Sm100Config, side: str) -> int:
    """Bytes of tiles of the backward."""
    shapes = Shapes(config.side(side, None))
    tiles = sum(2 * math.prod(shapes.tile(x)) * shapes.buffers_of(x) for x in shapes.names)
    more = 2 * ROWS * COLS + 4 * shapes.height * config.head_dim * shapes.rings["copies"]
    return tiles + more if side == BOTH else tiles


Row = tuple[str, Binary, dict[str, float], str]


def table(first: str, rows: Iterable[Row]) -> str:
    """Two tables in Markdown. first: the head of their first column."""
    code = [f"| {first} | tcgen05.mma | TMA loads | registers | stack | shared memory |"]
    code.append("|" + "---|" * 6)
    unit: list[str] = []
    for name, kernel, costs, rate in rows:
        if not unit:
            unit.append(f"| {first} | {' | '.join(costs)} | bound | TFLOP/s at most |")
            unit.append("|" + "---|" * (len(costs) + 3))
        code.append(
            f"| {name} | {kernel.count('UTCHMMA')} | {kernel.count('UTMALDG')} "
            f"| {kernel.usage['REG']} | {kernel.stack} | {kernel.shared / 1024:g} KiB |"
        )
        numbers = " | ".join(f"{x:.0f}" if x or y != "adds" else "" for y, x in costs.items())
        unit.append(f"| {name} | {numbers} | {max(costs, key=lambda x: costs[x])} | {rate} |")
        print(code[-1], unit[-1], sep="\n", flush=True)
    return "\n".join([*code, "", *unit])


def rate(flops: int, cycles: float) -> str:
    return f"{flops / cycles * PROCESSORS * CLOCK / 1e12:.0f}"


def forward_rows() -> Iterator[Row]:
    for name, config in (CONFIGS | WIDE).items():
        kernel = binary(config)
        costs = forward_cycles(config, kernel)
        flops = 2 * 2 * ROWS * COLS * (config.head_dim + config.value_dim)
        yield name, kernel, costs, rate(flops, max(costs.values()))


def backward_rows() -> Iterator[Row]:
    for name, config in CONFIGS.items():
        total = 0.0
        # Five products, as published figures count a backward.
        flops = 2 * ROWS * COLS * (3 * config.head_dim + 2 * config.value_dim)
        for side in (*SIDES, BOTH) if config.both_fit else SIDES:
            kernel = replace(backward_binary(config, side), shared=shared_memory(config, side))
            costs = backward_cycles(config, side, kernel)
            bound = max(costs.values())
            total = bound if side == BOTH else total + bound
            yield f"{name}, {side}", kernel, costs, "" if side == "keys" else rate(flops, total)


def publish(
    tables: Mapping[str, Callable[[], str]], description: str | None, page: Path = DOCS
) -> None:
    """The command line: makes the tables, and puts each between the marks of its name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {page.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in tables.items():
        lines = make()
        if arguments.write:
            begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
            before, rest = page.read_text().split(begin)
            page.write_text(before + begin + lines + "\n" + end + rest.split(end)[1])


TABLES = {
    "account": lambda: table("kernel", forward_rows()),
    "backward account": lambda: table("kernel", backward_rows()),
}

if __name__ == "__main__":
    # What is kept on disk has to be of this module's own name.
    from tests.kernels import cute_account

    publish(cute_account.TABLES, __doc__)
