"""`python -m gdpa_inductor bench SUITE`: gdpa, eager, Inductor and softmax anchors in one run.

dense: activation(Q Kᵀ) V in bf16 on a GPU, forward and training. grid: dtypes × head dims × lengths
against stock Inductor. cpu: fp32 on two threads. wide: problems for the chunked backend, against
stock Inductor. models: public models without changes, and the attentions of each alone. compile:
seconds of the first call, with empty caches and again in a second process. jagged: sequences of
unequal length, which the formula pads, also against public kernels. serving: a few queries over the
keys of a cache. A run shows its progress, and prints a table at the end; `--json` prints a JSON
line for each measurement instead, and `--out` writes both, with a plot. The command `bench ceiling`
has its own options: see `bench ceiling --help`.
"""

import argparse
import difflib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
from .suites import SUITES, Selection, Shape
from .supervise import cold_and_warm, side_by_side
from .worker import SKIPPED

Row = dict[str, Any]
# Commands with their own options. They are imported only when they are used.
COMMANDS = {"ceiling": f"{__package__}.ceiling.__main__"}
ON_GPU = ("dense", "grid", "wide")  # suites whose shapes fill a GPU
# The unit of a suite's table. Other suites show TFLOP/s on a GPU and milliseconds on a CPU.
UNITS = {"compile": "compile_s", "models": "ms"}
TITLES = {"tflops": "TFLOP/s", "ms": "milliseconds", "compile_s": "seconds of the first call"}
MEASURES = ("forward", "step", "backward", "train", "largest")
VARIANTS = ("none", "causal", "bias", "scores", "buckets", "layer")


def shape(text: str) -> Shape:
    """Parse a shape: BxHxN, where D is 128, or BxHxNxD."""
    sizes = [int(part) for part in text.split("x")]
    if len(sizes) not in (3, 4):
        raise argparse.ArgumentTypeError(f"{text}: a shape is BxHxN or BxHxNxD")
    batch, heads, length, head_dim = [*sizes, 128][:4]
    return batch, heads, length, head_dim


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa_inductor bench",
        usage="%(prog)s SUITE [options]; --help lists them",
        description=__doc__,
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the GPU, if there is one")
    parser.add_argument("--contenders", nargs="+", default=(), choices=(*CONTENDERS, *PEERS))
    parser.add_argument("--measures", nargs="+", default=(), choices=MEASURES)
    parser.add_argument("--rows", nargs="+", default=(), help="of models; compile: these too")
    parser.add_argument("--at-once", type=int, default=1, help="workers that compile side by side")
    parser.add_argument("--train", action="store_true", help="models: 200 steps of a recommender")
    parser.add_argument("--activations", nargs="+", default=())
    parser.add_argument("--variants", nargs="+", default=(), choices=VARIANTS)
    parser.add_argument("--shapes", nargs="+", type=shape, default=(), metavar="BxHxN[xD]")
    parser.add_argument("--dtypes", nargs="+", default=(), help="bfloat16, float32/high, ...")
    parser.add_argument("--seconds", type=float, help="of timing, per contender and measure")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for the whole run")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument(
        "--floor", nargs="+", metavar=("PATH", "ARG"), help="a script that measures plain kernels"
    )
    parser.add_argument("--peers", type=Path, help="folder of the public kernels, for jagged")
    parser.add_argument("--out", type=Path, help="folder for CSV, JSON lines and plot")
    parser.add_argument("--json", action="store_true", help="print JSON lines, and no table")
    arguments = parser.parse_args(argv)
    fault = _fault(arguments)
    if fault:
        parser.error(fault)
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return arguments


def _fault(arguments: argparse.Namespace) -> str:
    """The error message for arguments that argparse accepts but the suites cannot use, or ""."""
    for option, known in {"activations": tuple(ACTIVATIONS), "rows": tuple(MODELS)}.items():
        for name in (n for n in getattr(arguments, option) if n not in known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
            return f"argument --{option}: {name!r} is unknown; {hint}"
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


def main(argv: Sequence[str] = ()) -> int:
    """Run the command. The exit status is 1 if a contender of gdpa failed; what the budget left no
    time for has not.
    """
    if argv and argv[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[argv[0]]).main(argv[1:]))
    arguments = parse_arguments(argv)
    device = "cpu" if arguments.suite == "cpu" else arguments.device
    first = header(device, argv)
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
    usual = "tflops" if device == "cuda" else "ms"
    unit = UNITS.get(arguments.suite, usual)
    if arguments.out:
        write(arguments.out, arguments.suite, unit, rows)
    if not arguments.json:
        print(f"\n{TITLES[unit]}; {', '.join(map(str, first['machine'].values()))}\n")
        shown = summary(rows) if arguments.suite == "models" else table(rows, unit) if rows else ""
        print("\n".join([shown or "nothing was selected", *notes(rows)]))
    ours = [row for row in rows if row["contender"].startswith("gdpa")]
    return 1 if any(row["error"] not in ("", SKIPPED) for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
