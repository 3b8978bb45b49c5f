"""The demo from end to end on a small set, and its verdict."""

from pathlib import Path

import pytest

from gdpa_inductor.demo import __main__ as demo
from gdpa_inductor.demo import data, worker
from gdpa_inductor.demo.worker import Run, Setting

SETTING = Setting("", "cpu", 3, 2, 16, "")


def result(contender: str, losses: list[float], matches: int = 0) -> Run:
    found = Run(contender, losses, 1.0, 2.0, None, 1e-7, 1e-6, {"HR@10": 0.1})
    found.matches = matches
    return found


RIGHT = (
    "PASSED: gdpa fused 2 regions and trained to the same losses as eager (0.0e+00 apart, limit "
    "0.001); a step takes 2.0 ms (eager), 2.0 ms (gdpa)."
)
OTHER = (
    "FAILED: gdpa fused 1 region and trained to OTHER LOSSES than eager (1.0e-01 apart, limit "
    "0.001); a step takes 2.0 ms (eager), 2.0 ms (gdpa)."
)
UNFUSED = (
    "FAILED: gdpa fused NOTHING and trained to the same losses as eager (0.0e+00 apart, limit "
    "0.001); a step takes 2.0 ms (eager), 2.0 ms (gdpa)."
)


@pytest.mark.parametrize(
    ("losses", "matches", "line"),
    [([3.0, 2.0, 1.0], 2, RIGHT), ([3.0, 2.0, 1.1], 1, OTHER), ([3.0, 2.0, 1.0], 0, UNFUSED)],
    ids=["right", "other losses", "nothing fused"],
)
def test_the_verdict_is_one_line(losses: list[float], matches: int, line: str):
    results = {"eager": result("eager", [3.0, 2.0, 1.0]), "gdpa": result("gdpa", losses, matches)}
    assert demo.verdict(results, SETTING) == (line == RIGHT, line)


def test_data_is_kept_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was kept in the current folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo.parse_arguments([]).cache == tmp_path / "gdpa_inductor"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert demo.parse_arguments([]).cache == Path.home() / ".cache" / "gdpa_inductor"


def test_a_worker_that_fails_fails_the_demo(tmp_path: Path, capsys):
    (tmp_path / "ml-100k.inter").write_text(data.generate(users=10, items=40))
    arguments = ["--cache", str(tmp_path), "--steps", "1", "--contenders", "no-such-backend"]
    assert demo.main(arguments) == 1
    assert "no-such-backend" in capsys.readouterr().err


def test_all_contenders_train_as_many_steps_as_the_first_manages(monkeypatch):
    """The first, given 0 seconds, stops behind its first step."""
    wanted: dict[str, int] = {}

    def fake(setting: Setting) -> Run:
        wanted[setting.contender] = setting.steps
        steps = 1 if setting.seconds == 0 else setting.steps
        return result(setting.contender, [1.0] * steps)

    monkeypatch.setattr(demo, "run_worker", fake)
    found = demo.run_all(SETTING, ["eager", "inductor", "gdpa"], seconds=0.0)
    assert wanted == {"eager": 3, "inductor": 1, "gdpa": 1}
    assert [len(each.losses) for each in found] == [1, 1, 1]


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 1), (60.0, 3)])
def test_training_stops_in_time(tmp_path: Path, seconds: float, steps: int):
    path = tmp_path / "generated.inter"
    path.write_text(data.generate(users=10, items=40))
    setting = Setting("eager", "cpu", 3, 2, 16, str(path), negatives=8, seconds=seconds)
    assert len(worker.run(setting).losses) == steps


@pytest.mark.slow
def test_demo_end_to_end(tmp_path: Path, capsys):
    (tmp_path / "ml-100k.inter").write_text(data.generate(users=40, items=300))
    arguments = ["--cache", str(tmp_path), "--steps", "12", "--batch", "8", "--length", "512"]
    assert demo.main([*arguments, "--contenders", "eager", "gdpa"]) == 0
    printed = capsys.readouterr().out
    assert "gdpa_inductor/demo/model.py" in printed
    assert printed.splitlines()[-1].startswith("PASSED: gdpa fused ")
