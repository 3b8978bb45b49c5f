"""S = Q Kᵀ with the score program behind it is one kernel, on tensor cores and without spills. So
are S, dP and both terms in a backward on Hopper."""

import dataclasses
import re

import pytest
import torch

pytest.importorskip("triton")

from gdpa_inductor.kernels.blocked.block_pass import Pass, Sum
from gdpa_inductor.kernels.blocked.fused import FusedPass, StoredPass
from gdpa_inductor.kernels.triton.configs import Config, Shape, shared_memory
from gdpa_inductor.lowerings import blocked, triton
from gdpa_inductor.program.score_mod import ScoreMod

from . import render
from .fake_cuda import DEVICES
from .test_cubins import TENSOR_CORE, compiled, fuses, local_bytes

CAUSAL = "where(ge(q_idx,kv_idx),silu(mul(s,0.088)),0.0)"
TABLE = "a0:f[h,t]; silu(add(s,lookup(a0,add(sub(q_idx,kv_idx),32))))"
RELU2 = "mul(relu(mul(s,0.088)),relu(mul(s,0.088)))"


def work(text: str, backward: bool) -> Pass:
    program = ScoreMod.parse(text)
    slope = program.gradients.score if backward else None
    return Pass(program.weight, slope, dtype=torch.float32)


def operands(work: Pass, units: int, heads: int, rows: int, cols: int, dim: int) -> list:
    bf16 = torch.bfloat16
    found = [torch.empty(units, n, dim, dtype=bf16) for n in (rows, cols)]
    if work.reads_grad:
        found.append(torch.empty(units // heads, heads, rows, cols, dtype=bf16))
    sizes = {"q_idx": (1, 1, rows, 1), "kv_idx": (1, 1, 1, cols), "aux": (1, heads, 1, 1, 65)}
    dtypes = {"i": torch.int64, "t": torch.float32}
    return found + [torch.empty(sizes[x.op], dtype=dtypes[x.kind]) for x in work.operands]


@pytest.mark.parametrize("text", [RELU2, CAUSAL, TABLE])
@pytest.mark.parametrize("backward", [False, True])
def test_scores_are_not_stored(text: str, backward: bool):
    """One kernel, and memory for P and dS only, in 16 bits."""
    blocked.register_product()
    asked = work(text, backward)
    given = operands(asked, 4, 2, 200, 300, 40)
    source = render.wrapper(FusedPass(asked, 2), given, decomposed=True)
    assert len(render.kernels(source)) == 1
    made = re.findall(r"= empty_strided_cuda\((.*)\)$", source, re.M)
    assert len(made) == 1 + backward
    assert all("(2, 2, 200, 300)" in text and "bfloat16" in text for text in made)


@pytest.mark.parametrize("capability", sorted(DEVICES))
@pytest.mark.parametrize("dim", [128, 256])
def test_cubins(capability: int, dim: int, tmp_path):
    blocked.register_product()
    asked = work(RELU2, True)
    given = operands(asked, 4, 2, 1024, 1024, dim)
    source = render.wrapper(FusedPass(asked, 2), given, capability, decomposed=True)
    ((name, text),) = render.kernels(source).items()
    assert fuses(text)
    made = compiled(name, text, capability, tmp_path)
    assert TENSOR_CORE[capability] in made.asm["ptx"]
    assert 2 * made.metadata.shared <= DEVICES[capability][1], "one tile a multiprocessor"
    assert local_bytes(made.asm["cubin"], tmp_path) == 0, "registers spill"


BIASED = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.088),a0))"
SCALED = "a0:f[h,q_idx,kv_idx]; silu(mul(s,a0))"
WIDE = {  # program, head dims, columns of a tile
    "silu 256": ("silu(mul(s,0.0625))", 256, 256, 32),
    "silu 192": ("silu(mul(s,0.0625))", 192, 192, 64),
    "causal 256": (CAUSAL, 256, 256, 32),
    "causal 192": (CAUSAL, 192, 192, 64),
    "gelu 192, 160": ("gelu(mul(s,0.088))", 192, 160, 64),
    "bias 256": (BIASED, 256, 256, 32),
    "bias 192": (BIASED, 192, 192, 64),
    "scaled bias 256": (SCALED, 256, 256, 32),
    "silu 128": ("silu(mul(s,0.088))", 128, 128, 64),
}


def stored(text: str, *dims: int, cut: str = "", summed: bool = False) -> tuple[StoredPass, list]:
    """The function of a chunk in a backward, 4 units of 2 heads, and what it takes."""
    program = ScoreMod.parse(text)
    terms = program.gradients.aux if summed else ()
    sums = tuple(Sum(x, program.axes(i), i) for i, x in enumerate(terms) if x is not None)
    slope = program.gradients.score
    asked = Pass(program.weight, slope, sums, dtype=torch.float32, program=program.roots)
    lengths, (dim, value_dim) = (1024, 2048, 2048, 1024), dims
    widths = (dim, dim, value_dim, value_dim)
    bf16 = torch.bfloat16
    given = [torch.empty(4, n, width, dtype=bf16) for n, width in zip(lengths, widths)]
    sizes = {"q_idx": (1, 1, 1024, 1), "kv_idx": (1, 1, 1, 2048), "aux": (1, 2, 1024, 2048)}
    dtypes = {"i": torch.int64, "f": bf16}
    leaves = [torch.empty(sizes[x.op], dtype=dtypes[x.kind]) for x in asked.operands]
    operands = StoredPass.operands(asked, cut.split(), leaves)
    return StoredPass.of(asked, operands, 2, "kernel=triton"), [*given, *operands.values()]


@pytest.mark.parametrize("name", WIDE)
def test_p_and_ds_at_wide_heads(name: str, tmp_path):
    """S and dP on wgmma, no spills, shared memory for three stages of K and V."""
    blocked.register_product()
    text, dim, value_dim, cols = WIDE[name]
    source = render.wrapper(*stored(text, dim, value_dim), decomposed=True)
    every = render.kernels(source).items()
    ((name, text),) = [x for x in every if "triton_heuristics.template" in x[1]]
    assert f"'BLOCK_N': {cols}" in text and "num_stages=3" in text
    made = compiled(name, text, 90, tmp_path)
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert local_bytes(made.asm["cubin"], tmp_path) == 0, "registers spill"
    thought = shared_memory("weights", Config(128, cols, 8, 3), Shape(dim, value_dim, 2))
    assert made.metadata.shared <= thought <= DEVICES[90][1]


@pytest.mark.parametrize("text, count", [(BIASED, 2), (SCALED, 3)])
def test_a_bias_sums_what_is_stored_already(text: str, count: int):
    """The term of a bias that is added to the score is dS, up to a constant factor."""
    blocked.register_product()
    source = render.wrapper(*stored(text, 192, 192, summed=True), decomposed=True)
    assert source.count("empty_strided_cuda((2, 2, 1024, 2048)") == count


def test_a_part_of_the_rows_has_their_numbers():
    """The number of the first row is an operand, so that all chunks share a kernel."""
    blocked.register_product()
    source = render.wrapper(*stored(CAUSAL, 192, 192, cut="q_idx"), decomposed=True)
    ((_, text),) = render.kernels(source).items()
    assert "arg_A0" in text and "arg_A1" not in text


@pytest.mark.parametrize("backward", [False, True])
def test_a_lowering_that_fails_on_a_gpu_holds_no_scores(
    backward: bool, monkeypatch: pytest.MonkeyPatch
):
    """Chunks take the place of its kernel."""

    def broken(*_):
        raise RuntimeError("out of luck")

    backend = dataclasses.replace(triton.BACKEND, lower=broken)
    monkeypatch.setattr(triton, "BACKEND", backend)
    given = [torch.empty(2, 2, n, 64, dtype=torch.bfloat16) for n in (300, 200, 200, 300)]

    def function(query, key, value, grad):
        if not backward:
            return torch.ops.gdpa.attention(query, key, value, [], [], RELU2, "kernel=triton")
        return torch.ops.gdpa.attention_backward(
            grad, query, key, value, [], [], RELU2, [True] * 3, "kernel=triton"
        )

    source = render.wrapper(function, given)
    assert "from gdpa_inductor.lowerings.blocked import chunked_call as" in source
    assert f"blocked_chunked_call({backward})" in source
    assert "200)" not in "".join(re.findall(r"empty_strided_cuda\((.*)\)$", source, re.M))
