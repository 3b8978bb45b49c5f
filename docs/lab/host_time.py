"""Host time of a compiled call: `python docs/lab/host_time.py`, on a Hopper with CuTe DSL.

A problem so small that the CPU is slower than the GPU. Microseconds, the best of five means of 300
calls without a pause.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from gdpa_inductor import gdpa_backend

SHAPE, CALLS, TURNS = (2, 4, 256, 128), 300, 5


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.silu(query @ key.transpose(-1, -2) * 0.088) @ value


def compiled(kernel: str) -> Callable:
    torch._dynamo.reset()
    if kernel == "stock":
        return torch.compile(attention)

    def backend(gm, inputs):
        return gdpa_backend(gm, inputs, options={"gdpa.kernel": kernel, "gdpa.profit": False})

    return torch.compile(attention, backend=backend)


def microseconds(call: Callable[[], None]) -> float:
    def turn() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return seconds / CALLS * 1e6

    return min(turn() for _ in range(TURNS))


def main() -> None:
    query, key, value, direction = (
        torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    leaves = [x.requires_grad_() for x in (query, key, value)]
    calls: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
    for kernel in ("stock", "triton", "cute"):
        function = compiled(kernel)

        def step(function: Callable = function) -> None:
            query.grad = key.grad = value.grad = None
            function(*leaves).backward(direction)

        def forward(function: Callable = function) -> None:
            with torch.no_grad():
                function(*leaves)

        for _ in range(5):
            step()
            forward()
        calls[kernel] = (forward, step)
    print(torch.cuda.get_device_name(), torch.__version__)
    for threads in (True, False):
        with torch.autograd.set_multithreading_enabled(threads):
            for kernel, (forward, step) in calls.items():
                where = "another thread" if threads else "the same thread"
                times = f"forward {microseconds(forward):.0f}, step {microseconds(step):.0f}"
                print(f"{kernel}, backward on {where}: {times} us")


if __name__ == "__main__":
    main()
