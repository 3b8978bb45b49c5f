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
    grads = [room(call, config, x) for x in (query, key, value)]
    if any(x.numel() == 0 for x in (query, key, value, grad_out)) or call.batch == 0:
        grads = [x.zero_() for x in grads]
    else:
        tiles = -(-call.rows // config.backward_rows)
        new = functools.partial(torch.zeros, device=query.device)
        counters = new((call.batch, query.shape[1], tiles, 1), dtype=torch.int32)
        shared = "q" in config.shared
        sums = grads[0] if shared else torch.empty_like(grads[0], dtype=torch.float32)
        # A shared query's sums are not converted: its gradient is not there.
        others = (grad_out, sums, *grads[1:], query if shared else grads[0], counters)
        launcher(config)(call.arguments(config, others, order, ctas, stream))
    grads[0] = finished(grads[0], query)
    return [x for x, need in zip(grads, needs, strict=False) if need]


def room(call: LaunchCall, config: Sm90Config, operand: Tensor) -> Tensor:
    """For a gradient, zero where the kernel may leave rows out. That of a shared query is its sums,
    in fp32, one for each sequence."""
    if operand is call.query and "q" in config.shared:
        shape = (call.batch, *operand.shape[1:])
        return operand.new_zeros(shape, dtype=torch.float32)
    masked = operand is call.query and config.skip
    make = operand.new_zeros if operand.dim() == 3 or masked else operand.new_empty
    return make(operand.shape)


def finished(grad: Tensor, query: Tensor) -> Tensor:
    """dQ in the dtype of the query, summed over the batch where that is shared."""
    if grad.shape == query.shape:
        return grad
    return grad.sum(0, keepdim=True).to(query.dtype)


@functools.cache
def launcher(config: Sm90Config) -> Launcher:
    return Launcher(compiled(config))


@functools.cache
def compiled(config: Sm90Config, more: str = "") -> Any:
    """The kernel, ready to be launched. Needs no GPU. more: compiler options."""
    outputs = ["float32", *[config.dtype] * 3, "int32"]
    arguments = example(config, [config.dtype, *outputs])
    return cute.compile(HopperBackward(config), *arguments, options=options(config, more))
