"""Reuse the memory of an operand for its gradient, if nobody needs the operand after the backward.

For Inductor the gradient is a new buffer, made from the operand before the kernel runs. So Inductor
orders the two, and frees the memory with the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._compat import autograd, lowering

ALIGNMENT = 16  # bytes; Inductor assumes it of what a call returns


def last_use() -> bool:
    """Whether the backward under way is the last use of what was saved for it."""
    # A CUDA graph runs more often than it is recorded.
    return autograd.backward_runs_once() and not torch.cuda.is_current_stream_capturing()


def buffer_like(operand: Any) -> Any:
    """A buffer with the shape and strides of the operand, as Inductor IR.

    When the code runs, it is the operand's own memory if `last_use` says so.
    """
    return lowering.direct_call(
        torch.ops.aten.empty_like.default, (__name__, "buffer_site", ""), operand
    )


def buffer_site() -> Callable[[Tensor], Tensor]:
    """The function that generated code calls in place of `empty_like`."""

    def room(operand: Tensor) -> Tensor:
        donated = last_use() and operand.data_ptr() % ALIGNMENT == 0
        return operand.detach() if donated else torch.empty_like(operand)

    return room
