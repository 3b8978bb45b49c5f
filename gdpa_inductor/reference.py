"""The definition of gdpa::attention and of its gradients, in plain torch on any device.

    O[b,h,i,:] = sum_j P[b,h,i,j] V[b,h,j,:]        P = program(s, b, h, i, j, aux)        s = q·k
    in fp32 (fp64 for fp64)

Of a program with a term R that is summed, the sums over j are an output too. With dP = dO Vᵀ and
`ScoreMod.gradients` the program's own derivative,

    dV = Pᵀ dO,   dS = dP · ∂P/∂s,   dQ = dS K,   dK = dSᵀ Q,   da = dP · ∂P/∂a,   each summed over
    broadcast dims. In a backward ∂R/∂s and ∂R/∂a are added to dS and da: R has the gradient of its
    sums as a factor.

It holds the M×N scores. Keys and values in pages are copied first. Jagged sides are padded, and
their results unpadded (`sequences`). A score that does not exist has no weight and no gradient,
whatever the program makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .operands import (
    Operands,
    add_by_place,
    aux_from_axes,
    aux_on_axes,
    gathered,
    on_axis,
    score_shape,
)
from .program.expr import AXES, Expr, compute_dtype, dtype_of, fold, torch_apply
from .program.score_mod import ScoreMod
from .sequences import Padding


def expand_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat each key/value head for its group of query heads: [B,Hk,N,D] -> [B,H,N,D]."""
    own = tensor.shape[1]
    if own == heads:
        return tensor
    return (
        tensor.expand(-1, heads, -1, -1) if own == 1 else tensor.repeat_interleave(heads // own, 1)
    )


def program_leaves(
    score: Tensor,
    aux: Sequence[Tensor] | Mapping[int, Tensor],
    scalars: Sequence[int],
    program: ScoreMod,
    grad: Tensor | None = None,
) -> Callable[[Expr], Tensor]:
    """What a leaf of the program is in plain torch, for scores [B,H,M,N] in the compute dtype.

    aux: By number.
    """

    def leaf(node: Expr) -> Tensor:
        if node.op == "s":
            return score
        if node.op == "g":
            assert grad is not None
            return grad
        if node.op == "aux":
            number = node.value
            placed = aux_on_axes(aux[number], program.aux[number])
            return placed.to(dtype_of(node.kind, score.dtype))  # int8 would wrap
        if node.op in AXES:
            size = score.shape[AXES.index(node.op)]
            return on_axis(node.op, torch.arange(size, device=score.device))
        literal = scalars[node.value] if node.op == "scalar" else node.value
        dtype = dtype_of(node.kind, score.dtype)
        # By way of fp64: what is too large for `dtype` is infinite, as in arithmetic with a number.
        wide = torch.float64 if node.kind == "f" else dtype
        return torch.full((), literal, dtype=wide, device=score.device).to(dtype)  # type: ignore[arg-type]

    return leaf


def reference(operands: Operands[Tensor]) -> Any:
    """The output, [B,H,M,Dv] or, for a jagged query, [Lq,H,Dv]; contiguous, in value's dtype.

    Of a program with row sums, (output, row sums): these in fp32 or fp64, [B,H,M] or [Lq,H].
    """
    operands = gathered(operands)
    if not operands.jagged:
        out, *sums = _dense(operands, None)
    else:
        padding = Padding.of(operands)
        padded = _dense(padding.pad(operands), padding.mask)
        out, *sums = (padding.unpad_heads(x, "q") for x in padded)
    return (out, *(x.squeeze(-1) for x in sums)) if sums else out


def _dense(o: Operands[Tensor], mask: Tensor | None) -> list[Tensor]:
    """The output, and the row sums as [B,H,M,1]. mask: which scores there are, as [B,H,M,N]; None
    is all.
    """
    score = _scores(o)
    leaf = program_leaves(score, o.aux, o.scalars, o.program)
    terms = fold(o.program.roots, leaf, torch_apply(score.dtype))
    weight, *summed = (_masked(x.expand_as(score), mask) for x in terms)
    out = weight @ expand_heads(o.value, o.query.shape[1]).to(score.dtype)
    return [out.to(o.value.dtype), *(x.sum(-1, keepdim=True) for x in summed)]


def _masked(term: Tensor, mask: Tensor | None) -> Tensor:
    return term if mask is None else torch.where(mask, term, 0.0)


def _scores(o: Operands[Tensor]) -> Tensor:
    """[B,H,M,N], also where only the value has a batch."""
    dtype = compute_dtype(o.query.dtype)
    score = o.query.to(dtype) @ expand_heads(o.key, o.query.shape[1]).to(dtype).mT
    return score.expand(score_shape(o))


def reference_backward(
    grad_out: Tensor, operands: Operands[Tensor], needs: Sequence[bool]
) -> list[Tensor]:
    """The asked gradients of (query, key, value, *aux), by the formulas of the module."""
    if not operands.jagged:
        return _dense_backward(grad_out, operands, needs, None)
    padding = Padding.of(operands)
    padded = padding.pad(operands)
    placed = padding.heads(grad_out, "q")
    grads = _dense_backward(placed, padded, needs, padding.mask)
    numbers = [number for number, need in enumerate(needs) if need]
    unpadded = [
        padding.unpad_aux(grad, operands.program.aux[number - 3])
        if number >= 3
        else padding.unpad_heads(grad, "qkk"[number])
        for number, grad in zip(numbers, grads, strict=True)
    ]
    return [grad.contiguous() for grad in unpadded]


def _dense_backward(
    grad_out: Tensor, o: Operands[Tensor], needs: Sequence[bool], mask: Tensor | None
) -> list[Tensor]:
    heads, program = o.query.shape[1], o.program
    score = _scores(o)
    out = grad_out.to(score.dtype)
    grad_weight = out @ expand_heads(o.value, heads).to(score.dtype).mT
    leaf = program_leaves(score, o.aux, o.scalars, program, grad_weight)
    wanted = [program.weight, program.gradients.score, *program.gradients.aux]
    needed = [needs[2], needs[0] or needs[1], *needs[3:]]
    roots = [term for term, ask in zip(wanted, needed, strict=True) if term is not None and ask]
    terms = dict(zip(roots, fold(roots, leaf, torch_apply(score.dtype)), strict=True))

    def term(number: int) -> Tensor:
        root = wanted[number]
        value = None if root is None else terms.get(root)
        return torch.zeros_like(score) if value is None else _masked(value.expand_as(score), mask)

    results: list[Tensor] = []
    if needs[0]:
        results.append(reduce_to(term(1) @ expand_heads(o.key, heads).to(score.dtype), o.query))
    if needs[1]:
        results.append(reduce_to(term(1).mT @ o.query.to(score.dtype), o.key))
    if needs[2]:
        results.append(reduce_to(term(0).mT @ out, o.value))
    for i, (tensor, spec) in enumerate(zip(o.aux, program.aux, strict=True)):
        if needs[3 + i] and spec.is_table:
            shape = aux_on_axes(tensor, spec).shape
            sums = torch.zeros(shape, dtype=score.dtype, device=score.device)
            (places,) = fold([program.places[i]], leaf, torch_apply(score.dtype))
            add_by_place(term(2 + i), places.expand_as(score), sums)
            results.append(aux_from_axes(sums, spec).to(tensor.dtype).contiguous())
        elif needs[3 + i]:
            dims = [d for d, axis in enumerate(AXES) if axis not in spec.access]
            summed = term(2 + i).sum(dims, keepdim=True) if dims else term(2 + i)
            results.append(aux_from_axes(summed, spec).to(tensor.dtype).contiguous())
    return results


def reduce_to(grad: Tensor, operand: Tensor) -> Tensor:
    """Sum the gradient [B,H,·,D] over the batch and the head groups that share the operand."""
    batch, heads = operand.shape[:2]
    if batch != grad.shape[0]:
        grad = grad.sum(0, keepdim=True)
    if heads != grad.shape[1]:
        grad = grad.unflatten(1, (heads, -1)).sum(2)
    return grad.to(operand.dtype).contiguous()
