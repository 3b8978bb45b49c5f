"""The command: what it says of its machine."""

from pathlib import Path

import pytest
import torch

from gdpa_inductor.bench.__main__ import parse_arguments
from gdpa_inductor.bench.machine import cpu_model, header, machine


def test_a_figure_of_a_cpu_has_its_machine():
    found = machine("cpu")
    assert set(found) == {"date", "python", "torch", "cpu", "capability", "compiler"}
    assert all(found.values())
    assert found["capability"] == torch.backends.cpu.get_cpu_capability()


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
    found = header("cpu", ("cpu", "--shapes", "2x4x256x64"))
    assert found["command"] == "python -m gdpa_inductor bench cpu --shapes 2x4x256x64"
    assert found["machine"] == machine("cpu")


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What argparse says below its usage."""
    with pytest.raises(SystemExit) as ended:
        parse_arguments(argv)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("suite", ["dense", "grid"])
def test_a_suite_for_gpus_points_to_that_for_cpus(suite: str, monkeypatch, capsys):
    """It ran for ten minutes first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = "is for a GPU, and torch finds none: run `bench cpu`, or give --device cpu"
    assert f"{suite} {told}" in refusal([suite], capsys)
    assert parse_arguments([suite, "--device", "cpu"]).device == "cpu"
    assert "torch finds no NVIDIA GPU" in refusal(["jagged", "--device", "cuda"], capsys)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse_arguments([suite]).device == "cuda"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["cpu", "--activations", "silu", "sillu"], "'sillu' is unknown; did you mean 'silu'?"),
        (["models", "--rows", "gau-relu"], "'gau-relu' is unknown; did you mean 'gau-relu2'?"),
        (["models", "--rows", "?"], "'?' is unknown; choose from hstu-padded, "),
    ],
)
def test_an_unknown_name_is_no_row_of_a_table(argv: list[str], told: str, capsys):
    assert f"error: argument {argv[1]}: {told}" in refusal(argv, capsys)
    assert parse_arguments(["models", "--rows", "gau-relu2"]).rows == ["gau-relu2"]
