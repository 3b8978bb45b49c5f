"""python -m tests.adversary --seeds N --start S --workers W --judge both --show wrong --json FILE

--print SEED prints the program of a seed and its outcome. --compiled compiles in full, with this
package and with stock Inductor (slow: 200 programs are a good number), on a GPU with --device cuda.
--kernels does so with plain programs at sizes of kernels, by these backends in turn. --judge verify
runs every program under `gdpa.verify`, and an alarm is a crash.

The exit status is not 0 if any program is wrong or crashes, if a decoy is rewritten, or if fewer
than 98 % of the plain programs are rewritten.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from .generator import generate
from .runner import Outcome, run_range, run_seed
from .table import passed, report


def main(argv: list[str]) -> int:
    options = _options(argv)
    one = run_seed
    if options.compiled or options.kernels is not None:
        from .compiled import KERNELS, run_compiled

        kernels = () if options.kernels is None else tuple(options.kernels) or KERNELS
        one = partial(run_compiled, device=options.device, kernels=kernels)
    program_of = partial(generate, scale="small" if options.kernels is None else "kernels")
    if options.printed is not None:
        for seed in options.printed:
            print(program_of(seed), one(seed, options.judge), sep="\n", end="\n\n")
        return 0
    start = time.time()
    seeds = list(range(options.start, options.start + options.seeds))
    if options.only or options.without:
        seeds = [s for s in seeds if chosen(program_of(s), options.only, options.without)]
    outcomes = run_range(
        seeds, options.judge, options.workers, options.json,
        lambda outcome: show(outcome, options.show, program_of), one, options.seconds,
    )  # fmt: skip
    print(report(outcomes, time.time() - start))
    return int(not passed(outcomes))


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop after so many, wherever that is")
    parser.add_argument("--judge", choices=("on", "off", "both", "verify"), default="both")
    parser.add_argument(
        "--show", choices=("wrong", "missed", "none", "all", "eager", "dynamo"), default="wrong"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--only", default="", help="a part of a hostility's name, a family, a label"
    )
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME",
                        help="parts of such names to leave out")  # fmt: skip
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--kernels", nargs="*", metavar="BACKEND", help="none: all in turn")
    parser.add_argument("--device", default="cpu", help="with --compiled, --kernels: cpu or cuda")
    parser.add_argument("--print", type=int, nargs="*", dest="printed", metavar="SEED")
    return parser.parse_args(argv)


def chosen(program, only: str, without: list[str]) -> bool:
    """Whether a program goes by this name, and by none to leave out."""
    names = (*program.hostilities, program.family, program.label)
    return any(only in name for name in names) and not any(w in n for w in without for n in names)


def show(outcome: Outcome, wanted: str, program_of) -> None:
    """Print a program that is wrong (or what was asked for), with its fault."""
    shown = {"wrong": ("wrong", "crash"), "eager": ("eager",), "dynamo": ("dynamo",)}
    missed = wanted == "missed" and outcome.missed
    if missed or wanted == "all" or outcome.status in shown.get(wanted, ()):
        said = " ".join(outcome.codes) if missed else outcome.fault
        print(f"{outcome.status}: {said}\n{program_of(outcome.seed)}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
