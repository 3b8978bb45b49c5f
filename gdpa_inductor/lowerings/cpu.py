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

from ..kernels import cpu as kernel
from ..ops import aux_from_axes, aux_on_axes, check, compute_dtype, score_shape
from ..options import KernelOptions
from ..score_mod import AXES, Aux, ScoreMod
from . import _compat

_OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor[] aux, SymInt[] scalars, str score_mod"
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_LIBRARY.define(f"attention_cpu({_OPERANDS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"attention_cpu_backward(Tensor grad_out, {_OPERANDS}, bool[] needs) -> Tensor[]", tags=_TAGS
)


def lower(
    query: Any,
    key: Any,
    value: Any,
    aux: Sequence[Any],
    scalars: Sequence[Any],
    program: ScoreMod,
    kernel_options: KernelOptions,
) -> Any:
    """The output [B,H,N,Dv], contiguous. Inductor IR in and out."""
    operands = (query, key, value, list(aux), list(scalars), str(program))
    return _compat.extern_call(torch.ops.gdpa.attention_cpu.default, *operands)


def lower_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    aux: Sequence[Any],
    scalars: Sequence[Any],
    program: ScoreMod,
    needs: Sequence[bool],
    kernel_options: KernelOptions,
) -> list[Any]:
    """The asked gradients of (query, key, value, *aux), contiguous. Inductor IR in and out."""
    operands = (grad_out, query, key, value, list(aux), list(scalars), str(program), list(needs))
    return list(_compat.extern_call(torch.ops.gdpa.attention_cpu_backward.default, *operands))


@torch.library.impl(_LIBRARY, "attention_cpu", "CPU")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int], score_mod: str
) -> Tensor:
    program = ScoreMod.parse(score_mod)
    # AOTInductor's executor hands an empty list over as None (torch 2.11, 2.13).
    aux, scalars = aux or [], scalars or []
    check(query, key, value, aux, scalars, program)
    out = _output(query, key, value)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        kernel.forward(_operands(query, key, value, aux, scalars, program), program, out)
    return out


@torch.library.impl(_LIBRARY, "attention_cpu_backward", "CPU")
def _attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: list[Tensor],
    scalars: list[int],
    score_mod: str,
    needs: list[bool],
) -> list[Tensor]:
    program = ScoreMod.parse(score_mod)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        operands = _operands(query, key, value, aux, scalars, program)
        query_grad, key_grad, value_grad = (
            torch.zeros(t.shape, dtype=operands.dtype) if need else None
            for t, need in zip((query, key, value), needs, strict=False)
        )
        aux_grads = tuple(
            _aux_zeros(t, spec, operands.dtype) if need else None
            for t, spec, need in zip(aux, program.aux, needs[3:], strict=True)
        )
        grads = kernel.Grads(query_grad, key_grad, value_grad, aux_grads)
        kernel.Backward(operands, program, grad_out, grads).run()
    placed = [
        None if total is None else aux_from_axes(total, spec)
        for total, spec in zip(aux_grads, program.aux, strict=True)
    ]
    totals = (query_grad, key_grad, value_grad, *placed)
    found = zip((query, key, value, *aux), totals, strict=True)
    return [total.to(t.dtype).contiguous() for t, total in found if total is not None]


def _aux_zeros(operand: Tensor, spec: Aux, dtype: torch.dtype) -> Tensor:
    """Where to sum the gradient of an aux operand, [B|1, H|1, N|1, M|1]."""
    # With all four axes nothing is summed: every element is written once, in its own dtype.
    kept = operand.dtype if len(spec.axes) == len(AXES) else dtype
    return torch.zeros(aux_on_axes(operand, spec).shape, dtype=kept)


def _operands(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: ScoreMod,
) -> kernel.Operands:
    on_axes = [aux_on_axes(t, spec) for t, spec in zip(aux, program.aux, strict=True)]
    return kernel.Operands(query, key, value, on_axes, scalars, compute_dtype(query.dtype))


def _output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch, heads, rows, _ = score_shape(query, key, value)
    return value.new_empty(batch, heads, rows, value.shape[3])


@torch.library.register_fake("gdpa::attention_cpu", lib=_LIBRARY)
def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int], score_mod: str
) -> Tensor:
    check(query, key, value, aux, scalars, ScoreMod.parse(score_mod))
    return _output(query, key, value)


@torch.library.register_fake("gdpa::attention_cpu_backward", lib=_LIBRARY)
def _attention_backward_fake(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: list[Tensor],
    scalars: list[int],
    score_mod: str,
    needs: list[bool],
) -> list[Tensor]:
    operands = (query, key, value, *aux)
    return [t.new_empty(t.shape) for t, need in zip(operands, needs, strict=True) if need]
