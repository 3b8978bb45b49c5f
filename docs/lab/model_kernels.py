"""The kernels of a training step of a public model: `python docs/lab/model_kernels.py ROW...`, on
a GPU. ROW: a row of `bench models`.

Milliseconds of a step by do_bench, the sum of its kernels, their number, and the longest of them.
"""

import sys

from triton.testing import do_bench

from benchmarks.contenders import CONTENDERS
from benchmarks.models import MODELS
from benchmarks.subjects import subject
from benchmarks.worker import step_call
from docs.tools.timing import kernels

LONGEST = 12


def main() -> None:
    for row in sys.argv[1:]:
        on = subject(MODELS[row].case(row, "cuda", "autocast"))
        for name in ("gdpa", "inductor"):
            call = step_call(CONTENDERS[name](on.function), on)
            call()
            wall = do_bench(call, return_mode="median")
            each = kernels(call)
            total, count = sum(ms for ms, *_ in each), sum(n for _, n, _ in each)
            print(f"{row}, {name}: {wall:.3f} ms, {total:.3f} in {count:.0f} kernels", flush=True)
            for ms, n, kernel in each[:LONGEST]:
                print(f"  {ms:.3f} in {n:.0f}: {kernel[:90]}")


if __name__ == "__main__":
    main()
