"""The CPU lowering: one call of a blocked kernel in the generated code, forward and backward.

`gdpa::attention_cpu` and `gdpa::attention_cpu_backward` take and give what the public ops do; they
differ in that no N×M tensor is ever held. The code that Inductor generates calls them by name, so
importing this module must come before loading generated code from a cache; it imports nothing of
Inductor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._compat import lowering
from ..kernels import cpu as kernel
from ..kernels import cpu_jagged as jagged
from ..ops import (
    LENGTHS,
    OPERANDS,
    Operands,
    aux_from_axes,
    aux_on_axes,
    check,
    compute_dtype,
    in_order,
    operands_of,
    output_shape,
    reference,
    reference_backward,
)
from ..options import KernelOptions
from ..program.score_mod import AXES, Aux

_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_OPTIONS = "*, bool skip=True"  # leave out blocks of which the masks leave nothing
_LIBRARY.define(f"attention_cpu({OPERANDS}, {LENGTHS}, {_OPTIONS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"attention_cpu_backward(Tensor grad_out, {OPERANDS}, bool[] needs, {LENGTHS}, {_OPTIONS}) "
    "-> Tensor[]",
    tags=_TAGS,
)


def lower(operands: Operands[Any], options: KernelOptions) -> Any:
    """The output, contiguous. Inductor IR in and out."""
    op = torch.ops.gdpa.attention_cpu.default
    return lowering.extern_call(op, *operands.arguments(), skip=options.skip)


def lower_backward(
    grad_out: Any, operands: Operands[Any], needs: Sequence[bool], options: KernelOptions
) -> list[Any]:
    """The asked gradients of (query, key, value, *aux), contiguous. Inductor IR in and out."""
    arguments = (grad_out, *operands.arguments(list(needs)))
    op = torch.ops.gdpa.attention_cpu_backward.default
    return list(lowering.extern_call(op, *arguments, skip=options.skip))


@torch.library.impl(_LIBRARY, "attention_cpu", "CPU")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, *lengths: Any, skip: bool = True,
) -> Tensor:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    check(operands)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        if not in_order(operands):  # the kernel relies on it; memory is that of the user's padding
            return reference(operands)
        placed = _placed(operands)
        if isinstance(placed, jagged.Jagged):
            out = value.new_zeros(output_shape(operands))
            jagged.forward(placed, out, skip)
        else:
            out = value.new_empty(output_shape(operands))
            kernel.forward(placed, operands.program, out, skip)
    return out


@torch.library.impl(_LIBRARY, "attention_cpu_backward", "CPU")
def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], *lengths: Any, skip: bool = True,
) -> list[Tensor]:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    program = operands.program
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        if not in_order(operands):
            return reference_backward(grad_out, operands, needs)
        placed = _placed(operands)
        query_grad, key_grad, value_grad = (
            torch.zeros(t.shape, dtype=placed.dtype) if need else None
            for t, need in zip((query, key, value), needs, strict=False)
        )
        aux_grads = tuple(
            _aux_zeros(t, spec, placed.dtype) if need else None
            for t, spec, need in zip(operands.aux, program.aux, needs[3:], strict=True)
        )
        grads = kernel.Grads(query_grad, key_grad, value_grad, aux_grads)
        if isinstance(placed, jagged.Jagged):
            jagged.backward(placed, grad_out, grads, skip)
        else:
            kernel.Backward(placed, program, grad_out, grads, skip).run()
    on_operands = [
        None if total is None else aux_from_axes(total, jagged.standing(spec))
        for total, spec in zip(aux_grads, program.aux, strict=True)
    ]
    totals = (query_grad, key_grad, value_grad, *on_operands)
    found = zip(operands.differentiable, totals, strict=True)
    return [total.to(t.dtype).contiguous() for t, total in found if total is not None]


def _aux_zeros(operand: Tensor, spec: Aux, dtype: torch.dtype) -> Tensor:
    """Where to sum the gradient of an aux operand, [B|1, H|1, N|1, M|1]."""
    # With all four axes nothing is summed: every element is written once, in its own dtype.
    kept = operand.dtype if len(spec.axes) == len(AXES) else dtype
    return torch.zeros(aux_on_axes(operand, jagged.standing(spec)).shape, dtype=kept)


def _placed(o: Operands[Tensor]) -> kernel.Operands | jagged.Jagged:
    """As the kernel takes them: aux operands on four axes."""
    aux = [
        aux_on_axes(t, jagged.standing(spec)) for t, spec in zip(o.aux, o.program.aux, strict=True)
    ]
    dtype = compute_dtype(o.query.dtype)
    if o.jagged:
        return jagged.Jagged(o.with_aux(aux), dtype)
    return kernel.Operands(o.query, o.key, o.value, aux, o.scalars, dtype)


@torch.library.register_fake("gdpa::attention_cpu", lib=_LIBRARY)
def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, *lengths: Any, skip: bool = True,
) -> Tensor:  # fmt: skip
    operands = operands_of(query, key, value, aux, scalars, score_mod, *lengths)
    check(operands)
    return value.new_empty(output_shape(operands))


@torch.library.register_fake("gdpa::attention_cpu_backward", lib=_LIBRARY)
def _attention_backward_fake(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], *lengths: Any, skip: bool = True,
) -> list[Tensor]:  # fmt: skip
    operands = (query, key, value, *aux)
    return [t.new_empty(t.shape) for t, need in zip(operands, needs, strict=True) if need]
