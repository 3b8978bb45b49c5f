"""The Hopper forward as machine code: products in flight, by TMA, without spills, in bounds."""

import dataclasses

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from gdpa_inductor.kernels.cute.config import SHARED_MEMORY
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

from .cute_account import CONFIGS, binary

ONCE = "silu, D 128, fp16"
SPILLS = 32  # words per thread, where an operand of each score is read


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == ONCE else pytest.mark.slow) for name in CONFIGS],
)
def test_machine_code(name: str):
    given = CONFIGS[name]
    fields = {x.name: getattr(given, x.name) for x in dataclasses.fields(given)}
    config = Sm90Config(**fields)
    made = binary(config)
    # S of a tile's first block; S and P V of a step; P V of the last block.
    assert made.count("HGMMA") == 2 * (config.padded_head_dim // 16 + 8)
    assert made.count("WARPGROUP.DEPBAR") == 4, "the products are serialized"
    assert made.count("USETMAXREG") == 2
    assert made.count("UTMALDG") >= 3
    assert made.count("UTMASTG") >= 1
    spills = made.count("STL") + made.count("LDL")
    assert spills <= (2 * SPILLS if config.aux else 0), "registers spill"
    assert made.usage["REG"] * 384 <= 65536
    assert made.shared <= SHARED_MEMORY
