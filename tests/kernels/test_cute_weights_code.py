"""The Hopper kernel of P and dS as machine code: products in flight, no spills, in bounds."""

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from gdpa_inductor.kernels.cute.config import SHARED_MEMORY
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.kernels.cute.sm90.weights.products import STORES
from gdpa_inductor.kernels.cute.sm90.wgmma import WARPGROUP
from gdpa_inductor.program.score_mod import ScoreMod

from .cute_account import binary
from .marks import slow_but

SILU = "silu(mul(s,0.0625))"
CAUSAL = f"where(ge(q_idx,kv_idx),{SILU},0.0)"
LATER = "a0:i[-,-,-,-]; where(ge(add(q_idx,a0),kv_idx),silu(mul(s,0.25)),0.0)"
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))"
CAUSAL_BIAS = "a0:f[b,-,q_idx,kv_idx]; where(ge(q_idx,kv_idx),gelu_tanh(add(s,a0)),0.0)"
KEYS = "a0:b[b,-,-,kv_idx]; a1:f[h,q_idx]; where(a0,silu(add(mul(s,0.1),a1)),0.0)"
BF16 = ("bfloat16",)
# Head dims, program, dtypes of its operands, loads of operands: of a run, and of a step. In a step,
# the number of the first row tells tiles apart.
CONFIGS = {
    "silu, 256": ((256, 256), SILU, (), 0),
    "silu, 192": ((192, 192), SILU, (), 0),
    "gelu, 256": ((256, 256), "gelu(mul(s,0.0625))", (), 0),
    "causal, 256": ((256, 256), CAUSAL, (), 0),
    "causal, 192, 256": ((192, 256), CAUSAL, (), 0),
    "causal, 136, 40": ((136, 40), CAUSAL, (), 0),
    "later rows, 256": ((256, 256), LATER, ("int64",), 1 + 1),
    "later rows, 192": ((192, 192), LATER, ("int64",), 1 + 1),
    "bias, 256": ((256, 256), BIAS, BF16, 16),
    "bias, 192": ((192, 192), BIAS, BF16, 16),
    "causal bias, 256": ((256, 256), CAUSAL_BIAS, BF16, 16),
    "causal bias, 224": ((224, 224), CAUSAL_BIAS, BF16, 16),
    "hidden keys, 256": ((256, 256), KEYS, ("bool", "bfloat16"), 2 + 8),
}


def config_of(name: str) -> Sm90Config:
    dims, program, aux, _ = CONFIGS[name]
    specs = enumerate(ScoreMod.parse(program).aux)
    vectors = frozenset(number for number, spec in specs if "kv_idx" in spec.axes)
    return Sm90Config("bfloat16", *dims, program, aux, vectors=vectors).weights_config


SPILLS = {"gelu, 256": 32}  # instructions that move registers of its polynomials


@pytest.mark.parametrize("name", slow_but(["silu, 256", "causal, 192, 256"], CONFIGS))
def test_machine_code(name: str) -> None:
    config, loads = config_of(name), CONFIGS[name][-1]
    kernel = binary(config)
    dims = config.padded_head_dim, config.padded_value_dim
    # S and dP of a tile, 16 channels a step. Each is waited for once.
    assert kernel.count("HGMMA") == sum(dims) // 16
    assert kernel.count("WARPGROUP.DEPBAR") == 2, "the products are serialized"
    # Q of a run, and dO of two warpgroups: 16 channels of 16 rows a warp at a time.
    held = dims if config.tiles == 2 else dims[:1]
    assert kernel.count("LDSM") == sum(held) // 16
    # What frees their buffers depends on all that was read.
    order = [x for x in kernel.opcodes if x.startswith(("LDSM", "POPC", "SYNCS.ARRIVE"))]
    ends = [i for i, x in enumerate(order) if "LDSM" in x and "LDSM" not in order[i + 1]]
    assert len(ends) == len(held)
    assert all("POPC" in order[i + 1] and "ARRIVE" in order[i + 2] for i in ends), order
    assert kernel.count("USETMAXREG") == 2
    assert kernel.count("UTMASTG") % STORES == 0
    # Warps meet for turns only: around a step, and where there is none, and at both ends.
    assert kernel.count("BAR") <= 7
    products = kernel.before("USETMAXREG.DEALLOC")
    assert kernel.spills <= SPILLS.get(name, 0), "registers spill"
    # Operands are asked for before the products of a step, and then never again.
    first = max(i for i, x in enumerate(products.code) if x.opcode.startswith("LDSM"))
    step = [x.opcode.split(".")[0] for x in products.code[first:]]
    assert step.count("LDG") == step[: step.index("HGMMA")].count("LDG") == loads
    threads = WARPGROUP * (config.tiles + 1)
    assert kernel.usage["REG"] * threads <= 65536
    assert kernel.shared <= SHARED_MEMORY - 1024, "with what ptxas adds for alignment"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_warps_share_registers_and_memory(name: str) -> None:
    config = config_of(name)
    products, others = config.registers
    assert WARPGROUP * (config.tiles * products + others) <= 65536
    assert products % 8 == others % 8 == 0
    # The next keys and values come while those of a tile are multiplied.
    assert (4 if config.tiles == 3 else 6) <= config.stages <= 8
    assert config.tiles == (2 if "256" in name or "224" in name or "bias" in name else 3)
    assert bool(config.flows) == (config.tiles == 3)
