"""The watchdog, with processes that hang, crash and end."""

import sys
import time
from pathlib import Path

import pytest

import gdpa_inductor
from gdpa_inductor.proving.watchdog import COMPILES, RUNS, Ended, watched

NOTE = """
import json, os, subprocess, sys, time
def note(**line): print(json.dumps(line), file=open(sys.argv[1], "a"), flush=True)
"""
SHORT = {"": 60.0, RUNS: 2.0}


def ran(program: str, **limits: float) -> Ended:
    return watched([sys.executable, "-c", NOTE + program], limits={**SHORT, **limits})


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_lines_of_a_process_that_ends():
    ended = ran('note(case="a", doing="runs"); note(case="a", verdict="")')
    assert ended == Ended([{"case": "a", "doing": RUNS}, {"case": "a", "verdict": ""}], "")


def test_a_hang_is_ended_with_all_its_processes():
    """As a kernel that waits for ever: nothing in the process can end it. The last line says what
    hung.
    """
    start = time.monotonic()
    ended = ran(
        """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
note(case="a", doing="compiles", pids=[os.getpid(), other.pid])
note(case="b", doing="runs")
time.sleep(600)
"""
    )
    assert ended.how == "no end after 2 s" and ended.at["case"] == "b"
    assert time.monotonic() - start < 60
    pids = ended.lines[0]["pids"]
    while any(map(alive, pids)) and time.monotonic() - start < 90:  # a killed one ends when it runs
        time.sleep(0.1)
    assert not any(map(alive, pids))


def test_each_line_begins_a_time_of_its_own():
    ended = ran('for i in range(8): note(doing="runs"); time.sleep(0.4)')
    assert ended.how == "" and len(ended.lines) == 8


def test_compiling_may_take_longer_than_running():
    program = 'note(doing="compiles"); time.sleep(2.5); note(doing="runs")'
    assert ran(program).how == ""
    assert ran(program, **{COMPILES: 0.5}).how == "no end after 0.5 s"


def test_a_process_that_never_says_anything_is_ended_too():
    ended = ran("time.sleep(600)", **{"": 0.5})
    assert ended == Ended([], "no end after 0.5 s") and ended.at == {}


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.abort()", "ended by SIGABRT"),
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("raise ValueError('no such kernel')", "ended with status 1: ValueError: no such kernel"),
        ("os._exit(3)", "ended with status 3: no message"),
    ],
)
def test_a_crash_is_named(end: str, how: str):
    ended = ran(f'note(case="a", doing="runs"); {end}')
    assert (ended.how, ended.at["case"]) == (how, "a")


def test_a_line_that_a_crash_cut_is_left_out():
    ended = ran('note(case="a"); open(sys.argv[1], "a").write("{\\"case"); os._exit(1)')
    assert ended.lines == [{"case": "a"}]


def test_the_process_finds_the_package_and_what_we_find(monkeypatch, tmp_path):
    """Also if it runs in another folder, as a script of the user does."""
    (tmp_path / "elsewhere.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    program = "import elsewhere, gdpa_inductor; note(file=gdpa_inductor.__file__)"
    assert ran(program).at == {"file": gdpa_inductor.__file__}
