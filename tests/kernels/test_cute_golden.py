"""The CuTe kernels of Blackwell as PTX: what they were, instruction for instruction.

Golden is the number of each instruction, and a digest of the whole text in which the kernel's own
name (it holds the path of its module) is "kernel". A change that is none of the kernels' must leave
both. `python -m tests.kernels.test_cute_golden` writes the file anew.
"""

import hashlib
import json
import re
import tempfile
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch
from gdpa_inductor.kernels.cute.sm100.config import BOTH, SIDES, Sm100Config
from tests.emulator.disk_cache import cached
from tests.emulator.recording import linked

from .cute_account import BIAS, CAUSAL, GELU, SILU

GOLDEN = Path(__file__).parent / "golden" / "cute.json"
CONFIGS = {
    "silu": Sm100Config("bfloat16", 64, 64, SILU),
    "gelu jagged": Sm100Config("bfloat16", 128, 128, GELU, (), True, True),
    "causal": Sm100Config("bfloat16", 64, 64, CAUSAL),
    "bias": Sm100Config("bfloat16", 64, 64, BIAS, ("bfloat16",), vectors=frozenset([0])),
    "shared fp16": Sm100Config("float16", 96, 40, SILU, (), False, True, shared=frozenset("q")),
    "wide": Sm100Config("bfloat16", 256, 192, SILU),
}
KERNELS = [
    (name, side)
    for name, config in CONFIGS.items()
    for side in ("forward", *([] if config.wide else SIDES), *[BOTH] * config.both_fit)
]
QUICK = ("silu", "causal")


def ptx(config: Sm100Config, side: str) -> str:
    config = replace(config, kernel=side)

    def compiled() -> str:
        with linked(), tempfile.TemporaryDirectory() as folder:
            options = f"--keep-ptx --ptxas-options -O0 --dump-dir={folder}"  # no machine code
            return launch.compiled(config, options).__ptx__

    return re.sub(r"kernel_cutlass_\w+", "kernel", cached(compiled, "golden", config))


def account(text: str) -> dict[str, object]:
    opcodes = re.findall(r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s", text, re.MULTILINE)
    counts = dict(sorted(Counter(opcodes).items()))
    return {"digest": hashlib.sha256(text.encode()).hexdigest(), "instructions": counts}


def compiler_version() -> str:
    return version("nvidia-cutlass-dsl")


@pytest.mark.parametrize(
    ("name", "side"),
    [pytest.param(*x, marks=[] if x[0] in QUICK else pytest.mark.slow) for x in KERNELS],
)
def test_kernels_are_what_they_were(name: str, side: str):
    golden = json.loads(GOLDEN.read_text())
    if golden["nvidia-cutlass-dsl"] != compiler_version():
        pytest.skip(f"golden is of nvidia-cutlass-dsl {golden['nvidia-cutlass-dsl']}")
    result, before = account(ptx(CONFIGS[name], side)), golden[f"{name}, {side}"]
    assert result["instructions"] == before["instructions"]
    assert result["digest"] == before["digest"]


if __name__ == "__main__":
    found = {f"{n}, {side}": account(ptx(CONFIGS[n], side)) for n, side in KERNELS}
    lines = {"nvidia-cutlass-dsl": compiler_version(), **found}.items()
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in lines)
    GOLDEN.write_text("{" + text + "}\n")
