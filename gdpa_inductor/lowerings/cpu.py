"""The CPU lowering: one call of a blocked kernel in the generated code, forward and backward.

`gdpa::attention_cpu` and `gdpa::attention_cpu_backward` have the arguments and results of the
public ops, but never hold an M×N tensor. Generated code calls the operators by name (`ops`).
This module imports nothing of Inductor.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..kernels.cpu import dense as kernel
from ..kernels.cpu import jagged, tiles
from ..operands import (
    Operands,
    aux_from_axes,
    aux_on_axes,
    aux_sums,
    check,
    in_order,
    output_shape,
)
from ..ops import CPU_BACKWARD, CPU_FORWARD, Arguments
from ..problem import Problem
from ..program.score_mod import Aux
from ..reference import compute_dtype, reference, reference_backward
from ..rejection import Code
from .backends import Backend, Rule, hint, one_query
from .call import Call, extern_call

# The fewest MiB of scores for which the fused form is chosen on a CPU: (inference, training). If a
# mask may leave scores out, half of that is enough.
#
# Measured as stock Inductor's time / ours, on two cores of an EPYC 9004, L3 32 MiB, torch 2.13:
# silu, B = 2, H = 4, D = 64.
#     fp32, N = 256, 512, 768, 1024, 2048: inference .80 .86 .96 1.00 1.62,
#                                          training .66 .74 .79 1.17 1.29
#     bf16, in smaller blocks: .44 .48 at 512, .75 .55 at 2048
#     fp16: 8.6 and 9.4 at 256
# Stock's small scores stay in the cache, and its large ones are fresh pages in each call. Our
# kernel multiplies fp16 and bf16 in fp32. CPUs have instructions for bf16, which stock uses;
# stock's fp16 is slow. fp64 is assumed to be like fp32.
_GAINS: dict[torch.dtype, tuple[int, int]] = {
    torch.float32: (16, 32),
    torch.float64: (16, 32),
    torch.bfloat16: (256, 256),
}
_WIDEST = 256  # the widest head dim that was measured
_SHORT = 32  # jagged training is slower if no sequence is longer than this, else always faster


def _gain(problem: Problem) -> str:
    step = "fusing training" if problem.training else "fusing inference"
    longest = max(hint(problem.rows), hint(problem.cols))
    if problem.jagged:
        short = problem.training and longest <= _SHORT
        told = f"sequences have at most {longest} rows; on a CPU {step} pays from {_SHORT + 1} rows"
        return told if short else ""
    least = _GAINS.get(problem.dtype, (0, 0))[problem.training]
    if tiles.zero((problem.program.weight,), problem.program.aux) is not None:
        least //= 2
    sizes = (problem.batch, problem.heads, problem.rows, problem.cols)
    taken = math.prod(map(hint, sizes)) * problem.dtype.itemsize / 2**20
    if taken >= least:
        return ""
    dtype = str(problem.dtype).removeprefix("torch.")
    size = f"{taken:.3g}" if taken >= 1 else f"{taken:.2g}"
    return f"the scores are {size} MiB; on a CPU {step} in {dtype} pays from {least} MiB"


def _wide(problem: Problem) -> str:
    """Why a head dim is too wide to be sure of a gain in time, or "". It still saves memory."""
    widest = max(hint(problem.head_dim), hint(problem.value_dim))
    if widest <= _WIDEST:
        return ""
    return f"a head dim of {widest}: on a CPU fusing is known to pay up to {_WIDEST}"


def lower(call: Call) -> Any:
    """The output, contiguous. Inductor IR in and out."""
    return extern_call(CPU_FORWARD, _arguments(call))


def lower_backward(call: Call) -> list[Any]:
    """The wanted gradients of (query, key, value, *aux), contiguous. Inductor IR in and out."""
    return extern_call(CPU_BACKWARD, _arguments(call))


def _arguments(call: Call) -> Arguments[Any]:
    return replace(call.nodes, options={"skip": call.options.skip})


def forward(given: Arguments[Tensor]) -> Tensor:
    operands, value, skip = given.operands, given.operands.value, given.options.get("skip", True)
    check(operands)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        # The kernel needs ascending offsets. Otherwise the reference runs, with padding.
        if not in_order(operands):
            return reference(operands)
        placed = _placed(operands)
        if isinstance(placed, jagged.Jagged):
            out = value.new_zeros(output_shape(operands))
            jagged.forward(placed, out, skip)
        else:
            out = value.new_empty(output_shape(operands))
            kernel.forward(placed, operands.program, out, skip)
    return out


def backward(given: Arguments[Tensor]) -> list[Tensor]:
    operands, program = given.operands, given.operands.program
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        if not in_order(operands):
            return reference_backward(given.grad_out, operands, given.needs)
        placed = _placed(operands)
        grads = _sums(given, placed.dtype)
        skip = given.options.get("skip", True)
        if isinstance(placed, jagged.Jagged):
            jagged.backward(placed, given.grad_out, grads, skip)
        else:
            kernel.BackwardPass(placed, program, given.grad_out, grads, skip).run()
    on_operands = [
        None if total is None else aux_from_axes(total, jagged.standing(spec))
        for total, spec in zip(grads.aux, program.aux, strict=True)
    ]
    totals = (grads.query, grads.key, grads.value, *on_operands)
    found = zip(operands.differentiable, totals, strict=True)
    return [total.to(t.dtype).contiguous() for t, total in found if total is not None]


def _sums(given: Arguments[Tensor], dtype: torch.dtype) -> kernel.Grads:
    """Zeros, to which the wanted gradients are added."""
    o = given.operands
    query, key, value = (
        torch.zeros(t.shape, dtype=dtype) if need else None
        for t, need in zip((o.query, o.key, o.value), given.needs, strict=False)
    )
    aux = tuple(
        aux_sums(_on_axes(t, spec), spec, dtype) if need else None
        for t, spec, need in zip(o.aux, o.program.aux, given.needs[3:], strict=True)
    )
    return kernel.Grads(query, key, value, aux)


def _on_axes(operand: Tensor, spec: Aux) -> Tensor:
    return aux_on_axes(operand, jagged.standing(spec))


def _placed(o: Operands[Tensor]) -> kernel.BlockOperands | jagged.Jagged:
    """The operands as the kernel takes them: with aux operands on four axes."""
    aux = [_on_axes(t, spec) for t, spec in zip(o.aux, o.program.aux, strict=True)]
    dtype = compute_dtype(o.query.dtype)
    if o.jagged:
        return jagged.Jagged(o.with_aux(aux), dtype)
    return kernel.BlockOperands(o.query, o.key, o.value, aux, o.scalars, dtype)


BACKEND = Backend(
    name="cpu",
    devices=("cpu",),
    refuses=(),
    pays=(
        Rule(Code.TOO_SMALL, one_query),
        Rule(Code.HEAD_DIM_LARGE, _wide),
        Rule(Code.SLOWER, _gain),
    ),
    frugal=(Rule(Code.TOO_SMALL, one_query), Rule(Code.SLOWER, _gain)),
    lower=lower,
    lower_backward=lower_backward,
)
