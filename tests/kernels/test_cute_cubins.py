"""The Blackwell kernels as machine code: on tensor cores, by TMA, without spills, in bounds."""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from gdpa_inductor.kernels.cute import architectures, launch
from gdpa_inductor.kernels.cute.config import SHARED_MEMORY, KernelConfig
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm100 import costs
from gdpa_inductor.kernels.cute.sm100.backward.shapes import Shapes
from gdpa_inductor.kernels.cute.sm100.config import (
    BOTH,
    COLS,
    ROWS,
    SIDES,
    TMEM_COLUMNS,
    Sm100Config,
    Sm103Config,
)
from gdpa_inductor.kernels.cute.values import Arch
from tests.emulator.recording import linked

from .cute_account import (
    CAUSAL,
    CONFIGS,
    SILU,
    WIDE,
    backward_binary,
    backward_cycles,
    binary,
    block,
    forward_cycles,
    shared_memory,
)
from .fake_cuda import tool
from .marks import slow_but

FORWARDS = CONFIGS | WIDE
SAMPLE = (8, 64, 128, 136, 192, 224, 256)


@pytest.mark.parametrize("dims", itertools.product(SAMPLE, SAMPLE), ids=str)
def test_every_head_dim_has_room(dims: tuple[int, int]):
    config = Sm100Config("bfloat16", *dims, SILU)
    d, dv = config.padded_head_dim, config.padded_value_dim
    assert config.tiles == (2 if d <= 192 and dv <= 128 else 1)
    # Tensor memory: two buffers of scores, and O of each query tile.
    assert 2 * COLS + config.tiles * config.output_stages * dv <= TMEM_COLUMNS
    # Shared memory: parts cover K and V, and there are enough to hide the latency of a load.
    stage = 2 * max(COLS * config.part_width, config.part_keys * dv)
    query = 2 * ROWS * config.query_width * config.query_stages
    assert config.query_width >= d and config.value_parts * config.part_keys == COLS
    assert query + stage * config.key_stages <= SHARED_MEMORY - 2048
    assert config.key_stages >= config.key_parts + config.value_parts + (config.tiles == 2)


@pytest.mark.parametrize("name", slow_but(["silu, D 64", "silu, D 256"], FORWARDS))
def test_machine_code(name: str):
    config = FORWARDS[name]
    kernel = binary(config)
    # Per query tile: 16 of the head dim a step of S = Q Kᵀ, 16 keys a step of O += P V.
    assert kernel.count("UTCHMMA") == config.tiles * (config.part_width // 16 + 8)
    assert kernel.count("UTMALDG") >= 4
    assert kernel.stack == 0, "registers spill"
    assert kernel.usage["REG"] * 512 <= 65536
    assert kernel.shared <= SHARED_MEMORY
    if "silu" in name or "gelu" in name:
        assert block(kernel.opcodes)["MUFU"] == 128, "more than one special function for a score"
    assert forward_cycles(config, kernel)["issue"] <= 4096


@pytest.mark.parametrize("kind", [Sm90Config, Sm100Config])
def test_roundings_to_bf16_are_no_special_functions(kind: type[KernelConfig]):
    """A number that is rounded and widened again may take F2F, which is as slow as a tanh."""
    kernel = binary(kind("bfloat16", 64, 64, "silu(bf16(mul(s,0.088)))"))
    assert kernel.count("F2FP.BF16") and not kernel.count("F2F.")


FITTING = [name for name, config in CONFIGS.items() if config.both_fit]


@pytest.mark.parametrize("name", slow_but(["causal sigmoid, D 64"], FITTING))
def test_machine_code_of_the_backward_by_one_kernel(name: str):
    config = CONFIGS[name]
    kernel = backward_binary(config, BOTH)
    # 16 of a head dim a step of S and of dP, 16 rows a step of dV, dK and dQ.
    shapes = Shapes(config.side(BOTH, None))
    rows = 2 * COLS + shapes.resident
    assert kernel.count("UTCHMMA") == (sum(shapes.widths.values()) + rows) // 16
    assert kernel.stack == 0, "registers spill"
    assert kernel.usage["REG"] * 512 <= 65536
    assert shared_memory(config, BOTH) <= SHARED_MEMORY - 1024
    active = backward_cycles(config, BOTH, kernel)
    counted = max(active[unit] for unit in ("MUFU", "FMA", "issue"))
    estimate = costs.activation(config.program, config.fast)
    assert 0.75 <= estimate / counted <= 1.25, "the rule that chooses the kernels is off"


@pytest.mark.parametrize("capability", architectures.CONFIGS, ids=str)
def test_each_capability_can_load_its_code(capability: tuple[int, int]):
    """10.3 was given code for `sm_100a`. The ELF says for what it is, and CuTe DSL who loads it."""
    kind: type[KernelConfig] = architectures.CONFIGS[capability]
    device = Arch["sm_{}{}a".format(*capability)]
    assert device.can_run_binary_built_for(Arch[kind.arch])
    assert device == Arch.sm_100a or not device.can_run_binary_built_for(Arch.sm_100a)
    with tempfile.TemporaryDirectory() as folder, linked():
        path, options = Path(folder) / "kernel.cubin", f"--keep-cubin --dump-dir={folder}"
        path.write_bytes(launch.compiled(kind("bfloat16", 64, 64, SILU), options).__cubin__)
        elf = tool("cuobjdump", "-elf", str(path))
    # Only the command line of ptxas, which ELFs for Blackwell have, tells "f" from no suffix.
    assert re.search(r"\bsm=(\w+)", elf)[1] == kind.arch.removeprefix("sm_").removesuffix("f")
    assert capability < (10, 0) or re.search(rf"-arch {kind.arch}\b", elf)


@pytest.mark.parametrize("program", [SILU, pytest.param(CAUSAL, marks=pytest.mark.slow)])
def test_blackwell_ultra_runs_the_instructions_that_are_inspected(program: str):
    base, ultra = (kind("bfloat16", 64, 64, program) for kind in (Sm100Config, Sm103Config))
    wide = [replace(x, head_dim=256, value_dim=192) for x in (base, ultra)]
    for one, other in ((base, ultra), wide):
        assert binary(other).code == binary(one).code
    for side in SIDES:
        assert backward_binary(ultra, side).code == backward_binary(base, side).code


EMULATED = """
from tests.kernels import test_cute_hopper, test_cute_sequences

test_cute_hopper.test_machine_code_of_the_sums_of_jagged_biases("of rows")
test_cute_sequences.test_the_longest_come_first((5, 7), "int32")
"""


def test_what_is_disassembled_leaves_the_emulator_running():
    """In a process of its own: the first library of one decides for all."""
    env = {**os.environ, "PTX_CACHE": "0"}
    ran = subprocess.run([sys.executable, "-c", EMULATED], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
