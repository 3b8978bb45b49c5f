"""Table, CSV and floor, from made-up measurements."""

import csv
import dataclasses
from pathlib import Path

import pytest

from benchmarks import floor, output
from benchmarks.cases import Case
from benchmarks.worker import SKIPPED, Measurement

CASE = Case("silu", "none", 64, 4, 512, 128, "bfloat16", "cuda")


def row(name: str, ms: float, measure: str = "forward", **fields) -> output.Row:
    tflops = CASE.flops / ms / 1e9
    return dataclasses.asdict(
        Measurement(dataclasses.asdict(CASE), name, measure, ms, tflops, **fields)
    )


def test_table_holds_speedup_share_of_floor_and_memory():
    rows = [
        row("floor tanh.approx", 0.95),
        row("gdpa", 1.0, peak_mib=10.0, off=2e-3),
        row("inductor", 2.5, peak_mib=200.0),
        row("cudnn", 0.8),
    ]
    head, line = output.table(rows, "ms").splitlines()
    assert head.split()[-5:] == ["MiB", "gdpa", "MiB", "inductor", "off"]
    wanted = ["0.95", "1.00", "2.50", "0.80", "2.50", "95.0%", "10.0", "200.0", "2.0e-03"]
    assert line.split()[-len(wanted) :] == wanted


@pytest.mark.parametrize("names", [("gdpa-always",), ("gdpa-always", "gdpa")])
def test_ours_under_another_name_is_compared_too(names: tuple[str, ...]):
    """The default one, if it is among them."""
    rows = [row(name, 1.0 + i, peak_mib=10.0 + i) for i, name in enumerate(names)]
    head, line = output.table([*rows, row("inductor", 3.0)], "ms").splitlines()
    assert f"MiB {names[-1]} " in head
    assert line.split()[-2:] == [f"{3.0 / len(names):.2f}", f"{9.0 + len(names):.1f}"]


def test_failures_and_refusals_are_named():
    refused = "rejected=1; m.py:3: NOT_PROFITABLE/TOO_SMALL: too few rows"
    rows = [row("inductor", 2.0, error="OOM\nmore"), row("gdpa", 1.0, said=refused)]
    assert "failed" in output.table(rows, "tflops")
    inductor, gdpa = output.notes(rows)
    assert inductor.endswith("inductor: OOM")
    assert gdpa.endswith(refused)


def test_what_the_budget_left_no_time_for_is_one_line():
    rows = [row("gdpa", 1.0), row("gdpa", 1.0, "step", error=SKIPPED), row("eager", 1.0)]
    assert "skipped" in output.table(rows, "ms") and "failed" not in output.table(rows, "ms")
    assert output.notes(rows) == ["1 of 3 skipped: budget; --budget SECONDS gives more time"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([57.4], [50, 100]),
        ([0.3, 1.2], [0.2, 0.5, 1, 2]),
        ([1, 10], [1, 2, 5, 10]),
        ([7, 1900], [5, 10, 20, 50, 100, 200, 500, 1000, 2000]),
    ],
)
def test_ticks_are_plain_numbers(values: list[float], ticks: list[float]):
    """One was 5.74 × 10¹."""
    assert output.plain_ticks(values) == ticks
    rows = [row(f"gdpa {value}", value) for value in values]
    axis = Axis()
    output.draw(axis, "", rows, "ms")
    assert axis.said["set_yticks"] == (ticks, [f"{tick:g}" for tick in ticks])
    assert axis.said["set_ylabel"] == ("time (ms)",) and "minorticks_off" in axis.said


def test_csv_reads_back(tmp_path: Path):
    path = tmp_path / "dense.csv"
    output.write_csv([row("gdpa", 1.0), row("inductor", 2.0)], path)
    first, second = csv.DictReader(path.open())
    assert (first["contender"], first["length"], first["ms"]) == ("gdpa", "512", "1.0")
    assert second["contender"] == "inductor"


STICK = """
import json
print("a line that is not JSON")
print(json.dumps(dict(act="silu, ex2+rcp", B=64, H=4, N=512, D=128, fwd=352.0, bwd=278.0)))
"""


def test_floor_speaks_the_language_of_the_run(tmp_path: Path, capsys):
    script = tmp_path / "stick.py"
    script.write_text(STICK)
    forward, backward = floor.run_floor([str(script)], 60, {})
    assert Case.parse(forward["case"]) == CASE
    assert (forward["contender"], forward["measure"]) == ("floor ex2+rcp", "forward")
    assert forward["tflops"] == 352.0
    assert backward["ms"] == pytest.approx(2.5 * CASE.flops / 278e9)
    assert "not JSON" in capsys.readouterr().err
    assert "%" in output.table([row("gdpa", 1.0), forward], "tflops")


def test_floor_out_of_time_keeps_what_it_has(tmp_path: Path, capsys):
    script = tmp_path / "stick.py"
    script.write_text(STICK + "import sys, time\nsys.stdout.flush()\ntime.sleep(60)\n")
    assert len(list(floor.run_floor([str(script)], 2, {}))) == 2
    assert "not done after 2 s" in capsys.readouterr().err


class Axis:
    """Keeps what was drawn and set."""

    def __init__(self) -> None:
        self.lines: dict[str, list[int]] = {}
        self.said: dict[str, tuple] = {}

    def plot(self, xs, ys, mark, label, linewidth) -> None:
        self.lines[label] = list(xs)

    def __getattr__(self, name):
        return lambda *values, **_: self.said.__setitem__(name, values)


def test_a_plot_begins_at_zero_and_names_lengths_as_they_are() -> None:
    rows = [row("gdpa", 1.0), row("inductor", 2.0)]
    axis = Axis()
    output.draw(axis, "", rows, "tflops")
    low, high = axis.said["set_ylim"]
    assert low == 0 and high > max(r["tflops"] for r in rows)
    assert axis.said["set_xticks"] == ([CASE.length], [str(CASE.length)])


def test_jagged_cases_of_one_length_are_lines_of_their_own() -> None:
    rows = [row("gdpa", 1.0), row("gdpa", 1.5)]
    rows[0]["case"]["fill"], rows[1]["case"]["fill"], rows[1]["case"]["keys"] = 0.5, 1.0, 64
    axis = Axis()
    output.draw(axis, "", rows, "tflops")
    assert axis.lines == {"gdpa, fill 0.5": [CASE.length], "gdpa, fill 1, 64 keys": [CASE.length]}


def test_plot_is_written(tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "dense.png"
    output.plot([row("gdpa", 1.0), row("inductor", 2.0)], path, "tflops")
    assert path.read_bytes().startswith(b"\x89PNG")
