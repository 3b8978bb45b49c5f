"""The share of a call's time that its scores take, from a profile of one call on a GPU.

In: a call, and the numbers of scores that its attentions have. Out: the share of the kernels' time
in operators that read or write a tensor with as many elements as an attention has scores.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def share(call: Callable[[], object], sizes: Collection[int]) -> float | None:
    """The share of a call's kernel time that is spent on tensors of these sizes.

    It is None if no kernel ran. sizes: The tensors' numbers of elements.
    """
    call()
    torch.cuda.synchronize()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
    ) as seen:
        call()
        torch.cuda.synchronize()
    return share_of(seen.events() or (), sizes)


def share_of(events: Iterable[Any], sizes: Collection[int]) -> float | None:
    """The share from a profile's events.

    A kernel belongs to the innermost operator, or generated kernel, that launched it.
    """
    total, part = 0.0, 0.0
    for event in events:
        own = sum(kernel.duration for kernel in event.kernels)
        total += own
        if any(math.prod(shape) in sizes for shape in event.input_shapes or () if shape):
            part += own
    return part / total if total else None
