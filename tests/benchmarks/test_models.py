"""`bench models`: every row is what it says, and its table says what was measured."""

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gdpa_inductor
from benchmarks import worker
from benchmarks.cases import Case, formula
from benchmarks.models import MODELS, summary
from benchmarks.profiled import share_of
from benchmarks.subjects import reference, subject
from benchmarks.suites import Selection, models

WHOLE = {name: model for name, model in MODELS.items() if not model.fill}
each = pytest.mark.parametrize("name", MODELS)


def small(name: str, dtype: str = "float32") -> Case:
    return MODELS[name].case(name, "cpu", dtype)


def built(name: str, dtype: str = "float32"):
    """The subject of a row, unless it is of a package or a file that is not here."""
    try:
        return subject(small(name, dtype))
    except ImportError as error:
        pytest.skip(str(error))


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= {tuple(t.shape) for t in tree_leaves(result) if torch.is_tensor(t)}
        return result


def test_the_rows_are_named_in_advance():
    assert len(MODELS) >= 14
    assert {job.case.activation for job in models(pick()) if job.case.variant == "model"} == set(
        MODELS
    )


@each
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "autocast"])
def test_every_attention_of_a_row_becomes_ours(name: str, dtype: str):
    on = built(name, dtype)
    calls = lambda *inputs: dataclasses.replace(on, inputs=inputs).running(on.function)
    report = gdpa_inductor.explain(calls, profit=False)(*on.inputs)
    assert len(report.matches) == MODELS[name].regions, str(report)


@each
def test_the_attention_alone_has_the_scores_of_the_model(name: str):
    on, sizes = built(name), {c.padded_scores for c in MODELS[name].attentions(small(name))}
    with Shapes() as shapes:
        on.running(on.function)
    assert sizes <= {torch.Size(shape).numel() for shape in shapes.seen}


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_else_on_a_gpu_is_as_large_as_the_scores(name: str):
    """By their size the profile knows them."""
    case = dataclasses.replace(MODELS[name].case(name, "cuda", "autocast"), device="cpu")
    scores = {c.padded_scores: {c.length, c.keys or c.length} for c in WHOLE[name].attentions(case)}
    try:
        with FakeTensorMode(), Shapes() as shapes:
            on = WHOLE[name].build(case)
            on.function(*on.inputs)
    except ImportError as error:
        pytest.skip(str(error))
    as_large = [s for s in shapes.seen if torch.Size(s).numel() in scores]
    assert as_large
    for shape in as_large:
        assert scores[torch.Size(shape).numel()] <= set(shape), shape


@each
def test_the_attention_alone_runs(name: str):
    for case in MODELS[name].attentions(small(name)):
        on = subject(case)
        assert on.running(on.function).shape == on.direction.shape


def test_an_attention_alone_has_the_sizes_of_its_model():
    (alone,) = MODELS["gau-laplace"].attentions(
        Case("gau-laplace", "model", 8, 4, 4096, 128, "autocast", "cuda")
    )
    assert alone == Case("laplace", "bias", 8, 1, 4096, 128, "bfloat16", "cuda", value_dim=1024)
    assert alone.flops == 2 * 8 * 4096**2 * (128 + 1024)


def test_keys_and_values_of_other_sizes():
    case = Case("gelu", "bias", 2, 3, 8, 4, "float32", "cpu", keys=5, value_dim=6)
    on = subject(case)
    assert [tuple(t.shape[-2:]) for t in on.inputs] == [(8, 4), (5, 4), (5, 6), (8, 5)]
    assert formula(case)(*on.inputs).shape == on.direction.shape == (2, 3, 8, 6)


def test_a_reference_is_the_same_subject_in_fp64():
    on = subject(small("pffn", "autocast"))
    exact = reference(on, torch.float64)
    assert exact.autocast is None and on.autocast is torch.bfloat16
    assert [leaf.shape for leaf in exact.leaves] == [leaf.shape for leaf in on.leaves]
    assert {leaf.dtype for leaf in exact.leaves} == {torch.float64}
    grads = worker.step_call(on.function, on)()
    wanted = worker.step_call(exact.function, exact)()
    assert 1e-5 < worker.worst(grads, wanted) < 0.1


def test_a_row_is_measured_against_fp64():
    job = worker.Job(small("pffn"), ("gdpa-always", "eager"), ("step",), 0.01, cold=True)
    ours, eager = worker.run_job(job)
    assert not ours.error and not eager.error
    assert (ours.regions, ours.reference, eager.reference) == (1, "float64", "float64")
    assert 0 < ours.distance < 1e-5 and 0 < eager.distance < 1e-5
    assert ours.compile_s > eager.compile_s


def pick(**chosen) -> Selection:
    return Selection(device="cuda", seconds=0.1, **chosen)


def test_each_attention_is_measured_once_behind_its_model():
    jobs = models(pick(rows=("hstu-production", "hstu-production-targets"), measures=("step",)))
    order = [(job.case.activation, *job.contenders) for job in jobs]
    first, second = (
        [(name, contender) for contender in ("gdpa", "inductor", "eager")]
        for name in ("hstu-production", "hstu-production-targets")
    )
    assert order == [*first, ("silu", "gdpa"), ("silu", "inductor"), *second]
    assert all(job.cold for job in jobs)


def event(shapes, *microseconds: float) -> SimpleNamespace:
    kernels = [SimpleNamespace(duration=us) for us in microseconds]
    return SimpleNamespace(input_shapes=shapes, kernels=kernels)


def test_share_is_that_of_kernels_with_as_many_elements():
    events = [
        event([[2, 8, 4], [2, 4, 8], [2, 8, 8]], 5.0, 1.0),
        event([[128], [], []], 2.0),
        event([[2, 8, 4], [4, 4]], 8.0),
        event(None, 4.0),
        event([[2, 8, 8]]),
    ]
    assert share_of(events, {128}) == pytest.approx(8 / 20)
    assert share_of([event([[128]])], {128}) is None


def row(case: Case, name: str, ms: float, **fields) -> dict:
    return dataclasses.asdict(
        worker.Measurement(dataclasses.asdict(case), name, "step", ms, **fields)
    )


def test_the_table_says_what_limits_a_row():
    case = MODELS["pffn"].case("pffn", "cuda", "autocast")
    (alone,) = MODELS["pffn"].attentions(case)
    rows = [
        row(case, "gdpa", 2.0, regions=1, share=0.0, distance=2e-3),
        row(case, "inductor", 3.0, share=0.5),
        row(case, "eager", 0.0, error="out of memory"),
        row(alone, "gdpa", 1.0),
        row(alone, "inductor", 4.0),
    ]
    head, *lines = summary.summary(rows).splitlines()
    assert len(lines) == 1 and "reached" in head
    # 1 / (1 - 0.5 + 0.5 / 4) = 1.6, and 1.5 was measured.
    for part in ("failed", " 1.50 ", "50%", " 4.00 ", " 1.60 ", "94%", "1/1"):
        assert part in lines[0]
    assert summary.bound(0.5, 4.0) == pytest.approx(1.6)
    assert summary.bound(None, 4.0) is None


STAND_IN = """
import sys
sys.modules["fbgemm_gpu"] = None
import torch
import gdpa_inductor
from benchmarks.models import fbgemm
from benchmarks.models.hstu import offsets
fbgemm.provide(); fbgemm.provide()
ops = torch.ops.fbgemm
ends = offsets(torch.tensor([3, 0, 4])).long()
x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
pad = lambda x: ops.jagged_to_padded_dense(values=x, offsets=[ends], max_lengths=[4])
cut = lambda y: ops.dense_to_jagged(y, [ends], 7)[0]
padded = pad(x)
assert padded.shape == (3, 4, 4) and torch.equal(padded[2], x[3:7]) and not padded[0, 3:].any()
assert torch.equal(cut(padded), x)
assert torch.equal(ops.dense_to_jagged(padded, [ends])[0], x)
assert torch.autograd.gradcheck(pad, (x,))
assert torch.autograd.gradcheck(cut, (padded.detach().requires_grad_(),))
attend = lambda q, k, v: cut(torch.relu(pad(q) @ pad(k).mT) @ pad(v))
report = gdpa_inductor.explain(attend, profit=False)(*torch.randn(3, 7, 4))
assert len(report.matches) == 1, report
"""


def test_fbgemms_operators_are_there_without_fbgemm():
    command, environment = [sys.executable, "-c", STAND_IN], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-1500:]
