"""gdpa::attention, gdpa::attention_backward and gdpa::kept: schemas, shapes and gradients.

Layout: query [B,H,M,D], key [Bk,Hk,N,D], value [Bv,Hv,N,Dv], output [B,H,M,Dv] contiguous in
value's dtype. The batch of each operand is B or 1. H is a multiple of Hk and of Hv, and query head
h reads key head h // (H/Hk). A side whose cu_seqlens is given is jagged instead (`operands`): query
and output [Lq,H,·], key and value [Lk,·,·]. Lengths are read on the device only. Saved for the
backward: the operands.

The eager implementation is the `reference`: any device and float dtype, and it holds the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ._compat import operators, shapes
from .operands import (
    Operands,
    aux_from_axes,
    aux_on_axes,
    aux_sums,
    by_access,
    check,
    in_order,
    kind_of,
    output_shape,
    score_shape,
)
from .reference import (
    compute_dtype,
    expand_heads,
    program_leaves,
    reduce_to,
    reference,
    reference_backward,
)
from .rejection import GDPAError
from .signature import DENSE, Arguments, Signature, operands_of

__all__ = [
    "ATTENTION",
    "BACKWARD",
    "DENSE",
    "Arguments",
    "Operands",
    "Signature",
    "aux_from_axes",
    "aux_on_axes",
    "aux_sums",
    "by_access",
    "check",
    "compute_dtype",
    "expand_heads",
    "fake_gradients",
    "fake_output",
    "in_order",
    "kind_of",
    "laid_gradients",
    "no_autocast",
    "operands_of",
    "output_shape",
    "program_leaves",
    "reduce_to",
    "reference",
    "reference_backward",
    "score_shape",
]

_LIBRARY = torch.library.Library("gdpa", "DEF")
ATTENTION = Signature("attention")
BACKWARD = Signature("attention_backward", backward=True)

# A copy that the backward may rely on, in one pass with a cast. A clone would not do: where a graph
# is partitioned, the backward may take it again, from a tensor that was changed since.
_LIBRARY.define(
    "kept(Tensor x, ScalarType? dtype=None) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


@torch.library.impl(_LIBRARY, "kept", "CompositeExplicitAutograd")
def _copy(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.to(dtype or x.dtype, copy=True)


def _copy_fake(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


def _note_dtype(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.dtype = inputs[0].dtype


operators.register_fake(_LIBRARY, "kept", _copy_fake)
torch.library.register_autograd(
    "gdpa::kept", lambda ctx, grad: (grad.to(ctx.dtype), None), setup_context=_note_dtype,
    lib=_LIBRARY,
)  # fmt: skip


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The op has no autocast rule: operands are computed with as they come."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def _attention(arguments: Arguments[Tensor]) -> Tensor:
    check(arguments.operands)
    with no_autocast(arguments.operands.query.device):
        return reference(arguments.operands)


def _attention_backward(arguments: Arguments[Tensor]) -> list[Tensor]:
    operands, needs = arguments.operands, arguments.needs
    with no_autocast(operands.query.device):
        grads = reference_backward(arguments.grad_out, operands, needs)
    strides = [s for s, need in zip(_strides(operands), needs, strict=True) if need]
    return [
        grad if grad.stride() == s else grad.new_empty_strided(grad.shape, s).copy_(grad)
        for grad, s in zip(grads, strides, strict=True)
    ]


def fake_output(arguments: Arguments[Tensor]) -> Tensor:
    """The output of a forward operator on fake tensors, of whatever device."""
    check(arguments.operands)
    return arguments.operands.value.new_empty(output_shape(arguments.operands))


def fake_gradients(arguments: Arguments[Tensor]) -> list[Tensor]:
    """The gradients of a backward operator on fake tensors. Checked also where the operator is
    called without the forward: sizes that agree are one.
    """
    check(arguments.operands)
    leaves = zip(arguments.operands.differentiable, arguments.needs, strict=True)
    return [t.new_empty(t.shape) for t, need in leaves if need]


def laid_gradients(arguments: Arguments[Tensor]) -> list[Tensor]:
    """The same, where those of query, key and value lie as their operands (`dense_strides`). So the
    views that lead from a projection [B,N,H·D] to them lead back without a copy.
    """
    operands = arguments.operands
    check(operands)
    leaves = zip(operands.differentiable, _strides(operands), arguments.needs, strict=True)
    return [t.new_empty_strided(t.shape, strides) for t, strides, need in leaves if need]


def _strides(o: Operands[Tensor]) -> list[tuple[Any, ...]]:
    """Of the gradients, those of the program's operands contiguous."""
    own = [shapes.dense_strides(t) for t in (o.query, o.key, o.value)]
    return own + [shapes.contiguous_strides(t.shape) for t in o.aux]


ATTENTION.register(_LIBRARY, "CompositeExplicitAutograd", _attention, fake_output)
BACKWARD.register(_LIBRARY, "CompositeExplicitAutograd", _attention_backward, laid_gradients)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    arguments = ATTENTION.bind(*inputs)
    o = arguments.operands
    ctx.save_for_backward(o.query, o.key, o.value, o.cu_seqlens_q, o.cu_seqlens_k, *o.aux)
    ctx.scalars, ctx.program, ctx.longest = o.scalars, o.program, o.lengths[2:]
    ctx.options = arguments.options


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    query, key, value, cu_seqlens_q, cu_seqlens_k, *aux = ctx.saved_tensors
    offsets = (cu_seqlens_q, cu_seqlens_k)
    operands = Operands(query, key, value, aux, ctx.scalars, ctx.program, *offsets, *ctx.longest)
    needs = (*ctx.needs_input_grad[:3], *_flat_needs(ctx.needs_input_grad[3], len(aux)))
    arguments = Arguments(operands, grad_out, needs, ctx.options)
    args, kwargs = BACKWARD.call(arguments)
    results = iter(torch.ops.gdpa.attention_backward(*args, **kwargs))
    grads = [next(results) if need else None for need in needs]
    # torch asks for the structure of the inputs: a list without tensors is empty or None.
    no_scalars: list[Any] | None = None if ctx.scalars else []
    # The dispatcher leaves out trailing arguments that have their default values.
    rest = [None] * (len(ctx.needs_input_grad) - 5)
    return (*grads[:3], grads[3:], no_scalars, *rest)


def _flat_needs(needs: bool | Sequence[bool], count: int) -> list[bool]:
    return [bool(needs)] * count if isinstance(needs, bool) else list(needs)


def _no_double_backward(ctx: Any, *grads: Any) -> None:
    raise GDPAError(
        "gdpa::attention has no second derivative: wrap the part of the model that needs one in "
        "torch._dynamo.disable(), or compile it with another backend"
    )


torch.library.register_autograd(
    "gdpa::attention", _backward, setup_context=_setup_context, lib=_LIBRARY
)
torch.library.register_autograd("gdpa::attention_backward", _no_double_backward, lib=_LIBRARY)
