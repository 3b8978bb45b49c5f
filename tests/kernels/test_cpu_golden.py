"""What the CPU kernel computes at every score, operation for operation.

`python -m tests.kernels.test_cpu_golden` writes the files anew.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gdpa_inductor.kernels.blocked import block_pass
from gdpa_inductor.kernels.blocked.block_pass import Pass, Sum
from gdpa_inductor.program.expr import AXES
from gdpa_inductor.program.score_mod import ScoreMod

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = {
    "silu": "silu(mul(s,0.1))",
    "causal": "where(ge(q_idx,kv_idx),gelu_tanh(s),0.0)",
    "operands": "a0:f[h,q_idx,kv_idx]; a1:b[b,kv_idx]; where(a1,sigmoid(add(s,a0)),0.0)",
}
BLOCK = (2, 2, 8, 16)
DTYPES = {"f": torch.float32, "i": torch.int64, "b": torch.uint8}


def passes(program: str) -> dict[str, Pass]:
    """The forward, and the backward with the gradient of the first operand."""
    mod = ScoreMod.parse(program)
    by_operand = [
        Sum(term, x.axes) for term, x in zip(mod.gradients.aux, mod.aux) if term is not None
    ]
    backward = Pass(mod.weight, mod.gradients.score, tuple(by_operand))
    return {"forward": Pass(mod.weight, in_place=True), "backward": backward}


def traced(work: Pass) -> str:
    sums = [
        torch.zeros([size if axis in x.axes else 1 for axis, size in zip(AXES, BLOCK)])
        for x in work.sums
    ]
    operands = [torch.ones(1, 1, 1, 1, dtype=DTYPES[node.kind]) for node in work.operands]
    given = [torch.zeros(BLOCK) for _ in range(work.buffers)] + sums + operands
    return make_fx(work)(*given).code.strip() + "\n"


def text(name: str) -> str:
    return "\n".join(f"# {way}\n{traced(work)}" for way, work in passes(PROGRAMS[name]).items())


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_are_what_they_were(name: str):
    assert text(name) == (GOLDEN / f"cpu_{name}.txt").read_text()


if __name__ == "__main__":
    for name in PROGRAMS:
        (GOLDEN / f"cpu_{name}.txt").write_text(text(name))


def test_programs_of_very_sizes_are_bounded(monkeypatch):
    """Those of a GPU. The one that was used longest ago goes."""
    compiled = []

    def compile_one(work, tensors, **options):
        compiled.append(tensors[0].shape[2])
        return SimpleNamespace(run=work)

    monkeypatch.setattr(block_pass.inductor, "compile_graph", compile_one)
    monkeypatch.setattr(block_pass, "FIXED", block_pass.Compiled(2))
    work = Pass(ScoreMod.parse("relu(s)").weight)
    for rows in (2, 3, 2, 4, 2, 3):
        assert block_pass.compiled(work, [torch.empty(1, 1, rows, 5, device="meta")]) is work
    assert compiled == [2, 3, 4, 3]
