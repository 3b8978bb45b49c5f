"""The demo from end to end on a small set, and its verdict."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from docs.tools import demo as record
from examples.movielens import data, demo, worker
from examples.movielens.__main__ import main, parse_arguments
from examples.movielens.worker import Run, Setting

SETTING = Setting("", "cpu", 3, 2, 16, "")


def result(contender: str, losses: list[float], matches: int = 0) -> Run:
    found = Run(contender, losses, 1.0, 2.0, None, 1e-7, 1e-6, {"HR@10": 0.1})
    found.matches = matches
    return found


RIGHT = (
    "PASSED: gdpa fused 2 regions and trained to the same losses as eager in 3 steps (0.0e+00 "
    "apart, limit 0.001); a step takes 2.0 ms (eager), 2.0 ms (gdpa)."
)
OTHER = (
    "FAILED: gdpa fused 1 region and trained to OTHER LOSSES than eager in 3 steps (1.0e-01 "
    "apart, limit 0.001); a step takes 2.0 ms (eager), 2.0 ms (gdpa)."
)
UNFUSED = (
    "FAILED: gdpa fused NOTHING and trained to the same losses as eager in 3 steps (0.0e+00 "
    "apart, limit 0.001); a step takes 2.0 ms (eager), 2.0 ms (gdpa)."
)


@pytest.mark.parametrize(
    ("losses", "matches", "line"),
    [([3.0, 2.0, 1.0], 2, RIGHT), ([3.0, 2.0, 1.1], 1, OTHER), ([3.0, 2.0, 1.0], 0, UNFUSED)],
    ids=["right", "other losses", "nothing fused"],
)
def test_the_verdict_is_one_line(losses: list[float], matches: int, line: str):
    results = {"eager": result("eager", [3.0, 2.0, 1.0]), "gdpa": result("gdpa", losses, matches)}
    assert demo.verdict(results, SETTING, demo.CONTENDERS) == (line == RIGHT, line)


def test_the_verdict_is_of_what_was_run():
    """Over the steps that both had time for; and none where one had no result."""
    both = {"eager": result("eager", [3.0, 2.0, 1.0]), "gdpa": result("gdpa", [3.0, 2.0], 2)}
    good, line = demo.verdict(both, SETTING, demo.CONTENDERS)
    assert good and "the same losses as eager in 2 steps" in line
    late = "UNDECIDED: gdpa had no result in time."
    assert demo.verdict({"eager": both["eager"]}, SETTING, demo.CONTENDERS) == (False, late)
    assert demo.verdict({"eager": both["eager"]}, SETTING, ["eager"]) == (True, "")


def test_data_is_kept_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was kept in the current folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert parse_arguments([]).cache == tmp_path / "gdpa_inductor"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert parse_arguments([]).cache == Path.home() / ".cache" / "gdpa_inductor"


def test_a_worker_that_fails_fails_the_demo(tmp_path: Path, capsys):
    (tmp_path / "ml-100k.inter").write_text(data.generate(users=10, items=40))
    arguments = ["--cache", str(tmp_path), "--steps", "1", "--contenders", "no-such-backend"]
    assert main(arguments) == 1
    assert "no-such-backend" in capsys.readouterr().err


class FakeWorker:
    """A contender that needs no time."""

    asked: ClassVar[list[tuple[str, str, float]]]
    clock: ClassVar[list[float]]

    def __init__(self, setting: Setting) -> None:
        self.setting, self.name, self.result = setting, setting.contender, None
        self.asked.append((self.name, "starts", self.clock[0]))

    def compile(self, seconds: float) -> bool:
        self.asked.append((self.name, "compiles", seconds))
        return True

    def train(self, seconds: float) -> None:
        self.asked.append((self.name, "trains", seconds))
        steps = 1 if self.setting.seconds == 0 else self.setting.steps
        self.result = result(self.name, [1.0] * steps)

    def end(self) -> None:
        pass


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, float]]:
    monkeypatch.setattr(demo, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "asked", [], raising=False)
    monkeypatch.setattr(FakeWorker, "clock", [1000.0], raising=False)
    return FakeWorker.asked


def test_all_contenders_train_as_many_steps_as_the_first_manages(fake_workers):
    """The first, given 0 seconds, stops behind its first step."""
    runs = demo.run_all(SETTING, ["eager", "inductor", "gdpa"], 0.0, time.time() + 60)
    assert [(run.contender, len(run.losses)) for run in runs] == [
        ("eager", 1), ("inductor", 1), ("gdpa", 1),
    ]  # fmt: skip


def test_a_run_is_recorded_for_the_documentation(monkeypatch, fake_workers, tmp_path):
    """docs/tools/demo.py trains as the demo does, and writes a line for each contender."""
    monkeypatch.setattr(record, "prepare", lambda given: (None, SETTING))
    monkeypatch.setattr(record, "popularity", lambda *_: {"HR@10": 0.05})
    monkeypatch.setattr(record, "MEASUREMENTS", tmp_path)
    record.main(["--busy", "--device", "cpu", "--steps", "3"])
    header, *rows = map(json.loads, (tmp_path / "demo.jsonl").read_text().splitlines())
    assert header["command"] == 'make demo ARGS="--device cpu --steps 3"'
    assert [(row["contender"], row.get("steps"), row.get("step_ms")) for row in rows] == [
        ("eager", 3, None), ("gdpa", 3, None), ("inductor", 3, None),
        ("popularity alone", None, None),
    ]  # fmt: skip


def test_contenders_share_the_time(monkeypatch, fake_workers):
    """What one leaves is for those after it. The others compile at the same time."""
    clock = FakeWorker.clock
    monkeypatch.setattr(time, "time", lambda: clock[0])
    train = FakeWorker.train

    def slow(self: FakeWorker, seconds: float) -> None:
        train(self, seconds)
        clock[0] += 100 if self.name == "eager" else seconds

    monkeypatch.setattr(FakeWorker, "train", slow)
    demo.run_all(SETTING, ["eager", "gdpa", "inductor"], 25.0, clock[0] + 600)
    assert fake_workers == [
        ("eager", "starts", 1000.0), ("eager", "compiles", 140.0), ("eager", "trains", 200.0),
        ("gdpa", "starts", 1100.0), ("inductor", "starts", 1100.0),
        ("gdpa", "compiles", 350.0), ("inductor", "compiles", 350.0),
        ("gdpa", "trains", 250.0), ("inductor", "trains", 250.0),
    ]  # fmt: skip
    assert clock[0] == 1600.0


def test_a_contender_that_does_not_compile_in_time_is_left_out(monkeypatch, fake_workers, capsys):
    monkeypatch.setattr(FakeWorker, "compile", lambda self, seconds: self.name != "inductor")
    runs = demo.run_all(SETTING, ["eager", "gdpa", "inductor"], 25.0, time.time() + 600)
    assert [run.contender for run in runs] == ["eager", "gdpa"]
    assert capsys.readouterr().out == "inductor: no result in time.\n"


SLOW = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"step": 1, "loss": 2.0, "pid": child.pid}), flush=True)
if "result" in sys.argv[1]:
    run = {"contender": "eager", "losses": [2.0], "compile_s": 0.0, "step_ms": 1.0}
    run |= {"peak_bytes": None, "loss_error": 0.0, "grad_error": 0.0}
    print(json.dumps({"result": run}), flush=True)
time.sleep(600)
"""


class Spy:
    """json, that keeps the ids of the processes that a worker tells of."""

    def __init__(self, pids: list[int]) -> None:
        self.pids, self.dumps = pids, json.dumps

    def loads(self, text: str) -> dict:
        message = json.loads(text)
        self.pids += [message.pop("pid")] if "pid" in message else []
        return message


def status_of(pid: int) -> str:
    path = Path(f"/proc/{pid}/status")
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("contender", ["none", "result"])
def test_a_worker_that_takes_too_long_is_ended(contender: str, tmp_path: Path, monkeypatch):
    """With the processes that it has started. What it has reported counts."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport sys; sys.argv.pop(1); sys.argv.pop(1)\n{SLOW}")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    pids: list[int] = []
    monkeypatch.setattr(demo, "json", Spy(pids))
    begun = time.monotonic()
    slow = demo.Worker(Setting(contender, "cpu", 1, 1, 1, ""))
    try:
        assert not slow.compile(3.0)
    finally:
        slow.end()
    assert time.monotonic() - begun < 60
    losses = None if slow.result is None else slow.result.losses
    assert losses == ([2.0] if contender == "result" else None)
    (child,) = pids
    late = time.monotonic() + 60
    while (status := status_of(child)) and "zombie" not in status:
        assert time.monotonic() < late, status  # a signal is sent, and acted on a little later
        time.sleep(0.01)


@pytest.mark.parametrize("late", ["seconds", "until"])
def test_training_stops_in_time(tmp_path: Path, late: str):
    path = tmp_path / "generated.inter"
    path.write_text(data.generate(users=10, items=40))
    setting = Setting("eager", "cpu", 3, 2, 16, str(path), negatives=8)
    assert len(worker.run(dataclasses.replace(setting, **{late: 0.0})).losses) == 1
    assert len(worker.run(setting).losses) == 3


@pytest.mark.slow
def test_demo_end_to_end(tmp_path: Path, capsys):
    (tmp_path / "ml-100k.inter").write_text(data.generate(users=40, items=300))
    arguments = ["--cache", str(tmp_path), "--steps", "12", "--batch", "8", "--length", "512"]
    assert main([*arguments, "--contenders", "eager", "gdpa"]) == 0
    printed = capsys.readouterr().out
    assert "examples/movielens/model.py" in printed
    assert printed.splitlines()[-1].startswith("PASSED: gdpa fused ")
