"""Host time of a compiled call: `python docs/lab/host_time.py [dense] [jagged]`, on a GPU.

Problems so small that the CPU is slower than the GPU. Microseconds, the best of five means of 200
calls without a pause: of a forward under no_grad, and of a training step. Then the same with
`mode="reduce-overhead"`, and how often a CUDA graph was refused there.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence

import torch

from gdpa_inductor import gdpa_backend
from gdpa_inductor.bench.cases import Case, Subject
from gdpa_inductor.bench.subjects import subject
from gdpa_inductor.bench.worker import synchronize

CALLS, TURNS = 200, 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = ("stock", "triton", "cute") if DEVICE == "cuda" else ("stock", "cpu")
CASES = {
    "dense": Case("silu", "none", 2, 4, 256, 128, "bfloat16", DEVICE),
    "jagged": Case("silu", "causal", 8, 4, 256, 128, "bfloat16", DEVICE, fill=0.5),
}
Calls = dict[str, Callable[[], object]]


def compiled(kernel: str, mode: str | None) -> Callable[[Callable], Callable]:
    if kernel == "stock":
        return functools.partial(torch.compile, mode=mode)

    def backend(gm, inputs):
        options = {"gdpa.kernel": kernel, "gdpa.profit": False}
        return gdpa_backend(gm, inputs, mode=mode, options=options)

    return functools.partial(torch.compile, backend=backend)


def calls(on: Subject, build: Callable[[Callable], Callable]) -> Calls:
    """A forward and a step, each compiled and recorded."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    function = build(on.function)

    def forward() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            function(*on.given)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        torch.autograd.grad(function(*on.given), on.leaves, on.direction)

    for call in [forward, step] * 4:
        call()
    return {"forward": forward, "step": step}


def microseconds(call: Callable[[], object]) -> float:
    def turn() -> float:
        synchronize(DEVICE)
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds = time.perf_counter() - start
        synchronize(DEVICE)
        return seconds / CALLS * 1e6

    return min(turn() for _ in range(TURNS))


def main(names: Sequence[str]) -> None:
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(device, torch.__version__, flush=True)
    for mode in (None, "reduce-overhead"):
        for name in names or CASES:
            on = subject(CASES[name])
            for kernel in KERNELS:
                found = calls(on, compiled(kernel, mode))
                said = f"{torch._dynamo.utils.counters['gdpa']['matched']} matched"
                if mode:
                    skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
                    said += f", {skipped} refused by CUDA graphs"
                times = (f"{what} {microseconds(call):.0f}" for what, call in found.items())
                label = f"{mode or 'default'}, {name}, {kernel}"
                print(f"{label}: {', '.join(times)} us; {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
