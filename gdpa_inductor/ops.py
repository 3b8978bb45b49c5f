"""gdpa::attention, gdpa::attention_backward and gdpa::kept: schemas, shapes and gradients.

Layout: query [B,H,N,D], key [Bk,Hk,M,D], value [Bv,Hv,M,Dv], output [B,H,N,Dv] contiguous in
value's dtype. The batch of each operand is B or 1, and H is a multiple of Hk and of Hv: query head
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

from .operands import Operands, check, in_order, kind_of, output_shape, score_shape
from .program.score_mod import ScoreMod
from .reference import (
    aux_from_axes,
    aux_on_axes,
    by_access,
    compute_dtype,
    expand_heads,
    program_leaves,
    reduce_to,
    reference,
    reference_backward,
)
from .rejection import GDPAError

__all__ = [
    "Operands",
    "aux_from_axes",
    "aux_on_axes",
    "by_access",
    "check",
    "compute_dtype",
    "expand_heads",
    "in_order",
    "kind_of",
    "operands_of",
    "output_shape",
    "program_leaves",
    "reduce_to",
    "reference",
    "reference_backward",
    "score_shape",
]

OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor[] aux, SymInt[] scalars, str score_mod"
LENGTHS = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "SymInt max_seqlen_q=0, SymInt max_seqlen_k=0"
)
_LIBRARY = torch.library.Library("gdpa", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_LIBRARY.define(f"attention({OPERANDS}, str kernel_options, {LENGTHS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"attention_backward(Tensor grad_out, {OPERANDS}, bool[] needs, str kernel_options, {LENGTHS}) "
    "-> Tensor[]",
    tags=_TAGS,
)


# A copy that the backward may rely on. A clone would not do: where a graph is partitioned, the
# backward may take it again, from a tensor that was changed since.
_LIBRARY.define("kept(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def operands_of(
    query: Any, key: Any, value: Any, aux: Sequence[Any], scalars: Sequence[Any], score_mod: str,
    *lengths: Any,
) -> Operands[Any]:  # fmt: skip
    """From the arguments of an op; lengths: those after kernel_options, as far as given."""
    # AOTInductor's executor hands an empty list over as None (torch 2.11, 2.13).
    return Operands(
        query, key, value, aux or [], scalars or [], ScoreMod.parse(score_mod), *lengths
    )


@torch.library.impl(_LIBRARY, "kept", "CompositeExplicitAutograd")
def _kept(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.register_fake("gdpa::kept", lib=_LIBRARY)
def _kept_fake(x: Tensor) -> Tensor:
    return torch.empty_like(x)


torch.library.register_autograd("gdpa::kept", lambda ctx, grad: grad, lib=_LIBRARY)


def _no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The op has no autocast rule: operands are computed with as they come."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


@torch.library.impl(_LIBRARY, "attention", "CompositeExplicitAutograd")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, kernel_options: str, *lengths: Any,
) -> Tensor:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    check(operands)
    with _no_autocast(query.device):
        return reference(operands)


@torch.library.impl(_LIBRARY, "attention_backward", "CompositeExplicitAutograd")
def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], kernel_options: str, *lengths: Any,
) -> list[Tensor]:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    with _no_autocast(query.device):
        return reference_backward(grad_out, operands, needs)


@torch.library.register_fake("gdpa::attention", lib=_LIBRARY)
def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, kernel_options: str, *lengths: Any,
) -> Tensor:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    check(operands)
    return value.new_empty(output_shape(operands))


@torch.library.register_fake("gdpa::attention_backward", lib=_LIBRARY)
def _attention_backward_fake(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], kernel_options: str, *lengths: Any,
) -> list[Tensor]:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    check(operands)  # also where the op is called without the forward: sizes that agree are one
    leaves = zip(operands.differentiable, needs, strict=True)
    return [t.new_empty(t.shape) for t, need in leaves if need]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, aux, scalars, ctx.score_mod, ctx.kernel_options, *lengths = inputs
    ctx.save_for_backward(query, key, value, *lengths[:2], *aux)
    ctx.scalars, ctx.longest = scalars, lengths[2:]


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    query, key, value, cu_seqlens_q, cu_seqlens_k, *aux = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:3], *_flat_needs(ctx.needs_input_grad[3], len(aux))]
    found = iter(
        torch.ops.gdpa.attention_backward(
            grad_out, query, key, value, aux, ctx.scalars, ctx.score_mod, needs, ctx.kernel_options,
            cu_seqlens_q, cu_seqlens_k, *ctx.longest,
        )
    )  # fmt: skip
    grads = [next(found) if need else None for need in needs]
    no_scalars: list[Any] | None = (
        None if ctx.scalars else []
    )  # torch asks for the structure of the inputs
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
