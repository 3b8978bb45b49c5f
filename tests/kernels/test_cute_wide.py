"""The Hopper forward at head dims above 128: its shape, and what it is as machine code."""

import dataclasses

import pytest
import torch

pytest.importorskip("cutlass")
pytest.importorskip("triton")  # its package has the disassembler

from gdpa_inductor.kernels.cute import plan
from gdpa_inductor.kernels.cute.backward.launch import backward
from gdpa_inductor.kernels.cute.config import SHARED_MEMORY
from gdpa_inductor.kernels.cute.sm90.config import HALF, ROWS, Sm90Config
from gdpa_inductor.ops import operands_of
from gdpa_inductor.rejection import GDPAError

from . import cute_hopper_account
from .cute_account import BIAS, SILU, binary
from .marks import slow_but
from .test_cute_hopper import CAUSAL_BIAS, SPILLS, in_flight, tiled

DIMS = {
    (136, 136): 128, (160, 160): 128, (192, 192): 112, (224, 224): 96, (256, 256): 80,
    (192, 128): 128, (256, 64): 128, (256, 128): 96, (64, 256): 80, (128, 256): 80, (8, 256): 80,
    (256, 8): 128,
}  # fmt: skip
SAMPLE = range(8, 257, 24)
PAIRS = [(d, dv) for d in SAMPLE for dv in SAMPLE if max(d, dv) > 128]
CONFIGS = {
    "silu, D 256": Sm90Config("bfloat16", 256, 256, SILU),
    "silu, D 192, Dv 128": Sm90Config("bfloat16", 192, 128, SILU),
    "silu, D 192": Sm90Config("bfloat16", 192, 192, SILU),
    "silu, D 160, fp16": Sm90Config("float16", 160, 160, SILU),
    "silu, D 64, Dv 256": Sm90Config("bfloat16", 64, 256, SILU),
    "silu, D 256, Dv 64": Sm90Config("bfloat16", 256, 64, SILU),
    "causal tanh-gelu, D 256": Sm90Config(
        "bfloat16", 256, 256, "where(ge(q_idx,kv_idx),gelu_tanh(s),0.0)"
    ),
    "silu + bias (bf16), D 256": tiled(256),
    "silu + bias by elements, D 256": Sm90Config("bfloat16", 256, 256, BIAS, ("bfloat16",)),
    "jagged silu, D 256": Sm90Config("bfloat16", 256, 256, SILU, (), True, True),
    "jagged causal gelu + bias, D 224, fp16": tiled(224, CAUSAL_BIAS, ("float16",), True),
    "seeds, silu, D 256": Sm90Config(
        "bfloat16", 256, 256, SILU, (), False, True, shared=frozenset("q")
    ),
}  # fmt: skip
ONCE = ("silu, D 256", "silu, D 192, Dv 128", "silu + bias (bf16), D 256")


def biased(config: Sm90Config) -> Sm90Config:
    changes = {"program": BIAS, "aux": ("bfloat16",), "vectors": frozenset([0])}
    return dataclasses.replace(config, **changes)


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_wide_heads_have_as_many_keys_as_fit(dims: tuple[int, int]):
    assert Sm90Config("bfloat16", *dims, SILU).cols == DIMS[dims]


@pytest.mark.parametrize("dims", PAIRS, ids=str)
def test_keys_and_values_have_two_buffers_each_at_least(dims: tuple[int, int]):
    plain = Sm90Config("bfloat16", *dims, SILU)
    for config in (plain, biased(plain)):
        assert config.overlaid and config.tiles == config.query_stages == 2
        assert config.key_stages >= 4 and config.key_stages % 2 == 0
        d, dv = config.padded_head_dim, config.padded_value_dim
        result = 2 * 2 * ROWS * max(d, dv) + config.cols * (d + dv) * config.key_stages
        assert result + 2 * 2 * ROWS * HALF * config.bias_stages <= SHARED_MEMORY - 2048
        # fp32 sums and scores, weights and the next weights in 16 bits, of 64 rows.
        assert dv // 2 + config.cols // 2 + config.cols // 4 <= 192
    assert config.bias_stages >= 2 and config.cols % HALF == 0, "of the bias"


def test_the_page_has_the_table_of_tiles():
    page = cute_hopper_account.DOCS.read_text()
    assert f"-->\n{cute_hopper_account.tables()}\n<!--" in page


@pytest.mark.parametrize("name", slow_but(ONCE, CONFIGS))
def test_machine_code(name: str):
    config = CONFIGS[name]
    kernel = binary(config)
    by_elements = len(config.aux) - (config.tiled is not None)
    in_flight(config, kernel, SPILLS * (len(config.aux) + by_elements))
    if config.tiled is not None:
        # A tile's first block and the block of a step, each with and without a mask.
        assert kernel.count("LDSM") == 2 * 2 * config.cols // 16
        assert kernel.before("USETMAXREG.DEALLOC").count("LDG") == 0, "the bias is read by elements"


def test_a_backward_above_128_is_refused():
    matrices = [torch.zeros(1, 2, 64, dim, dtype=torch.bfloat16) for dim in (192, 192, 128)]
    o = operands_of(*matrices, [], [], "silu(s)")
    assert plan.plan_of(o, True, True, Sm90Config).config.head_dim == 192
    with pytest.raises(GDPAError, match="a head dim of 192; the CuTe backward takes up to 128"):
        backward(torch.zeros_like(matrices[2]), o, (True,) * 3, ctas=1, stream=0, kind=Sm90Config)
