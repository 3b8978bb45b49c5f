"""The command: what it says of its machine."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from benchmarks import run as bench
from benchmarks.__main__ import main, parse_arguments
from benchmarks.cases import Case
from benchmarks.machine import cpu_model, header, machine
from benchmarks.worker import SKIPPED, Job, Measurement


def test_a_figure_of_a_cpu_has_its_machine():
    details = machine("cpu")
    assert set(details) == {"date", "python", "torch", "cpu", "capability", "compiler"}
    assert all(details.values())
    assert details["capability"] == torch.backends.cpu.get_cpu_capability()


def test_a_cpu_is_named_as_linux_names_it(tmp_path: Path):
    table = tmp_path / "cpuinfo"
    table.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: another\n")
    assert cpu_model(table) == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "none")


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert machine("cpu")["compiler"] == "none"


def test_a_run_begins_with_its_command():
    details = header("cpu", ("cpu", "--shapes", "2x4x256x64"))
    assert details["command"] == "python -m gdpa_inductor bench cpu --shapes 2x4x256x64"
    assert details["machine"] == machine("cpu")


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What argparse says below its usage."""
    with pytest.raises(SystemExit) as ended:
        parse_arguments(argv)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


CASE = Case("silu", "none", 1, 1, 64, 16, "float32", "cpu")


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch):
    """A suite of one case, whose contenders have these errors."""

    def run(errors: dict[str, str], *argv: str) -> int:
        job = Job(CASE, tuple(errors), ("forward",))

        def measured(jobs, budget, environment, at_once):
            for name, error in errors.items():
                case = dataclasses.asdict(CASE)
                yield dataclasses.asdict(Measurement(case, name, "forward", 1.0, 1.0, error=error))

        monkeypatch.setitem(bench.SUITES, "cpu", lambda pick: [job])
        monkeypatch.setattr(bench, "side_by_side", measured)
        return main(["cpu", *argv])

    return run


def test_a_table_for_people_and_lines_for_programs(one_case, tmp_path: Path, capsys):
    assert one_case({"gdpa": "", "eager": ""}, "--out", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert "{" not in printed.out.split("\n\n", 1)[1] and "speedup" in printed.out
    assert "2/2  eager forward" in printed.err
    wrote = [line.split()[-1] for line in printed.err.splitlines() if line.startswith("wrote")]
    assert {str(tmp_path / "cpu.csv"), str(tmp_path / "cpu.jsonl")} <= set(wrote)
    first, *rows = map(json.loads, (tmp_path / "cpu.jsonl").read_text().splitlines())
    assert "command" in first and [row["contender"] for row in rows] == ["gdpa", "eager"]
    assert one_case({"gdpa": "", "eager": ""}, "--json") == 0
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [line.get("contender") for line in lines] == [None, "gdpa", "eager"]


@pytest.mark.parametrize(("error", "status"), [(SKIPPED, 0), ("the worker died", 1), ("", 0)])
def test_a_budget_that_is_spent_is_no_failure(error: str, status: int, one_case, capsys):
    """It was one of each cell that had no time left."""
    assert one_case({"gdpa": error, "inductor": "its own failure"}) == status
    assert ("skipped: budget" in capsys.readouterr().out) == (error == SKIPPED)


@pytest.mark.parametrize("suite", ["dense", "grid"])
def test_a_suite_for_gpus_points_to_that_for_cpus(suite: str, monkeypatch, capsys):
    """It ran for ten minutes first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "is for a GPU, and torch finds none: run `bench cpu`, or give --device cpu"
    assert f"{suite} {message}" in refusal([suite], capsys)
    assert parse_arguments([suite, "--device", "cpu"]).device == "cpu"
    assert "torch finds no NVIDIA GPU" in refusal(["jagged", "--device", "cuda"], capsys)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse_arguments([suite]).device == "cuda"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cpu", "--activations", "silu", "sillu"], "'sillu' is unknown; did you mean 'silu'?"),
        (["models", "--rows", "gau-relu"], "'gau-relu' is unknown; did you mean 'gau-relu2'?"),
        (["models", "--rows", "?"], "'?' is unknown; choose from hstu-padded, "),
        (["cpu", "--contenders", "indutcor"], "'indutcor' is unknown; did you mean 'inductor'?"),
    ],
)
def test_an_unknown_name_is_no_row_of_a_table(argv: list[str], message: str, capsys):
    assert f"error: argument {argv[1]}: {message}" in refusal(argv, capsys)
    assert parse_arguments(["models", "--rows", "gau-relu2"]).rows == ["gau-relu2"]
    assert "error: argument SUITE: 'modles' is unknown; did you mean" in refusal(["modles"], capsys)
