"""The kernels of a training step of a public model: `python docs/lab/model_kernels.py ROW...`, on
a GPU. ROW: a row of `bench models`.

Milliseconds of a step by do_bench, the sum of its kernels, their number, and the longest of them.
"""

import sys
from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

from benchmarks.contenders import CONTENDERS
from benchmarks.models import MODELS
from benchmarks.subjects import subject
from benchmarks.worker import step_call

LONGEST = 12


def kernels(call: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
    """By name: milliseconds, and how many there are."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    times, counts = Counter[str](), Counter[str]()
    for event in seen.events():
        if event.device_type.name == "CUDA":
            times[event.name] += event.time_range.elapsed_us() / 1e3
            counts[event.name] += 1
    return times, counts


def main() -> None:
    for row in sys.argv[1:]:
        on = subject(MODELS[row].case(row, "cuda", "autocast"))
        for name in ("gdpa", "inductor"):
            call = step_call(CONTENDERS[name](on.function), on)
            call()
            wall = do_bench(call, return_mode="median")
            times, counts = kernels(call)
            total, launches = sum(times.values()), sum(counts.values())
            print(f"{row}, {name}: {wall:.3f} ms, {total:.3f} in {launches} kernels", flush=True)
            for kernel, ms in times.most_common(LONGEST):
                print(f"  {ms:.3f} in {counts[kernel]}: {kernel[:90]}")


if __name__ == "__main__":
    main()
