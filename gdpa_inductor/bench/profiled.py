"""How much of a call's time goes into its scores: a profile of one call on a GPU.

In: a call, and how many scores its attentions have. Out: the part of the kernels' time that is
spent by operators that read or write a tensor of that many elements.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def share(call: Callable[[], object], sizes: Collection[int]) -> float | None:
    """Of all kernels' time; None where no kernel ran."""
    call()
    torch.cuda.synchronize()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
    ) as seen:
        call()
        torch.cuda.synchronize()
    return share_of(seen.events() or (), sizes)


def share_of(events: Iterable[Any], sizes: Collection[int]) -> float | None:
    """Each kernel belongs to the innermost operator, or generated kernel, that launched it."""
    total, part = 0.0, 0.0
    for event in events:
        own = sum(kernel.duration for kernel in event.kernels)
        total += own
        if any(math.prod(shape) in sizes for shape in event.input_shapes or () if shape):
            part += own
    return part / total if total else None
