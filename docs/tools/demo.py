"""The demo as a record, docs/measurements/demo.jsonl, from which `make benchmarks` makes tables.

python -m docs.tools.demo [the demo's options]

Times are medians of steps. Run it on a machine that does nothing else, or pass `--busy`: then no
time is written.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Any

from benchmarks.machine import machine
from examples.movielens.__main__ import parse_arguments
from examples.movielens.demo import popularity, prepare, run_all
from examples.movielens.report import difference
from examples.movielens.worker import Run

from .benchmarks import MEASUREMENTS

BUSY = "Other work ran on the machine, so no time is given."


def row(run: Run, first: Run, busy: bool) -> dict[str, Any]:
    """Memory, quality and, unless the machine was busy, time of one contender."""
    return {
        "contender": run.contender,
        "measure": "demo",
        "steps": len(run.losses),
        "step_ms": None if busy else run.step_ms,
        "peak_mib": run.peak_bytes / 2**20 if run.peak_bytes else None,
        "metrics": run.metrics,
        "curve": difference(run, first),
        "regions": run.matches,
    }


def main(argv: list[str]) -> None:
    busy = "--busy" in argv
    argv = [word for word in argv if word != "--busy"]
    arguments = parse_arguments(argv)
    until = time.time() + arguments.limit
    histories, setting = prepare(arguments)
    runs = run_all(setting, arguments.contenders, arguments.seconds, until)
    popular = popularity(histories, setting)
    header = {
        "machine": machine(arguments.device),
        "command": " ".join(["make demo", *([f'ARGS="{shlex.join(argv)}"'] if argv else [])]),
        "note": BUSY if busy else "",
    }
    lines = [header, *(row(run, runs[0], busy) for run in runs)]
    lines += [{"contender": "popularity alone", "measure": "demo", "metrics": popular}]
    (MEASUREMENTS / "demo.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
