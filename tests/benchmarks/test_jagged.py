"""The jagged suite: lengths and counts of the published protocol, and a formula that is the op."""

from pathlib import Path

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.peers import PEERS, build
from benchmarks.subjects import subject
from benchmarks.suites import JAGGED_SIZES, Selection, jagged
from gdpa_inductor import gdpa_backend
from gdpa_inductor._compat.dynamo import counters


def small(activation: str, variant: str, keys: int = 0) -> Case:
    return Case(activation, variant, 5, 2, 24, 16, "float32", "cpu", fill=0.5, keys=keys)


def test_flops_count_the_scores_that_exist():
    case = small("silu", "none")
    rows = case.lengths().long()
    assert 1 <= rows.min() < rows.max() < 24
    assert case.flops == 4 * 2 * 16 * int((rows * rows).sum())
    assert small("silu", "causal").scores == case.scores // 2
    assert small("silu", "none", keys=8).scores == 8 * int(rows.sum())
    full = Case("silu", "none", 5, 2, 24, 16, "float32", "cpu", fill=1.0)
    assert full.scores == 5 * 24 * 24


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(small("silu", "causal"), id="causal"),
        pytest.param(small("gelu_tanh", "none"), id="plain", marks=pytest.mark.slow),
        pytest.param(small("gelu_tanh", "none", 8), id="short keys", marks=pytest.mark.slow),
        pytest.param(small("silu", "layer"), id="layer", marks=pytest.mark.slow),
    ],
)
def test_the_formula_is_found_and_runs_on_the_values(case: Case):
    torch._dynamo.reset()
    counters.clear()
    on = subject(case)
    options = {"gdpa.profit": False}
    out = torch.compile(on.function, backend=gdpa_backend, options=options)(*on.inputs)
    grads = torch.autograd.grad(out, on.leaves, on.direction)
    assert counters["gdpa"]["matched_varlen"] == 1
    wanted = on.function(*on.inputs)
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)
    eager = torch.autograd.grad(wanted, on.leaves, on.direction)
    torch.testing.assert_close(grads, eager, atol=1e-4, rtol=1e-4)


def test_the_suite_holds_every_bar_and_its_peer():
    bars = {
        (job.case.activation, job.case.variant, job.case.length, job.case.fill, job.case.keys, name)
        for job in jagged(Selection("cuda", 0.1, peers="folder"))
        for name in job.contenders
    }
    for size in JAGGED_SIZES:
        for name in ("gdpa", "meta", "inductor", "gdpa-atomic", "meta-atomic"):
            assert ("gelu_tanh", "none", *size, name) in bars
        assert (("silu", "causal", *size, "hstu") in bars) == (size[2] == 0)
    assert {job.peers for job in jagged(Selection("cuda", 0.1, peers="folder"))} == {"folder"}


def test_the_suite_keeps_the_activations_and_measures_asked_for():
    pick = Selection("cuda", 0.1, measures=("backward", "step"), activations=("gelu_tanh",))
    assert {(job.case.activation, job.measures) for job in jagged(pick)} == {
        ("gelu_tanh", ("backward",))
    }
    assert {job.contenders for job in jagged(pick)} >= {("gdpa",), ("meta",), ("inductor",)}


def test_a_peer_needs_its_folder(tmp_path: Path):
    case = small("gelu_tanh", "none")
    with pytest.raises(ImportError, match="--peers"):
        build("meta", case, "")
    with pytest.raises(ImportError):
        build("meta", case, str(tmp_path))
    with pytest.raises(NotImplementedError):
        build("hstu", case, str(tmp_path))
    assert set(PEERS) == {"meta", "meta-atomic", "hstu"}
