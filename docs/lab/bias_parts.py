"""Parts of a step with a learned bias: `python docs/lab/bias_parts.py`, on a Hopper with CuTe DSL.

[H, N, N] at (4, 4, 8192, 128) in bf16. Medians in milliseconds: the step, ours and Inductor's; the
copy of the bias and the forward, one after the other and side by side; the backward with its sums
over the batch and without. Then the kernels of a step, as the profiler has them. Forward and
backward alone find their plan anew, so they take longer than in a step.
"""

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import bias_steps
import torch
from triton.testing import do_bench

from docs.tools.timing import kernels
from gdpa_inductor.kernels.cute import launch as forward
from gdpa_inductor.kernels.cute.backward import launch as backward
from gdpa_inductor.operands import Operands

SIZE, STEPS = (4, 4, 8192, 128), 3
Calls = dict[str, Callable[[], Any]]


def recorded(step: Callable[[], Any]) -> Calls:
    """The forward and the backward of a first step, each by itself."""
    calls: Calls = {}

    def recording(name: str, run: Callable) -> Callable:
        def recorded_run(*given: Any, **options: Any) -> Any:
            kept = {x: options[x] for x in options if x in ("fast", "skip", "ordered")}
            calls[name] = lambda: run(*map(detached, given), **kept)
            return run(*given, **options)

        return recorded_run

    with contextlib.ExitStack() as stack:
        for name, module in (("forward", forward), ("backward", backward)):
            run = recording(name, getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, run))
        step()
    return calls


def detached(given: Any) -> Any:
    """Operands that no graph holds."""
    if not isinstance(given, Operands):
        return given
    tensors = [x.detach() for x in given.differentiable]
    return Operands(*tensors[:3], tensors[3:], given.scalars, given.program, *given.lengths)


def copies(run: Callable[[], Any], bias: torch.Tensor) -> Calls:
    kept, other = torch.empty_like(bias), torch.cuda.Stream()

    def side_by_side() -> None:
        own = torch.cuda.current_stream()
        other.wait_stream(own)
        with torch.cuda.stream(other):
            kept.copy_(bias)
        run()
        own.wait_stream(other)

    return {
        "copy": lambda: kept.copy_(bias),
        "copy, then forward": lambda: (kept.copy_(bias), run()),
        "copy beside forward": side_by_side,
    }


def show(calls: Calls) -> None:
    for name, call in calls.items():
        call()
        print(f"| {name} | {do_bench(call, return_mode='median'):.3f} |", flush=True)


def main() -> None:
    given = [x.requires_grad_() for x in bias_steps.operands(SIZE, "[H, N, N]", torch.bfloat16)]
    direction = torch.randn_like(given[0])

    def step_of(kernel: str) -> Callable[[], Any]:
        function = bias_steps.compiled(kernel)
        return lambda: torch.autograd.grad(function(*given), given, direction)

    step = step_of("cute")
    calls = recorded(step)
    show({"step": step, **calls, **copies(calls["forward"], given[3].detach())})
    with mock.patch.object(backward, "total", lambda *_, **__: True):
        show({"backward without sums": calls["backward"]})
    for ms, launches, name in kernels(step, STEPS)[:5]:
        print(f"| {name[-40:]} | {launches:.0f} launches, {ms:.3f} |", flush=True)
    show({"step, Inductor": step_of("stock"), "step again": step})


if __name__ == "__main__":
    main()
