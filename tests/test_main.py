"""The command line: tools of the package, and those of a checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpa_inductor import __main__ as command

ROOT = Path(__file__).parents[1]


def ran(*command: object, path: object = ROOT, **how: object) -> subprocess.CompletedProcess:
    """Python, with the repository on its path."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **how)


HELP = ["doctor --help", "demo --help", "bench --help", "bench ceiling --help"]


@pytest.mark.parametrize("argv", ["--help", "--version", *HELP])
def test_help_answers_without_torch(argv: str, tmp_path: Path) -> None:
    """It took as long as `import torch` does."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch is loaded')")
    script = tmp_path / "gdpa"  # as pip writes it
    script.write_text("import sys; from gdpa_inductor.__main__ import main; sys.exit(main())")
    for program in (["-m", "gdpa_inductor"], [script]):
        done = ran(*program, *argv.split(), path=os.pathsep.join([str(tmp_path), str(ROOT)]))
        assert done.returncode == 0 and "gdpa" in done.stdout, done.stderr


def test_a_script_of_the_same_name_has_all_names(tmp_path: Path) -> None:
    """Asked for its own help, it imports the package as ever."""
    script = tmp_path / "gdpa"
    script.write_text("from gdpa_inductor import *; print(attention.__name__, Options().profit)")
    done = ran(script, "--help")
    assert done.stdout.startswith("attention "), done.stderr


@pytest.mark.parametrize("tool", ["demo", "bench"])
def test_a_tool_of_the_checkout_runs_in_any_folder(tool: str, tmp_path: Path) -> None:
    done = ran("-m", "gdpa_inductor", tool, "--help", cwd=tmp_path)
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
