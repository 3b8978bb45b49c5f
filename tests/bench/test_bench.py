"""The command: what it says of its machine."""

from pathlib import Path

import pytest
import torch

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
