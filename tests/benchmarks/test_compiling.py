"""`bench compile`: each job twice, with empty caches and with those of the first time."""

import itertools
import os
import threading

import pytest

from benchmarks import supervise
from benchmarks.cases import Case
from benchmarks.output import table
from benchmarks.suites import Selection, compiling
from benchmarks.worker import Job

CASE = Case("silu", "none", 1, 1, 16, 8, "float32", "cpu")


def test_the_second_process_finds_what_the_first_left(monkeypatch):
    seen = []

    def fake(jobs, budget, env):
        folder = env["TORCHINDUCTOR_CACHE_DIR"]
        seen.append((folder, os.listdir(folder)))
        open(os.path.join(folder, "kernel"), "w").close()
        yield {"contender": jobs[0].contenders[0], "measure": "step", "compile_s": 1.0}

    monkeypatch.setattr(supervise, "supervise", fake)
    jobs = [Job(CASE, (name,), ("step",)) for name in ("gdpa", "inductor")]
    rows = list(supervise.cold_and_warm(jobs, 60, {}))
    measured = [(r["contender"], r["measure"]) for r in rows]
    assert measured == [*itertools.product(("gdpa", "inductor"), ("cold", "warm"))]
    assert [files for _, files in seen] == [[], ["kernel"], [], ["kernel"]]
    assert len({folder for folder, _ in seen}) == 2
    assert not any(os.path.exists(folder) for folder, _ in seen)


def test_a_compile_is_timed_in_a_process_of_its_own():
    (cold, warm) = supervise.cold_and_warm([Job(CASE, ("eager",), ("step",), 0.0)], 120, os.environ)
    assert not cold["error"] and not warm["error"]
    assert cold["compile_s"] > 0
    assert "cold" in table([cold, warm], "compile_s")


def test_rows_of_jobs_side_by_side_are_there_as_they_come(monkeypatch):
    """A run that is cut off has those of the jobs that are through, and of a first process."""
    go_on, ended = threading.Event(), threading.Event()

    def fake(jobs, budget, env):
        name = jobs[0].contenders[0]
        cold = not os.listdir(env["TORCHINDUCTOR_CACHE_DIR"])
        open(os.path.join(env["TORCHINDUCTOR_CACHE_DIR"], "kernel"), "w").close()
        if name == "gdpa" and not cold:
            assert go_on.wait(60)
        yield {"contender": name}
        if name == "inductor" and not cold:
            ended.set()

    monkeypatch.setattr(supervise, "supervise", fake)
    jobs = [Job(CASE, (name,), ("step",)) for name in ("gdpa", "inductor")]
    rows = supervise.cold_and_warm(jobs, 60, {}, at_once=2)
    first = [next(rows) for _ in range(3)]
    assert ended.wait(60)
    through = {("gdpa", "cold"), ("inductor", "cold"), ("inductor", "warm")}
    assert {(r["contender"], r["measure"]) for r in first} == through
    go_on.set()
    assert [(r["contender"], r["measure"]) for r in rows] == [("gdpa", "warm")]


def test_a_stream_that_fails_is_seen():
    def broken():
        yield {"contender": "gdpa"}
        raise ValueError("no such case")

    rows = supervise.as_they_come([broken(), iter([{"contender": "inductor"}])], at_once=2)
    with pytest.raises(ValueError, match="no such case"):
        list(rows)


def test_rows_of_models_beside_shapes():
    shapes = ((32, 4, 1024, 128),)
    pick = Selection("cuda", 0.1, variants=("none",), shapes=shapes, rows=("relu-vit",))
    cases = [job.case for job in compiling(pick)]
    kinds = [(case.activation, case.variant) for case in cases]
    assert kinds == [("silu", "none")] * 2 + [("relu-vit", "model")] * 2


def test_one_contender_a_process():
    jobs = compiling(Selection(device="cuda", seconds=0.1))
    assert {job.contenders for job in jobs} == {("gdpa",), ("inductor",)}
    assert {job.case.variant for job in jobs} == {"none", "causal", "bias", "model"}
    assert all(job.measures == ("step",) and not job.cold for job in jobs)
