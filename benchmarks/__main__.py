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
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

# Commands with their own options. They are imported only when they are used.
COMMANDS = {"ceiling": f"{__package__}.ceiling.__main__"}
MEASURES = ("forward", "step", "backward", "train", "largest")
VARIANTS = ("none", "causal", "bias", "scores", "buckets", "layer")


def shape(text: str) -> tuple[int, ...]:
    """Parse a shape: BxHxN, where D is 128, or BxHxNxD."""
    sizes = [int(part) for part in text.split("x")]
    if len(sizes) not in (3, 4):
        raise argparse.ArgumentTypeError(f"{text}: a shape is BxHxN or BxHxNxD")
    return tuple([*sizes, 128][:4])


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa_inductor bench",
        usage="%(prog)s SUITE [options]; --help lists them",
        description=__doc__,
    )
    parser.add_argument("suite", metavar="SUITE", help="one of those above")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the GPU, if there is one")
    parser.add_argument("--contenders", nargs="+", default=(), help="gdpa, inductor, eager, ...")
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

    from .run import device, fault  # `--help` has ended above: it loads no torch

    if problem := fault(arguments):
        parser.error(problem)
    arguments.device = device(arguments)
    return arguments


def main(argv: Sequence[str] = ()) -> int:
    """Run the command: its status is that of `run`."""
    if argv and argv[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[argv[0]]).main(argv[1:]))
    arguments = parse_arguments(argv)

    from .run import run

    return run(arguments, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
