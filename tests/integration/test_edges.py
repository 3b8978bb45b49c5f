"""Edges of a process: forks, signals, clocks, caches, low memory, environments."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration import edges
from tests.integration.test_processes import run

# They fork processes with threads, fill memory and wait: too much for a machine that others use.
pytestmark = pytest.mark.slow
PROGRAM = Path(edges.__file__)
SERIAL = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
ALONE = {"plain", "disabled"}  # of `ENVIRONMENTS`

# What is set for a new process, or missing there (None), and its scenario.
ENVIRONMENTS: dict[str, tuple[dict[str, str | None], str]] = {
    "ascii": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "plain"),
    "no assertions": ({"PYTHONOPTIMIZE": "2"}, "plain"),
    "no home": ({"HOME": None, "USER": None, "LOGNAME": None}, "plain"),
    "no caches": ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, "plain"),
    "no compile": ({"TORCH_COMPILE_DISABLE": "1"}, "disabled"),
    "no Dynamo": ({"TORCHDYNAMO_DISABLE": "1"}, "disabled"),
}


def scenarios(cold: bool) -> list[str]:
    """The names of those that need a parent that has not imported the package, or of the others."""
    return [name for name in edges.SCENARIOS if (name in edges.COLD) == cold and name not in ALONE]


def path() -> str:
    """Python's path, with the folder of these tests."""
    return os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])


def alone(scenario: str, **environment: str) -> str | None:
    """The problem of a scenario in a process of its own."""
    result, _ = run(scenario, program=PROGRAM, PYTHONPATH=path(), **SERIAL, **environment)
    return result["problem"]


@pytest.fixture(scope="module")
def parent() -> Iterator[Callable[[str], str | None]]:
    """Runs scenarios by name, each in a fork of one process, and says what their problem is."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TORCH")}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env={**clean, **SERIAL, "PYTHONPATH": path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def problem(scenario: str) -> str | None:
        print(scenario, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())["problem"]

    yield problem
    process.stdin.close()
    assert process.wait() == 0


@pytest.mark.parametrize("scenario", scenarios(cold=False))
def test_forked(scenario: str, parent: Callable[[str], str | None]) -> None:
    """What happens in a process that has compiled a model."""
    problem = parent(scenario)
    assert problem is None, problem


@pytest.mark.parametrize("scenario", scenarios(cold=True))
def test_first_import(scenario: str) -> None:
    problem = alone(scenario)
    assert problem is None, problem


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, scenario = ENVIRONMENTS[name]
    for variable in changed:
        monkeypatch.delenv(variable, raising=False)
    problem = alone(scenario, **{k: v for k, v in changed.items() if v is not None})
    assert problem is None, problem


def test_verdicts_are_found_under_another_seed_of_hashes(tmp_path: Path) -> None:
    names = []
    for seed in "12":
        set_here = {"PYTHONHASHSEED": seed, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        assert alone("plain", **set_here) is None
        names.append(sorted(path.name for path in (tmp_path / "gdpa_verdicts").iterdir()))
    assert names[0] == names[1] != []
