"""The gradients of one call on Hopper: allocate, launch once, convert dQ. Host only."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from cutlass import cute
from torch import Tensor

from .....rejection import GDPAError
from ...launch import LaunchCall, Launcher, aligned, example, options, place
from ..config import Sm90Config
from .kernel import HopperBackward
from .limits import unsupported


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
    call = LaunchCall(
        query, key, value, aux, scalars, program, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, Sm90Config,
    )  # fmt: skip
    config = call.config(fast, skip)
    assert isinstance(config, Sm90Config)
    if reason := unsupported(config, needs, key.shape[1], value.shape[1]):
        raise GDPAError(reason)
    ctas, stream = place(query.device, ctas, stream)
    grad_out, order = aligned(grad_out), call.longest_first()
    sums = room(call, config, query, call.cu_q, torch.float32)
    grad_key, grad_value = (room(call, config, x, call.cu_k, x.dtype) for x in (key, value))
    outputs = [sums, grad_key, grad_value]
    if any(x.numel() == 0 for x in (query, key, value, grad_out)) or call.batch == 0:
        outputs = [x.zero_() for x in outputs]
    else:
        tiles = -(-call.rows // config.backward_rows)
        counters = torch.zeros(
            call.batch, query.shape[1], tiles, 1, dtype=torch.int32, device=query.device
        )
        others = (grad_out, *outputs, counters)
        launcher(config)(call.arguments(config, others, order, ctas, stream))
    grads = [finished(sums, query), *outputs[1:]]
    return [x for x, need in zip(grads, needs, strict=False) if need]


def room(
    call: LaunchCall, config: Sm90Config, operand: Tensor, offsets: Tensor | None, dtype: Any
) -> Tensor:
    """For a gradient, one for each sequence of a dense operand. Zero where nothing is written."""
    zero = offsets is not None or (operand is call.query and config.skip)
    make = operand.new_zeros if zero else operand.new_empty
    shape = operand.shape if operand.dim() == 3 else (call.batch, *operand.shape[1:])
    return make(shape, dtype=dtype)


def finished(sums: Tensor, query: Tensor) -> Tensor:
    """dQ in the dtype of the query, summed over the batch where that is shared."""
    if sums.shape != query.shape:
        sums = sums.sum(0, keepdim=True)
    return sums.to(query.dtype)


@functools.cache
def launcher(config: Sm90Config) -> Launcher:
    return Launcher(compiled(config))


@functools.cache
def compiled(config: Sm90Config, more: str = "") -> Any:
    """The kernel, ready to be launched. Needs no GPU. more: compiler options."""
    outputs = ["float32", config.dtype, config.dtype, "int32"]
    arguments = example(config, [config.dtype, *outputs])
    return cute.compile(HopperBackward(config), *arguments, options=options(config, more))
