"""One job in a worker, and the run over crashes and past its budget."""

import contextlib
import dataclasses
import logging
import os
import sys
import threading
import types
from unittest import mock

import pytest
import torch

from benchmarks import contenders, supervise, worker
from benchmarks.cases import Case
from benchmarks.subjects import subject

CASE = Case("silu", "bias", 2, 2, 16, 8, "float32", "cpu")


def job(*names: str, measures: tuple[str, ...] = ("forward",)) -> worker.Job:
    return worker.Job(CASE, names, measures, seconds=0.01)


def test_measures_time_memory_and_operations():
    (forward, step) = worker.run_job(job("eager", measures=("forward", "step")))
    assert not forward.error and not step.error
    assert forward.ms and step.ms
    assert forward.tflops == pytest.approx(CASE.flops / forward.ms / 1e9)
    assert step.tflops == pytest.approx(3.5 * CASE.flops / step.ms / 1e9)
    assert forward.peak_mib is not None


def test_a_single_run_has_no_spread(monkeypatch):
    monkeypatch.setattr(worker, "times_ms", lambda calls, *_: {name: [2.0] for name in calls})
    (row,) = worker.run_job(job("eager"))
    assert row.ms == 2.0 and row.spread is None


@pytest.mark.parametrize("measure", worker.CALLS)
def test_a_wrong_contender_is_seen(monkeypatch, measure: str):
    def almost(function):
        return lambda *operands: 1.01 * function(*operands)

    monkeypatch.setitem(contenders.CONTENDERS, "almost", almost)
    (row,) = worker.run_job(job("almost", measures=(measure,)))
    assert row.off == pytest.approx(0.01, rel=1e-3)


def test_a_failing_contender_leaves_the_others_alone(monkeypatch):
    def broken(function):
        raise RuntimeError("does not compile")

    monkeypatch.setitem(contenders.CONTENDERS, "broken", broken)
    broken_row, eager_row = worker.run_job(job("broken", "eager"))
    assert broken_row.error == "RuntimeError: does not compile"
    assert broken_row.ms is None
    assert eager_row.ms and not eager_row.error


def test_files_are_named_without_the_place_where_they_lie():
    with worker.listening() as heard:
        logging.getLogger("gdpa_inductor").info("%s: refused", "/some/where/package/attend.py:3")
    assert heard == ["package/attend.py:3: refused"]
    assert worker.off_this_machine("a/b/c.py:1 and 1/2") == "a/b/c.py:1 and 1/2"


def test_a_model_is_measured_with_the_gradients_of_its_parameters():
    case = Case("hstu-padded", "model", 2, 2, 16, 8, "float32", "cpu")
    on = subject(case)
    assert {id(p) for p in on.leaves} == {id(p) for p in on.function.parameters()}
    (row,) = worker.run_job(worker.Job(case, ("eager",), ("step",), 0.01))
    assert row.ms and not row.error
    assert row.tflops is None


def test_a_model_that_is_not_installed_is_an_error_and_no_crash(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_pytorch", None)
    case = Case("gau-relu2", "model", 2, 1, 16, 8, "float32", "cpu")
    (row,) = worker.run_job(worker.Job(case, ("eager",), ("forward",), 0.01))
    assert "flash_pytorch" in row.error


def test_distance_is_relative():
    wanted = torch.tensor([3.0, 4.0])
    assert worker.distance(wanted, wanted) == 0
    assert worker.distance(torch.tensor([3.0, 4.5]), wanted) == pytest.approx(0.1)
    assert worker.distance(torch.ones(4), torch.zeros(4)) == 2


def test_supervised_run_in_a_real_worker():
    rows = list(supervise.supervise([job("eager")], budget=120, env=os.environ))
    assert [(row["contender"], row["error"]) for row in rows] == [("eager", "")]
    assert rows[0]["ms"] > 0


def test_a_new_worker_takes_over_behind_a_crash(monkeypatch):
    """Every `step` kills its worker: job 1 is lost after its forward, job 2 runs in the next."""
    started: list[int] = []

    def fake(jobs, deadline, env):
        started.append(len(jobs))
        for index, each in enumerate(jobs):
            yield {"begin": index}
            for measure in each.measures:
                if measure == "step":
                    return
                row = worker.Measurement(dataclasses.asdict(each.case), "eager", measure, ms=1.0)
                yield dataclasses.asdict(row)
        yield {"ended": 0}

    monkeypatch.setattr(supervise, "one_worker", fake)
    jobs = [job("eager"), job("eager", measures=("forward", "step")), job("eager")]
    rows = list(supervise.supervise(jobs, budget=60, env={}))
    assert started == [3, 1]
    assert [(r["measure"], r["error"]) for r in rows] == [
        ("forward", ""),
        ("forward", ""),
        ("step", "the worker died"),
        ("forward", ""),
    ]


def test_what_no_time_is_left_for_is_said():
    rows = list(supervise.supervise([job("eager", measures=("forward", "step"))], 0, {}))
    assert [(r["measure"], r["error"]) for r in rows] == [
        ("forward", worker.SKIPPED),
        ("step", worker.SKIPPED),
    ]


def test_workers_side_by_side_leave_no_job_out():
    jobs = [job("eager"), job("eager", measures=("step",)), job("eager")]
    rows = list(supervise.side_by_side(jobs, 120, os.environ, at_once=2))
    results = sorted((row["measure"], row["error"]) for row in rows)
    assert results == [("forward", "")] * 2 + [("step", "")]


def test_nobody_computes_while_a_worker_measures(tmp_path):
    """A turn alone waits for the one beside it, which holds the file when it begins."""
    path = tmp_path / "turns"
    path.touch()
    sharing = worker.Job(job("eager").case, ("eager",), ("forward",), turns=str(path))
    order: list[str] = []

    def measured() -> None:
        with worker.turn(sharing, alone=True):
            order.append("measured")

    with worker.turn(sharing, alone=False):
        other = threading.Thread(target=measured)
        other.start()
        other.join(0.2)
        order.append("compiled")
    other.join()
    assert order == ["compiled", "measured"]


def test_inductor_compares_kernels_while_others_wait(tmp_path, monkeypatch):
    """A worker that compiles beside others lets the one that measures go first."""
    fcntl = pytest.importorskip("fcntl")
    heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
    path = tmp_path / "turns"
    path.touch()
    beside = worker.Job(
        Case("silu", "none", 1, 1, 16, 8, "float32", "cuda"), (), (), turns=str(path)
    )
    order: list[str] = []
    locked, compared = threading.Event(), threading.Event()
    compare = lambda *_: order.append("compared")
    monkeypatch.setattr(heuristics.CachingAutotuner, "benchmark_all_configs", compare)

    def other() -> None:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            locked.set()
            compared.wait(10)
            order.append("compiled")

    thread = threading.Thread(target=other)
    with worker.turn(beside, alone=False):
        thread.start()
        locked.wait(10)
        threading.Timer(0.2, compared.set).start()
        heuristics.CachingAutotuner.benchmark_all_configs(None)
    thread.join()
    assert order == ["compiled", "compared"]


def test_around_comparisons():
    """Inductor compares configurations of a kernel by the method that is wrapped."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    order = []

    @contextlib.contextmanager
    def around():
        order.append("begins")
        yield
        order.append("ends")

    class Tuner(CachingAutotuner):
        """A kernel of two configurations, of which only the comparison is real."""

        def __init__(self):
            self.launchers = [mock.MagicMock(), mock.MagicMock()]
            self._prune_compile_results_to_launcher = lambda launcher: None  # 2.13
            self.fn = types.SimpleNamespace(__name__="kernel")

        def __getattr__(self, name):
            return mock.MagicMock()

    def compare(self, *args, **kwargs):
        order.append("compares")
        return dict(zip(self.launchers, (2.0, 1.0), strict=True))

    with mock.patch.object(CachingAutotuner, "benchmark_all_configs", compare):
        with worker.around_comparisons(around):
            tuner = Tuner()
            fast = tuner.launchers[1]
            tuner.autotune_to_one_config(1)
        assert CachingAutotuner.benchmark_all_configs is compare
    assert order == ["begins", "compares", "ends"] and tuner.launchers == [fast]
