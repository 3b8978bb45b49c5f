"""The demo: an ordinary recommender on real data, trained three times.

`python -m gdpa_inductor demo` trains one model in eager, under stock Inductor and under gdpa. All
three begin with the same parameters and see the same batches. Each runs in a process of its own
with empty compile caches. Stock Inductor and gdpa compile at the same time. The results are printed
side by side. The exit status is 1 if gdpa fused nothing, if its loss curve differs from eager's, or
if the time did not suffice for either.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gdpa_inductor demo", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the GPU, if there is one")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, help="users a step (8 on a CPU, 64 on a GPU)")
    parser.add_argument("--length", type=int, default=512, help="items of a history")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of training for the first contender, at most"
    )
    parser.add_argument(
        "--limit", type=float, default=540.0, help="seconds for all; the demo ends by then"
    )
    parser.add_argument(
        "--users", type=int, default=100, help="whose held-out items are ranked (0: all)"
    )
    parser.add_argument("--contenders", nargs="+", help="eager, gdpa, inductor")
    parser.add_argument("--cache", type=Path, help="where data is kept")
    arguments = parser.parse_args(argv)

    from .demo import completed  # `--help` has ended above: it loads no torch

    return completed(arguments)


def main(argv: Sequence[str] = ()) -> int:
    arguments = parse_arguments(argv)

    from .demo import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
