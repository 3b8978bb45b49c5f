"""python -m tests.adversary --seeds N --start S --workers W --judge both --show wrong --json FILE

--print SEED prints the program of a seed and its outcome. --compiled compiles in full, with this
package and with stock Inductor (slow: 200 programs are a good number), on a GPU with --device cuda.
--judge verify runs every program under `gdpa.verify`, and an alarm is a crash.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from .generator import generate
from .runner import Outcome, run_range, run_seed
from .table import report


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--judge", choices=("on", "off", "both", "verify"), default="both")
    parser.add_argument(
        "--show", choices=("wrong", "none", "all", "eager", "dynamo"), default="wrong"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="a part of a hostility's name")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME",
                        help="parts of hostilities' names and families to leave out")  # fmt: skip
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", default="cpu", help="with --compiled: cpu or cuda")
    parser.add_argument("--print", type=int, nargs="*", dest="printed", metavar="SEED")
    operands = parser.parse_args(argv)
    if operands.printed is not None:
        for seed in operands.printed:
            print(generate(seed), run_seed(seed, operands.judge), sep="\n", end="\n\n")
        return 0
    one = run_seed
    if operands.compiled:
        from .compiled import run_compiled

        one = partial(run_compiled, device=operands.device)
    start = time.time()
    seeds = list(range(operands.start, operands.start + operands.seeds))
    if operands.only or operands.without:
        seeds = [seed for seed in seeds if chosen(seed, operands.only, operands.without)]
    outcomes = run_range(
        seeds,
        operands.judge,
        operands.workers,
        operands.json,
        lambda x: show(x, operands.show),
        one,
    )
    print(report(outcomes, time.time() - start))
    return int(any(x.status in ("wrong", "crash") for x in outcomes))


def chosen(seed: int, only: str, without: list[str]) -> bool:
    """Whether a program has a hostility by this name, and none to leave out."""
    program = generate(seed)
    names = (*program.hostilities, program.family)
    return any(only in name for name in names) and not any(w in n for w in without for n in names)


def show(outcome: Outcome, wanted: str) -> None:
    """Print a program that is wrong (or what was asked for), with its fault."""
    shown = {"wrong": ("wrong", "crash"), "eager": ("eager",), "dynamo": ("dynamo",), "none": ()}
    if wanted == "all" or outcome.status in shown.get(wanted, ()):
        print(f"{outcome.status}: {outcome.fault}\n{generate(outcome.seed)}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
