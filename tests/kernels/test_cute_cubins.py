"""The Blackwell forward as machine code: on tensor cores, by TMA, without spills, in bounds."""

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
