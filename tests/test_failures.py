"""A failing test says why, and with which seed it fails again, in 40 lines at most; and a run is
under the number of threads and the instruction set that it was asked for.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import pytest_sessionstart

REPOSITORY = Path(__file__).parents[1]
MOST_LINES = 40

PROGRAM = """
import logging
import sys

import torch
import torch.nn.functional as F

from gdpa_inductor import gdpa_backend
from tests._judge import compare
from tests.operands import make_operands


def attention(q, k, v):
    return F.silu(q @ k.mT) @ v


def test_wrong_value():
    operands = make_operands(dict.fromkeys("qkv", "b n d"), {"b": 2, "n": 8, "d": 4})
    def compiled(q, k, v):
        return torch.compile(attention, backend=gdpa_backend)(q, k, v) * 1.001
    assert not compare(attention, compiled, operands)


def test_refused_by_dynamo():
    def broken(q):
        torch._dynamo.graph_break()
        return attention(q, q, q)
    torch.compile(broken, backend=gdpa_backend, fullgraph=True)(torch.randn(3, 3))


def test_raised_by_inductor(monkeypatch):
    def broken(*args):
        raise ArithmeticError("the lowering is broken" + "\\n...of the compiler" * 300)
    monkeypatch.setattr("torch._inductor.graph.GraphLowering.codegen", broken)
    for stream in (sys.stdout, sys.stderr):
        print("\\nprinted" * 300, file=stream)
    logging.getLogger("gdpa_inductor").warning("\\nlogged" * 300)
    try:
        torch.compile(attention, backend=gdpa_backend)(*torch.randn(3, 2, 8, 4))
    except Exception as error:
        raise ValueError("second" + "\\n...of the second" * 300) from error
"""
REASONS = {
    "test_wrong_value": "output 0: differs from eager by",
    "test_refused_by_dynamo": "Call to `torch._dynamo.graph_break()`",
    "test_raised_by_inductor": "the lowering is broken",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one run of all the failing tests prints."""
    path = tmp_path_factory.mktemp("failing") / "test_failing.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(REPOSITORY / "pyproject.toml")]
    command += ["-p", "tests.conftest", str(path)]
    environment = {**os.environ, "CI": "1", "PYTEST_ADDOPTS": ""}  # where CI is set, it prints more
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert f"{len(REASONS)} failed" in run.stdout, run.stdout
    return run.stdout


@pytest.mark.parametrize("name", REASONS)
def test_a_failure_says_why_in_few_lines(name: str, printed: str):
    """In so few lines with all that is printed around the failures, but for the other summaries."""
    before, *failures = re.split(r"^_+ (test_\w+) _+$", printed, flags=re.M)
    failures[-1], after = re.split(r"^(?==+ short test summary)", failures[-1], flags=re.M)
    mine = dict(zip(failures[::2], failures[1::2]))[name]
    lines = [*before.splitlines(), name, *mine.splitlines()]
    lines += [x for x in after.splitlines() if name in x or "FAILED" not in x]
    assert len(lines) <= MOST_LINES, printed
    assert REASONS[name] in mine, printed
    assert "GDPA_SEED=" in mine, printed
    assert sum(name in x for x in after.splitlines()) == 1, printed


def test_threads_and_instruction_set_are_those_asked_for(monkeypatch: pytest.MonkeyPatch):
    """More threads than cores too, where MKL alone would have fewer."""
    before, threads = torch.get_num_threads(), 2 * (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    pytest_sessionstart()
    assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "no-such")
    with pytest.raises(pytest.UsageError, match="the instruction set no-such was asked for"):
        pytest_sessionstart()
