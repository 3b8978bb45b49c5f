"""The Hopper kernels as machine code: products in flight, by TMA, without spills, in bounds."""

import dataclasses

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from gdpa_inductor.kernels.cute.config import SHARED_MEMORY
from gdpa_inductor.kernels.cute.sm90.backward.kernel import HopperBackward
from gdpa_inductor.kernels.cute.sm90.backward.launch import others
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

from .cute_account import CONFIGS, Binary, binary

ONCE = "silu, D 128, fp16"
BACKWARD_SPILLS = 24  # instructions
SPILLS = 32  # words per thread, where an operand of each score is read


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == ONCE else pytest.mark.slow) for name in CONFIGS],
)
def test_machine_code(name: str):
    config = hopper(name)
    made = binary(config)
    # S of a tile's first block; S and P V of a step; P V of the last block.
    assert made.count("HGMMA") == 2 * (config.padded_head_dim // 16 + 8)
    assert made.count("WARPGROUP.DEPBAR") == 4, "the products are serialized"
    assert made.count("USETMAXREG") == 2
    assert made.count("UTMALDG") >= 3
    assert made.count("UTMASTG") >= 1
    in_bounds(made, 2 * SPILLS if config.aux else 0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == ONCE else pytest.mark.slow) for name in CONFIGS],
)
def test_machine_code_of_the_backward(name: str):
    config = hopper(name)
    made = binary(config, HopperBackward(config), others(config))
    width = 64 if config.head_dim <= 64 else 128
    # Two steps: dP, dV and dK of a query tile, dQ of 128 keys, and S of the one that follows.
    step = config.padded_value_dim // 16 + 2 * (config.query_rows // 16) + 8 + width // 16
    assert made.count("HGMMA") == 2 * step
    # S of a tile's first step; dP, dV, and all products of a step.
    assert made.count("WARPGROUP.DEPBAR") == 7, "the products are serialized"
    assert made.count("USETMAXREG") == 2
    assert made.count("UTMALDG") >= 4
    assert made.count("UTMAREDG") >= 1
    # The roles with few registers stand behind the products. They have time.
    products = made.before("USETMAXREG.DEALLOC")
    assert products.spills <= BACKWARD_SPILLS * (4 if config.aux else 1), "registers spill"
    in_bounds(made, products.spills + BACKWARD_SPILLS)


@pytest.mark.parametrize("head_dim", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_machine_code_where_the_gradient_of_a_bias_is_stored(head_dim: int):
    """The bias comes by TMA and ldmatrix, so that no element of it is loaded alone."""
    changes = {"stored": 0, "head_dim": head_dim, "value_dim": head_dim}
    config = dataclasses.replace(hopper("silu + bias (bf16), D 128"), **changes)
    made = binary(config, HopperBackward(config), others(config))
    products = made.before("USETMAXREG.DEALLOC")
    assert made.count("WARPGROUP.DEPBAR") == 7, "the products are serialized"
    # Two steps, each with a program for whole tiles and one for the ends: 8 scores a load.
    assert products.count("LDSM") == 4 * config.query_rows // 16
    assert products.count("LDG") == 0
    assert products.spills == 0
    in_bounds(made, BACKWARD_SPILLS)


def hopper(name: str) -> Sm90Config:
    """The configuration of this name, for Hopper."""
    given = CONFIGS[name]
    return Sm90Config(**{x.name: getattr(given, x.name) for x in dataclasses.fields(given)})


def in_bounds(made: Binary, spills: int) -> None:
    """spills: the most instructions that move a register to memory, or back."""
    assert made.spills <= spills, "registers spill"
    assert made.usage["REG"] * 384 <= 65536
    assert made.shared <= SHARED_MEMORY
