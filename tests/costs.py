"""CPU seconds of the tests by folder.

Machines differ, and one machine differs from hour to hour. So seconds are those of a machine on
which `loop` takes one, with as many of it at once as there are workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

# CPU seconds of a folder in `make test`, above which a run fails: about twice what it took. On a
# machine that others use it takes longer, and the loop tells only half of that.
BUDGETS = {
    "tests/*.py": 650,
    "tests/adversary": 260,
    "tests/benchmarks": 160,
    "tests/clients": 230,
    "tests/compat": 60,
    "tests/emulator": 45,
    "tests/gpu": 20,
    "tests/integration": 330,
    "tests/judge": 120,
    "tests/kernels": 1350,
    "tests/lowerings": 350,
    "tests/movielens": 40,
    "tests/patterns": 570,
    "tests/program": 60,
    "tests/proving": 90,
    "tests/timing": 90,
}

_LOOP = "import time; sum(i * i % 7 for i in range(14_000_000)); print(time.process_time())"


def cpu_seconds() -> float:
    """Of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def loop(workers: int) -> float:
    """The mean of the CPU seconds of some loops at once."""
    command = [sys.executable, "-c", _LOOP]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    return sum(float(one.communicate()[0]) for one in running) / workers


def by_folder(report: Path) -> dict[str, float]:
    """CPU seconds out of a JUnit file: a test says its own as the property `cpu` (conftest)."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        names = case.get("classname", "").split(".")
        folder = "/".join(names[:2]) if len(names) > 2 else f"{names[0]}/*.py"
        said = case.find("properties/property[@name='cpu']")
        seconds[folder] += float(said.get("value", 0)) if said is not None else 0.0
    return dict(seconds.most_common())


def table(seconds: dict[str, float], second: float) -> str:
    """What each folder took. second: what `loop` took here."""
    rows = [*seconds.items(), ("all", sum(seconds.values()))]
    return "\n".join(f"{folder:18s} {took / second:6.0f} CPU s" for folder, took in rows)


def over(seconds: dict[str, float], second: float) -> list[str]:
    """The folders above their budget, or without one, each in a sentence."""
    return [
        f"{folder} took {took / second:.0f} CPU s; its budget is {BUDGETS.get(folder, 0)}"
        for folder, took in seconds.items()
        if took / second > BUDGETS.get(folder, 0)
    ]
