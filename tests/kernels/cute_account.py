"""`python -m tests.kernels.cute_account`: what the machine code of the Blackwell kernels says.

Two tables for docs/blackwell.md (`--write` puts them there). The first: tensor-core and TMA
instructions, registers, stack, shared memory. The second: cycles that one key block of two query
tiles costs each unit, the greatest of which bounds the kernel. It is arithmetic on counted
instructions, not a measurement: nothing here has run on hardware.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.compiler import compile_kernel, example
from gdpa_inductor.kernels.cute.config import KernelConfig
from gdpa_inductor.kernels.cute.sm100.config import COLS, ROWS, Sm100Config
from tests.emulator.recording import linked

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
    "jagged silu, D 128": Sm100Config("bfloat16", 128, 128, SILU, (), True, True),
    "jagged silu, D 64": Sm100Config("bfloat16", 64, 64, SILU, (), True, True),
    "short keys, silu, D 128": Sm100Config("bfloat16", 128, 128, SILU, (), True, False),
    "seeds, silu, D 128": Sm100Config(
        "bfloat16", 128, 128, SILU, (), False, True, shared=frozenset("q")
    ),
}  # fmt: skip

# Of one B200 multiprocessor, per clock.
TENSOR = 8192  # bf16 operations
MUFU = 16  # special functions
FMA = 128  # fp32 multiply-adds; a packed instruction is two
BYTES = 128  # of shared memory
SCHEDULERS = 4  # each issues one instruction of a warp
CLOCK, PROCESSORS = 1.85e9, 148
PACKED = ("FFMA2", "FMUL2", "FADD2")
SCALAR = ("FFMA", "FMUL", "FADD", "IMAD")


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: its machine code, shared memory in bytes."""

    sass: list[str]
    usage: dict[str, int]
    shared: int

    def count(self, opcode: str) -> int:
        return sum(x.startswith(opcode) for x in self.sass)

    @property
    def spills(self) -> int:
        """Instructions that move a register to memory, or back."""
        return self.count("STL") + self.count("LDL")

    def before(self, opcode: str) -> "Binary":
        """The same up to the first instruction of that kind."""
        first = next(i for i, x in enumerate(self.sass) if x.startswith(opcode))
        return replace(self, sass=self.sass[:first])


def tool(name: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def binary(config: KernelConfig) -> Binary:
    """Compiled for its architecture; needs no GPU."""
    kernel, arguments = launch.kernel_of(config), example(config)

    def compiled(more: str) -> Any:
        return compile_kernel(kernel, arguments, config.arch, more)

    return disassembled(compiled, lambda: kernel.memory.size_in_bytes())


def disassembled(compiled: Callable[[str], Any], shared: Callable[[], int] = lambda: 0) -> Binary:
    """Of a kernel as a function of compiler options. shared: its bytes, once it is compiled."""
    # A folder of its own: names of dumped files are cut, and other tests dump at the same time.
    # Linked as the emulator's kernels are: else none of these could run in this process.
    with tempfile.TemporaryDirectory() as folder, linked():
        made = compiled(f"--keep-cubin --dump-dir={folder}")
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.__cubin__)
        listing, usage = (
            tool("cuobjdump", "-sass", str(path)),
            tool("cuobjdump", "-res-usage", str(path)),
        )
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z][\w.]*)", listing)
    numbers = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return Binary(opcodes, numbers, shared())


def block(sass: list[str]) -> Counter[str]:
    """Instructions of one warp for one key block without masks: from the first load of scores to
    the last store of weights in the variant that comes first and is the shorter one."""
    loads = [i for i, x in enumerate(sass) if x.startswith("LDTM")]
    stores = [i for i, x in enumerate(sass) if x.startswith("STTM")]
    spans = [sass[loads[4 * i] : stores[4 * i + 3] + 1] for i in range(len(stores) // 4)]
    return Counter(x.split(".")[0] for x in min(spans, key=len))


def cycles(config: Sm100Config, made: Binary) -> dict[str, float]:
    """What one key block of both query tiles costs each unit."""
    d, dv = config.padded_head_dim, config.padded_value_dim
    ops, warps = block(made.sass), 8
    lanes = 32 * warps
    return {
        "tensor": 2 * 2 * ROWS * COLS * (d + dv) / TENSOR,
        "MUFU": ops["MUFU"] * lanes / MUFU,
        "FMA": (2 * sum(ops[x] for x in PACKED) + sum(ops[x] for x in SCALAR)) * lanes / FMA,
        "issue": sum(ops.values()) * warps / SCHEDULERS,
        # Each query tile reads both operands of S = Q Kᵀ, and V; K and V are written once.
        "shared": (2 * 2 * (ROWS * d + COLS * d + COLS * dv) + 2 * COLS * (d + dv)) / BYTES,
    }


def tables() -> str:
    """Both, as Markdown."""
    code = [
        "| kernel | tcgen05.mma | TMA loads | registers | stack | shared memory |",
        "|" + "---|" * 6,
    ]
    unit = [
        "| kernel | tensor | MUFU | FMA | issue | shared | bound | TFLOP/s at most |",
        "|" + "---|" * 8,
    ]
    for name, config in CONFIGS.items():
        made = binary(config)
        code.append(
            f"| {name} | {made.count('UTCHMMA')} | {made.count('UTMALDG')} | {made.usage['REG']} "
            f"| {made.usage['STACK'] + made.usage['LOCAL']} | {made.shared / 1024:.1f} KiB |"
        )
        found = cycles(config, made)
        bound = max(found, key=lambda x: found[x])
        flops = 2 * 2 * ROWS * COLS * (config.head_dim + config.value_dim)
        rate = flops / found[bound] * PROCESSORS * CLOCK / 1e12
        numbers = " | ".join(f"{x:.0f}" for x in found.values())
        unit.append(f"| {name} | {numbers} | {bound} | {rate:.0f} |")
        print(code[-1], unit[-1], sep="\n", flush=True)
    return "\n".join([*code, "", *unit])


def publish(
    tables: Callable[[], str], name: str, description: str | None, page: Path = DOCS
) -> None:
    """The command line: makes the tables, and puts them between the marks of this name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {page.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = tables()
    if arguments.write:
        text = page.read_text()
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin)
        page.write_text(head + begin + made + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    publish(tables, "account", __doc__)
