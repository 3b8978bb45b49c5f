"""Host time of a compiled call: `python docs/lab/host_time.py [dense] [jagged] [batches]`, on a
GPU.

Problems so small that the CPU is slower than the GPU. Microseconds, the best of five means of 200
calls without a pause: of a forward under no_grad, and of a training step. Then the same with
`mode="reduce-overhead"`, and how often a CUDA graph was refused there.

batches: jagged, and no two of 64 batches in turn have as many rows. Not with CUDA graphs, which
would be recorded for each.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence

import torch

from benchmarks.cases import Case, Subject
from benchmarks.subjects import subject
from docs.tools.timing import issue_seconds
from gdpa_inductor import gdpa_backend

CALLS, TURNS, BATCHES = 200, 5, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = ("stock", "triton", "cute") if DEVICE == "cuda" else ("stock", "cpu")
CASES = {
    "dense": Case("silu", "none", 2, 4, 256, 128, "bfloat16", DEVICE),
    "jagged": Case("silu", "causal", 8, 4, 256, 128, "bfloat16", DEVICE, fill=0.5),
}
CASES["batches"] = CASES["jagged"]
Calls = dict[str, Callable[[], object]]


def compiled(kernel: str, mode: str | None) -> Callable[[Callable], Callable]:
    if kernel == "stock":
        return functools.partial(torch.compile, mode=mode)

    def backend(gm, inputs):
        options = {"gdpa.kernel": kernel, "gdpa.profit": False}
        return gdpa_backend(gm, inputs, mode=mode, options=options)

    return functools.partial(torch.compile, backend=backend)


def subjects(name: str) -> list[Subject]:
    first = subject(CASES[name])
    return [first] if name != "batches" else [fewer(first, count) for count in range(BATCHES)]


def fewer(on: Subject, count: int) -> Subject:
    """Without the last rows, so many."""
    *leaves, ends = on.inputs
    rows = len(leaves[0]) - count
    leaves = [x.detach()[:rows].clone().requires_grad_() for x in leaves]
    for x in leaves:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return dataclasses.replace(
        on,
        inputs=(*leaves, ends.clamp(max=rows)),
        leaves=tuple(leaves),
        direction=on.direction[:rows],
    )


def calls(ons: Sequence[Subject], build: Callable[[Callable], Callable]) -> Calls:
    """A forward and a step, each compiled and recorded."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    function, turn = build(ons[0].function), itertools.cycle(ons)

    def forward() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            function(*next(turn).inputs)

    def step() -> None:
        on = next(turn)
        torch.compiler.cudagraph_mark_step_begin()
        torch.autograd.grad(function(*on.inputs), on.leaves, on.direction)

    for call in [forward, step] * 4:
        call()
    return {"forward": forward, "step": step}


def microseconds(call: Callable[[], object]) -> float:
    return issue_seconds(call, CALLS, TURNS, DEVICE) * 1e6


def main(names: Sequence[str]) -> None:
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(device, torch.__version__, flush=True)
    for mode in (None, "reduce-overhead"):
        for name in names or CASES:
            if mode and name == "batches":
                continue
            on = subjects(name)
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
