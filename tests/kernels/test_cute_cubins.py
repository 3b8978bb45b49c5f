"""The Blackwell forward as machine code: on tensor cores, by TMA, without spills, in bounds."""

import subprocess
import sys

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from gdpa_inductor.kernels.cute.config import SHARED_MEMORY

from .cute_account import CONFIGS, binary, block, cycles

ONCE = "silu, D 64"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == ONCE else pytest.mark.slow) for name in CONFIGS],
)
def test_machine_code(name: str):
    config = CONFIGS[name]
    made = binary(config)
    # Per query tile: 16 of the head dim a step of S = Q Kᵀ, 16 keys a step of O += P V.
    assert made.count("UTCHMMA") == 2 * (config.padded_head_dim // 16 + 8)
    assert made.count("UTMALDG") >= 4
    assert made.usage["STACK"] + made.usage["LOCAL"] == 0, "registers spill"
    assert made.usage["REG"] * 512 <= 65536
    assert made.shared <= SHARED_MEMORY
    if "silu" in name or "gelu" in name:
        assert block(made.sass)["MUFU"] == 128, "more than one special function for a score"
    assert cycles(config, made)["issue"] <= 4096


EMULATED = f"""
from tests.kernels.cute_account import CONFIGS, binary
from tests.kernels.cute_cases import Case
from tests.kernels.test_cute_forward import forward

binary(CONFIGS["{ONCE}"])
case = Case("after", d=64, m=64, n=64)
assert forward(case, case.operands()).isfinite().all()
"""


def test_what_is_disassembled_leaves_the_emulator_running():
    """In a process of its own: the first library of one decides for all."""
    ran = subprocess.run([sys.executable, "-c", EMULATED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
