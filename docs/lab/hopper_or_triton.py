"""`python docs/lab/hopper_or_triton.py VARIANT DIM...`: where kernels for Hopper begin to pay.

By CuTe and by Triton: milliseconds as a CUDA graph, and those for which the CPU issues a call. One
JSON line for each size and pass. VARIANT is one of benchmarks/cases.py, or "jagged". Several of
these may run at once: they take turns with the GPU.
"""

import fcntl
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.cases import Case
from benchmarks.contenders import gdpa
from benchmarks.subjects import subject
from benchmarks.worker import forward_call, step_call
from docs.tools.timing import graph_times, issue_seconds

SIZES = ((8, 256), (32, 256), (2, 512), (8, 512), (32, 512), (8, 1024))  # batch, length
LOCK = Path("/tmp/hopper_or_triton.lock")
KERNELS = ("cute", "triton")
PASSES = {"forward": forward_call, "step": step_call}


@contextmanager
def gpu() -> Iterator[None]:
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def measure(case: Case) -> None:
    on = subject(case)
    torch._dynamo.reset()
    functions = [gdpa(kernel=name, profit=False)(on.function) for name in KERNELS]
    for name, build in PASSES.items():
        calls = [build(function, on) for function in functions]
        first, second = ([x.float() for x in call()] for call in calls)
        apart = max(float((x - y).norm() / y.norm()) for x, y in zip(first, second, strict=True))
        with gpu():
            times = [statistics.median(x) for x in graph_times(calls)]
            cpu = [issue_seconds(call, 10, 5) * 1e3 for call in calls]
        row = {"case": case.label(), "scores": case.padded_scores, "pass": name}
        row |= {f"{x} ms": round(ms, 4) for x, ms in zip(KERNELS, times, strict=True)}
        row |= {f"{x} CPU ms": round(ms, 4) for x, ms in zip(KERNELS, cpu, strict=True)}
        row |= {"triton/cute": round(times[1] / times[0], 2), "apart": round(apart, 5)}
        print(json.dumps(row), flush=True)


def main(variant: str, *dims: str) -> None:
    fill = 0.5 if variant == "jagged" else 0.0
    kind = "none" if fill else variant
    for dim in map(int, dims):
        for batch, length in SIZES:
            sizes = (batch, 512 // dim, length, dim)
            measure(Case("silu", kind, *sizes, "bfloat16", "cuda", fill=fill))


if __name__ == "__main__":
    main(*sys.argv[1:])
