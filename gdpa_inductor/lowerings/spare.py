"""Memory of operands that nobody needs after a backward: a gradient may be stored there.

Inductor sees a buffer of its own, made from the operand before the kernel runs. So it orders the
two, and frees the memory with the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._compat import autograd, lowering

ALIGNMENT = 16  # bytes, which Inductor takes for granted of what a call returns


def last_use() -> bool:
    """Nobody needs what was saved for the backward under way once it has run. A CUDA graph runs
    more often than it is recorded."""
    return autograd.backward_runs_once() and not torch.cuda.is_current_stream_capturing()


def room_of(operand: Any) -> Any:
    """A buffer that lies as the operand does: Inductor IR. It is the operand's own memory, if that
    is spent when the code runs."""
    return lowering.direct_call(
        torch.ops.aten.empty_like.default, (__name__, "room_site", ""), operand
    )


def room_site() -> Callable[[Tensor], Tensor]:
    """The generated code calls what this returns in place of `empty_like`."""

    def room(operand: Tensor) -> Tensor:
        spare = last_use() and operand.data_ptr() % ALIGNMENT == 0
        return operand.detach() if spare else torch.empty_like(operand)

    return room
