"""The production HSTU reference function of generative-recommenders, unmodified, over fbgemm.

`pytorch_hstu_mha` of ops/pytorch/pt_hstu_attention.py is fetched when the tests run (its repository
has no package on PyPI), or read from the file that GDPA_HSTU names; skipped where neither it nor
fbgemm is there. fbgemm has no kernels for doubles: the fp64 reference pads by index arithmetic.
"""

import importlib.util
import os
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests._recorder import Recorder
from tests.jagged import offsets_of
from tests.tolerances import error_of

COMMIT = "db1bf8f2e8f6a92a738dafd52a245eafb25a222b"
SOURCE = (
    f"https://raw.githubusercontent.com/meta-recsys/generative-recommenders/{COMMIT}"
    "/generative_recommenders/ops/pytorch/pt_hstu_attention.py"
)
LENGTHS, N, HEADS, WIDTH = ((7, 0, 12, 1), (3, 9, 10, 12)), 12, 2, 16
TARGETS = torch.tensor([1, 0, 3, 1])
OPTIONS = {
    "causal": {},
    "full": {"causal": False},
    "targets": {"num_targets": TARGETS},
    "window": {"max_attn_len": 3},
    "window and targets": {"max_attn_len": 3, "num_targets": TARGETS},
    "window, full at the end": {"max_attn_len": 2, "min_full_attn_seq_len": 3},
    "prefix": {"contextual_seq_len": 3},
    "everything": {
        "num_targets": TARGETS,
        "max_attn_len": 3,
        "contextual_seq_len": 2,
        "min_full_attn_seq_len": 2,
    },
    "full, window and targets": {"causal": False, "max_attn_len": 3, "num_targets": TARGETS},
    "scale of a number": {"attn_scale": torch.tensor(0.25)},
    "scale per token": {"attn_scale": "l"},
}


@pytest.fixture(scope="module")
def hstu(tmp_path_factory) -> ModuleType:
    """The module as published."""
    pytest.importorskip("fbgemm_gpu")
    path = Path(os.environ.get("GDPA_HSTU", ""))
    if not path.is_file():
        path = tmp_path_factory.mktemp("hstu") / "pt_hstu_attention.py"
        try:
            with urllib.request.urlopen(SOURCE, timeout=10) as answer:
                path.write_bytes(answer.read())
        except OSError as error:
            pytest.skip(f"{SOURCE}: {error}")
    spec = importlib.util.spec_from_file_location("pt_hstu_attention", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step(function, module, lengths, options, dtype) -> dict[str, torch.Tensor]:
    """Output and gradients on one batch, the same values in every precision."""
    torch.manual_seed(sum(lengths))
    drawn = [torch.randn(sum(lengths), HEADS, WIDTH) for _ in range(3)]
    leaves = dict(zip("qkv", (x.to(dtype).requires_grad_() for x in drawn)))
    options = dict(options)
    if isinstance(options.get("attn_scale"), str):
        leaves["scale"] = torch.rand(sum(lengths)).to(dtype).requires_grad_()
        options["attn_scale"] = leaves["scale"]
    offsets = offsets_of(lengths)
    given = (N, 0.25, leaves["q"], leaves["k"], leaves["v"], offsets)
    output = function(*given, training=True, **options)
    grads = torch.autograd.grad(output.square().sum(), list(leaves.values()))
    return {"output": output.detach(), **dict(zip(leaves, grads))}


def slow_pad(values, offsets, max_lengths, padding_value=0.0):
    """What fbgemm's function returns, in any dtype."""
    (at,), (n,) = offsets, max_lengths
    rows = [values[a:b][:n] for a, b in zip(at[:-1].tolist(), at[1:].tolist())]
    return torch.stack([torch.cat([r, r.new_zeros(n - len(r), *r.shape[1:])]) for r in rows])


def slow_unpad(dense, offsets, total):
    lengths = offsets[0].diff().tolist()
    return (torch.cat([row[:length] for row, length in zip(dense, lengths)]), offsets)


class Slow:
    """Stands in for torch.ops.fbgemm in the exact reference."""

    jagged_to_padded_dense = staticmethod(slow_pad)
    dense_to_jagged = staticmethod(slow_unpad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_runs_on_the_values_alone(hstu, name, dtype, monkeypatch):
    recorder = Recorder()
    compiled = torch.compile(hstu.pytorch_hstu_mha, backend=recorder, fullgraph=True)
    for lengths in LENGTHS:
        mine = step(compiled, hstu, lengths, OPTIONS[name], dtype)
        eager = step(hstu.pytorch_hstu_mha, hstu, lengths, OPTIONS[name], dtype)
        with monkeypatch.context() as patch:
            patch.setattr(torch.ops, "fbgemm", Slow)
            exact = step(hstu.pytorch_hstu_mha, hstu, lengths, OPTIONS[name], torch.float64)
        for key in eager:
            direction = "forward" if key == "output" else "backward"
            fault = error_of(mine[key], eager[key], exact[key], direction=direction)
            assert not fault, f"{lengths}, {key}: {fault}"
    for graph in recorder.graphs:
        (match,) = graph.matches
        assert match.problem.jagged_query and match.problem.jagged_key and not match.notes
        assert not graph.guards_added
        # Neither padding nor a mask of N x N is left.
        gone = ("jagged_to_padded_dense", "dense_to_jagged", "arange", "eye", "logical_or")
        assert not any(graph.calls_after[call] for call in gone), graph.after
        assert all("n" not in spec.access for spec in match.problem.program.aux)


def test_counts_jagged_matches(hstu):
    compiled = torch.compile(
        hstu.pytorch_hstu_mha, backend="gdpa", fullgraph=True, options={"gdpa.profit": False}
    )
    step(compiled, hstu, LENGTHS[0], {}, torch.float32)
    counted = torch._dynamo.utils.counters["gdpa"]
    assert (counted["matched"], counted["matched_varlen"]) == (1, 1)
