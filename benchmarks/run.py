"""A run of `bench`: its suites are measured, and the rows written and shown.

In: the parsed arguments. Out: JSON lines, a table, files, and the exit status.
"""

import argparse
import difflib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from examples.movielens.report import Progress

from .cases import ACTIVATIONS
from .contenders import CONTENDERS
from .floor import run_floor
from .machine import header
from .models import MODELS
from .models.summary import summary
from .output import notes, plot, table, write_csv
from .peers import PEERS
from .suites import SUITES, Selection
from .supervise import cold_and_warm, side_by_side
from .worker import SKIPPED

Row = dict[str, Any]
# Options whose values are names of these tables.
NAMES = {
    "contenders": (*CONTENDERS, *PEERS),
    "activations": tuple(ACTIVATIONS),
    "rows": tuple(MODELS),
}
ON_GPU = ("dense", "grid", "wide")  # suites whose shapes fill a GPU
# The unit of a suite's table. Other suites show TFLOP/s on a GPU and milliseconds on a CPU.
UNITS = {"compile": "compile_s", "models": "ms"}
TITLES = {"tflops": "TFLOP/s", "ms": "milliseconds", "compile_s": "seconds of the first call"}


def device(arguments: argparse.Namespace) -> str:
    """The device that is asked for, else the GPU, if there is one."""
    return arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")


def unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
    return f"{name!r} is unknown; {hint}"


def fault(arguments: argparse.Namespace) -> str:
    """The error message for arguments that argparse accepts but the suites cannot use, or ""."""
    if arguments.suite not in SUITES:
        return f"argument SUITE: {unknown(arguments.suite, SUITES)}"
    for option, known in NAMES.items():
        for name in (n for n in getattr(arguments, option) if n not in known):
            return f"argument --{option}: {unknown(name, known)}"
    if torch.cuda.is_available():
        return ""
    if arguments.device == "cuda":
        return "torch finds no NVIDIA GPU"
    if arguments.suite in ON_GPU and arguments.device is None:
        return (
            f"{arguments.suite} is for a GPU, and torch finds none: run `bench cpu`, or give "
            "--device cpu for shapes that take a CPU long"
        )
    return ""


def selection(arguments: argparse.Namespace) -> Selection:
    return Selection(
        device=arguments.device,
        seconds=arguments.seconds or (0.3 if arguments.device == "cuda" else 2.0),
        contenders=tuple(arguments.contenders),
        measures=tuple(arguments.measures),
        activations=tuple(arguments.activations),
        variants=tuple(arguments.variants),
        shapes=tuple(arguments.shapes),
        dtypes=tuple(arguments.dtypes),
        peers=str(arguments.peers.resolve()) if arguments.peers else "",
        rows=tuple(arguments.rows),
        train=arguments.train,
    )


def measure(arguments: argparse.Namespace, keep: Callable[[Row], None]) -> None:
    """Run the floor, if there is one, and then the suite. `keep` is given each measurement."""
    started = time.monotonic()
    environment = {**os.environ, "GDPA_SUMMARY": "0"}  # what was said is below the table
    if arguments.device == "cpu" or arguments.suite == "cpu":
        environment["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.floor:
        for row in run_floor(arguments.floor, arguments.budget / 2, environment):
            keep(row)
    left = arguments.budget - (time.monotonic() - started)
    jobs = SUITES[arguments.suite](selection(arguments))
    if arguments.suite == "compile":
        rows = cold_and_warm(jobs, left, environment, arguments.at_once)
    else:
        rows = side_by_side(jobs, left, environment, arguments.at_once)
    twice = 2 if arguments.suite == "compile" else 1
    total = twice * sum(len(job.contenders) * len(job.measures) for job in jobs)
    progress = Progress(arguments.suite, max(total, 1), sys.stderr)
    for done, row in enumerate(rows, 1):
        keep(row)
        progress.update(min(done, total), f"{row['contender']} {row['measure']}")


def open_files(arguments: argparse.Namespace) -> Iterator[TextIO]:
    """Where JSON lines go: standard output, a file in the folder `--out`, or both."""
    if arguments.json:
        yield sys.stdout
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        yield (arguments.out / f"{arguments.suite}.jsonl").open("w")


def write(folder: Path, suite: str, unit: str, rows: Sequence[Row]) -> None:
    """Write a CSV and a plot beside the JSON lines, and print the paths. The suites in UNITS have
    no plot.
    """
    write_csv(rows, folder / f"{suite}.csv")
    if suite not in UNITS:
        plot(rows, folder / f"{suite}.png", unit)
    for path in sorted(folder.glob(f"{suite}.*")):
        print(f"wrote {path}", file=sys.stderr)


def run(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    """The exit status is 1 if a contender of gdpa failed; what the budget left no time for has
    not.
    """
    machine = "cpu" if arguments.suite == "cpu" else arguments.device
    first = header(machine, argv)
    files = list(open_files(arguments))
    rows: list[Row] = []

    def tell(row: Row) -> None:
        for file in files:
            print(json.dumps(row), file=file, flush=True)

    def keep(row: Row) -> None:
        rows.append(row)
        tell(row)

    tell(first)
    measure(arguments, keep)
    usual = "tflops" if machine == "cuda" else "ms"
    unit = UNITS.get(arguments.suite, usual)
    if arguments.out:
        write(arguments.out, arguments.suite, unit, rows)
    if not arguments.json:
        print(f"\n{TITLES[unit]}; {', '.join(map(str, first['machine'].values()))}\n")
        shown = summary(rows) if arguments.suite == "models" else table(rows, unit) if rows else ""
        print("\n".join([shown or "nothing was selected", *notes(rows)]))
    ours = [row for row in rows if row["contender"].startswith("gdpa")]
    return 1 if any(row["error"] not in ("", SKIPPED) for row in ours) else 0
