"""The command line: tools of the package, and those of a checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpa_inductor import __main__ as command

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("tool", ["demo", "bench"])
def test_a_tool_of_the_checkout_runs_in_any_folder(tool: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gdpa_inductor", tool, "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and f"gdpa_inductor {tool}" in done.stdout, done.stderr


@pytest.mark.parametrize("tool", ["demo", "bench"])
def test_what_pip_installs_says_where_a_tool_is(tool: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    assert command.main([tool]) == 2
    message = f"gdpa_inductor: {tool} is part of the repository, not of what pip installs"
    assert message in capsys.readouterr().err


def test_processes_of_a_tool_find_it_too(monkeypatch) -> None:
    """Both start workers of their own."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit):
        command.main(["demo", "--help"])
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "elsewhere"]
