"""Run a process that may hang or crash, and end it when it has been silent for too long."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPEED = ":speed"  # ends the name of what `child` does if it times families
COMPILES, RUNS, STARVES = "compiles", "runs", "lacks memory"  # what it says that it does
START = 180.0  # seconds until the first line: it imports torch, and makes a context on the GPU
# Seconds for the kernels of one case. A kernel that hangs may hold back the load of the next one,
# so such a hang takes as long.
COMPILING = 300.0
RUNNING = 30.0  # seconds for its runs, which take less than one
REAPING = 20.0  # seconds until a killed process has to be gone
INTERVAL = 0.05

Line = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """lines: What the process noted. how: Why it did not end by itself with status 0, or ""."""

    lines: Sequence[Line]
    how: str

    @property
    def at(self) -> Line:
        """What it did last."""
        return self.lines[-1] if self.lines else {}


def watched(command: Sequence[str], limits: Mapping[str, float] | None = None) -> Ended:
    """Run `command` with the name of a file, to which it adds a line of JSON at each step.

    limits: Seconds that may pass after a line, by what it says that the process is "doing". By ""
    those until the first line. Some may be given, for tests.
    """
    limits = {"": START, COMPILES: COMPILING, RUNS: RUNNING, STARVES: RUNNING, **(limits or {})}
    with tempfile.TemporaryDirectory() as folder:
        notes, errors = Path(folder, "notes"), Path(folder, "errors")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, str(notes)],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment(),
                start_new_session=True,  # a group of its own, which is killed with its children
            )
        try:
            how = _wait(process, notes, limits)
        finally:
            _kill(process)
        if not how and process.returncode:
            how = _status(process.returncode, errors)
        return Ended(_lines(notes), how)


def _wait(process: subprocess.Popen[bytes], notes: Path, limits: Mapping[str, float]) -> str:
    """Until the process ends. Returns why it has to be killed, or ""."""
    heard, size, limit = time.monotonic(), -1, limits[""]
    while process.poll() is None:
        time.sleep(INTERVAL)
        now = notes.stat().st_size if notes.exists() else 0
        if now != size:
            heard, size = time.monotonic(), now
            lines = _lines(notes)
            if lines:
                limit = limits[lines[-1].get("doing", COMPILES)]
        if time.monotonic() - heard > limit:
            return f"no end after {limit:g} s"
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole group, at once. A process that a driver holds back is left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAPING)


def _lines(notes: Path) -> list[Line]:
    """Those that are complete."""
    text = notes.read_text(encoding="utf-8") if notes.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _status(code: int, errors: Path) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    said = errors.read_text(errors="replace").strip().splitlines() or ["no message"]
    return f"ended with status {code}: {said[-1]}"


def python(*arguments: str) -> list[str]:
    """A command that runs a module of this package with this interpreter."""
    return [sys.executable, "-m", *arguments]


def environment() -> dict[str, str]:
    """Ours, in which a process also finds this package, wherever this one has it from."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
