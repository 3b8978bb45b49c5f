"""The gradients of one call: compile the sides that are asked for, allocate, launch. Host only.

What the kernels cannot do is refused before, by `limits.unsupported`. Nothing here reads a
length from the device.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from cutlass import cute
from torch import Tensor

from .....operands import Operands
from .....rejection import GDPAError
from ...launch import example, options, place
from ...launcher import Launcher
from ...plan import LaunchPlan, aligned, longest_first, plan_of
from ..config import Sm100Config
from .kernel import BackwardKernel
from .limits import unsupported

SIDES = {"keys": ("k", "v"), "rows": ("q",)}  # which gradients a side writes


def backward(
    grad_out: Tensor,
    operands: Operands[Tensor],
    needs: Sequence[bool],
    *,
    fast: bool = True,
    skip: bool = True,
    ctas: int = 0,
    stream: int | None = None,
) -> list[Tensor]:
    """Those of dQ, dK, dV of gdpa::attention that `needs` asks for, contiguous, in the dtype of the
    operand. Equal bits from run to run.

    ctas: how many to launch, by default one for each multiprocessor. stream: a CUDA stream handle,
    by default the current one.

    Raises:
        GDPAError: what the kernels do not take, and why.
    """
    plan, o = plan_of(operands, fast, skip, Sm100Config), operands
    assert isinstance(plan.config, Sm100Config)
    if reason := unsupported(plan.config, needs, o.key.shape[1], o.value.shape[1]):
        raise GDPAError(reason)
    ctas, stream = place(o.query.device, ctas, stream)
    read, grad_out, order = plan.readable(o), aligned(grad_out), longest_first(o)
    asked = [letter for letter, need in zip("qkv", needs, strict=False) if need]
    found: dict[str, Tensor] = {}
    for side, letters in SIDES.items():
        if set(asked) & set(letters):
            outputs = [room(plan, o, letter) for letter in letters]
            if any(x.numel() == 0 for x in (o.query, o.key, o.value, grad_out)) or plan.batch == 0:
                outputs = [x.zero_() for x in outputs]
            else:
                others = (grad_out, *outputs)
                start = plan.launcher(side, functools.partial(launcher, side=side))
                words = plan.call_words(read, others, order, ctas, stream)
                start(words, plan.form_words(others))
            found |= dict(zip(letters, outputs, strict=True))
    return [finished(o, letter, found[letter]) for letter in asked]


def room(plan: LaunchPlan, operands: Operands[Tensor], letter: str) -> Tensor:
    """For a gradient. One that is summed over the batch leaves the kernel in fp32, one for each
    sequence. Rows of a jagged operand that take no part have a gradient of zero."""
    operand = _operand(operands, letter)
    if letter in plan.config.shared:
        return operand.new_empty(plan.batch, *operand.shape[1:], dtype=torch.float32)
    make = operand.new_zeros if operand.dim() == 3 else operand.new_empty
    return make(operand.shape)


def finished(operands: Operands[Tensor], letter: str, grad: Tensor) -> Tensor:
    """Summed over the batch where the operand was shared, always in the same order."""
    operand = _operand(operands, letter)
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=True).to(operand.dtype)


def _operand(operands: Operands[Tensor], letter: str) -> Tensor:
    return {"q": operands.query, "k": operands.key, "v": operands.value}[letter]


@functools.cache
def launcher(config: Sm100Config, side: str) -> Launcher:
    """Of one side. It takes query, key, value, the gradient of O, and what it writes."""
    return Launcher(compiled(config, side), config, 4 + len(SIDES[side]))


@functools.cache
def compiled(config: Sm100Config, side: str, more: str = "") -> Any:
    """The kernel of one side, ready to be launched. Needs no GPU."""
    outputs = ["float32" if letter in config.shared else config.dtype for letter in SIDES[side]]
    arguments = example(config, [config.dtype, *outputs])
    return cute.compile(BackwardKernel(config, side), *arguments, options=options(config, more))
