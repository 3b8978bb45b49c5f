"""S = Q Kᵀ with the score program behind it is one kernel, on tensor cores and without spills."""

import dataclasses
import re

import pytest
import torch

pytest.importorskip("triton")

from gdpa_inductor.kernels.blocked.block_pass import Pass
from gdpa_inductor.kernels.blocked.fused import FusedPass
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
