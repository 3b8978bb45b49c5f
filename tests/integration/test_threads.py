"""Threads that compile and run models at the same time."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
import torch

from gdpa_inductor.kernels.blocked import block_pass, loop
from gdpa_inductor.kernels.blocked.block_pass import Compiled, Pass
from gdpa_inductor.program.score_mod import ScoreMod
from tests.integration.test_processes import run

PROGRAM = Path(__file__).parent / "threads.py"


def test_sixteen_threads_and_eight_models(tmp_path: Path) -> None:
    """All look the backend up at once. Nothing fails, is left behind or runs uncompiled."""
    result, stderr = run("16", "10", "cpu", program=PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert result["errors"] == result["warnings"] == result["left"] == [], stderr[-2000:]
    assert result["gdpa"]["matched"] >= 8


# What is compiled at run time


def work_of(text: str, rows: int = 5) -> tuple[Pass, list[torch.Tensor]]:
    return Pass(ScoreMod.parse(text).weight), [torch.zeros(1, 2, rows, 6)] * 2


def test_it_is_compiled_under_the_lock_of_dynamo(monkeypatch) -> None:
    """Another thread that compiles is waited for, and then nothing is compiled twice."""
    compiles = []
    monkeypatch.setattr(
        block_pass, "_runner", lambda *arguments: compiles.append(arguments) or print
    )
    monkeypatch.setattr(block_pass, "RUNNERS", Compiled(8))
    work, tensors = work_of("relu(mul(s,0.8125))")
    threads = [threading.Thread(target=block_pass.compiled, args=(work, tensors)) for _ in range(4)]
    with torch._dynamo.convert_frame.compile_lock:
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert compiles == [] and all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert len(compiles) == 1
    # What is compiled is found while another thread holds the lock.
    with torch._dynamo.convert_frame.compile_lock:
        finding = threading.Thread(target=block_pass.compiled, args=(work, tensors))
        finding.start()
        finding.join(10)
        assert not finding.is_alive()


def test_a_failure_is_not_kept(monkeypatch, caplog) -> None:
    """It is told once, the plain form runs, and after a while it is tried again."""
    clock, tries = [0.0], []

    def runner(*arguments):
        tries.append(clock[0])
        if len(tries) < 3:
            raise OSError("no space left on device")
        return print

    monkeypatch.setattr(block_pass, "_runner", runner)
    monkeypatch.setattr(block_pass, "RUNNERS", Compiled(8))
    monkeypatch.setattr(block_pass.time, "monotonic", lambda: clock[0])
    work, tensors = work_of("relu(mul(s,0.6875))")
    runners = []
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        for clock[0] in (0.0, 1.0, 59.0, 61.0, 100.0, 123.0, 124.0):
            runners.append(block_pass.compiled(work, tensors))
    assert tries == [0.0, 61.0, 123.0]
    assert runners == [work] * 5 + [print] * 2
    (record,) = caplog.records
    assert "no space left" in record.getMessage()


def test_sizes_of_a_kind_fail_together(monkeypatch, caplog) -> None:
    """Without a C++ compiler, say: one try, one warning and one entry for all of them."""
    tries = []

    def runner(*arguments):
        tries.append(arguments)
        raise OSError("no space left on device")

    monkeypatch.setattr(block_pass, "_runner", runner)
    monkeypatch.setattr(block_pass, "RUNNERS", Compiled(8))
    with caplog.at_level(logging.WARNING, "gdpa_inductor"):
        for text in ("relu(mul(s,0.5625))", "relu(mul(s,0.4375))"):
            for rows in range(5, 15):
                work, tensors = work_of(text, rows)
                assert block_pass.compiled(work, tensors) is work
    assert len(tries) == len(block_pass.RUNNERS.failures) == 2 and len(caplog.records) == 1


def test_a_recorded_block_is_tried_again(monkeypatch) -> None:
    """Its recording keeps what was compiled, and no failure."""
    work, tensors = work_of("relu(mul(s,0.625))")
    runs: list[str] = []
    answers = [work, lambda *_: runs.append("compiled")]
    monkeypatch.setattr(loop, "compiled", lambda *_, **__: answers.pop(0))
    block = loop.BlockProgram(work, lengths_vary=False)
    for _ in range(3):
        block(*tensors)
    assert runs == ["compiled"] * 2 and answers == []


def test_failures_are_not_kept_without_end() -> None:
    cache = Compiled(3)
    for key in range(9):
        assert cache.get(key, lambda: 1 / 0, print, "cpu") is print
    assert list(cache.failures) == [6, 7, 8]


@pytest.mark.parametrize("most", [1, 3])
def test_what_was_used_longest_ago_goes(most: int) -> None:
    cache = Compiled(most)
    for key in "abcd":
        cache.get(key, lambda key=key: key.upper, print, "cpu")
    cache.get("d", lambda: pytest.fail("it was compiled"), print, "cpu")
    assert list(cache.runners) == list("abcd")[-most:]
