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

from .....rejection import GDPAError
from ...launch import LaunchCall, Launcher, aligned, example, options, place
from ..config import Sm100Config
from .kernel import BackwardKernel
from .limits import unsupported

SIDES = {"keys": ("k", "v"), "rows": ("q",)}  # which gradients a side writes


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: str,
    needs: Sequence[bool],
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    *,
    fast: bool = True,
    skip: bool = True,
    ctas: int = 0,
    stream: int | None = None,
) -> list[Tensor]:
    """Those of dQ, dK, dV of gdpa::attention that `needs` asks for, contiguous, in the dtype of the
    operand; arguments as those of the op. Equal bits from run to run.

    ctas: how many to launch, by default one for each multiprocessor. stream: a CUDA stream handle,
    by default the current one.

    Raises:
        GDPAError: what the kernels do not take, and why.
    """
    call = LaunchCall(
        query, key, value, aux, scalars, program, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, Sm100Config,
    )  # fmt: skip
    config = call.config(fast, skip)
    assert isinstance(config, Sm100Config)
    if reason := unsupported(config, needs, key.shape[1], value.shape[1]):
        raise GDPAError(reason)
    ctas, stream = place(query.device, ctas, stream)
    grad_out, order = aligned(grad_out), call.longest_first()
    asked = [letter for letter, need in zip("qkv", needs, strict=False) if need]
    found: dict[str, Tensor] = {}
    for side, letters in SIDES.items():
        if set(asked) & set(letters):
            outputs = [room(config, call, letter) for letter in letters]
            if any(x.numel() == 0 for x in (query, key, value, grad_out)) or call.batch == 0:
                outputs = [x.zero_() for x in outputs]
            else:
                others = (grad_out, *outputs)
                launcher(config, side)(call.arguments(config, others, order, ctas, stream))
            found |= dict(zip(letters, outputs, strict=True))
    return [finished(call, letter, found[letter]) for letter in asked]


def room(config: Sm100Config, call: LaunchCall, letter: str) -> Tensor:
    """For a gradient. One that is summed over the batch leaves the kernel in fp32, one for each
    sequence. Rows of a jagged operand that take no part have a gradient of zero."""
    operand = _operand(call, letter)
    if letter in config.shared:
        return operand.new_empty(call.batch, *operand.shape[1:], dtype=torch.float32)
    make = operand.new_zeros if operand.dim() == 3 else operand.new_empty
    return make(operand.shape)


def finished(call: LaunchCall, letter: str, grad: Tensor) -> Tensor:
    """Summed over the batch where the operand was shared, always in the same order."""
    operand = _operand(call, letter)
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=True).to(operand.dtype)


def _operand(call: LaunchCall, letter: str) -> Tensor:
    return {"q": call.query, "k": call.key, "v": call.value}[letter]


@functools.cache
def launcher(config: Sm100Config, side: str) -> Launcher:
    return Launcher(compiled(config, side))


@functools.cache
def compiled(config: Sm100Config, side: str, more: str = "") -> Any:
    """The kernel of one side, ready to be launched. Needs no GPU."""
    outputs = ["float32" if letter in config.shared else config.dtype for letter in SIDES[side]]
    arguments = example(config, [config.dtype, *outputs])
    return cute.compile(BackwardKernel(config, side), *arguments, options=options(config, more))
