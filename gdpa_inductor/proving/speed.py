"""Times of a kernel and of Triton's on one shape, both as Inductor runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import lowerings
from ..ops import ATTENTION, BACKWARD, Arguments
from .cases import Case

LAUNCHES = 10  # calls that are timed together
REPEATS = 7


def compiled(family: str, case: Case, kernel: str, device: torch.device) -> Callable[[], Any]:
    """The call of a case, on operands of its own. It is compiled when it first runs."""
    lowerings.register()
    o = case.operands(device)
    needs = case.needs(o, family)
    grads = [case.grad_out(o)] if needs else []
    options = {"kernel_options": f"kernel={kernel},strict=True"}

    def call(*flat: Tensor) -> Any:
        operands = o.filled(flat[len(grads) :])
        arguments = Arguments(operands, flat[0] if grads else None, needs, options)
        signature = BACKWARD if needs else ATTENTION
        args, kwargs = signature.call(arguments)
        return signature.op(*args, **kwargs)

    torch.compiler.reset()
    function = torch.compile(call, dynamic=False)
    return lambda: function(*grads, *o.flat())


def milliseconds(run: Callable[[], Any]) -> float:
    """Of the GPU, in a CUDA graph: the CPU takes longer to call a kernel of 0.1 ms than that.

    The least of a few repeats, as other processes may use the GPU meanwhile.
    """
    run()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            run()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / LAUNCHES)
    return min(times)
