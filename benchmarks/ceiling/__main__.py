"""`python -m gdpa_inductor bench ceiling`: attention on Hopper beside its matmuls alone.

The output is a JSON line for each contender and shape, then two tables. The loops of forward.py and
backward.py are the ceiling. They load and multiply the same tiles as attention; some also compute
silu. They are compared with gdpa's kernels and with softmax attention: cuDNN, the forward of
FlashAttention-3 (package fa3-fwd) and FlashAttention-4 (flash-attn-4). All contenders of a shape
take turns in one process. A contender that is not installed, or computes wrong results, is left
out. A line on stderr says so.
"""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa_inductor bench ceiling", description=__doc__
    )
    parser.add_argument("--measures", nargs="+", default=("forward", "backward"))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.6, help="of load, each; 0: none")
    chosen = parser.parse_args(argv)

    from .run import run  # `--help` has ended above: it loads no torch

    return run(chosen, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
