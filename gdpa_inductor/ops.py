"""gdpa::attention and gdpa::attention_backward: schemas, shapes, gradients, and the plain-torch
reference.

    O[b,h,n,:] = sum_m P[b,h,n,m] V[b,h,m,:]        P = program(s, b, h, n, m, aux)        s = q·k
    in fp32 (fp64 for fp64)

Layout: query [B,H,N,D], key [Bk,Hk,M,D], value [Bv,Hv,M,Dv], output [B,H,N,Dv] contiguous in
value's dtype. The batch of each operand is B or 1, and H is a multiple of Hk and of Hv: query head
h reads key head h // (H/Hk). Saved for the
backward: q, k, v and the aux operands. With dP = dO Vᵀ and `ScoreMod.gradients` the program's own
derivative,

    dV = Pᵀ dO,   dS = dP · ∂P/∂s,   dQ = dS K,   dK = dSᵀ Q,   da = dP · ∂P/∂a,   each summed over
    broadcast dims.

The eager implementation is the reference: any device and float dtype, and it holds the N×M scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .expr import Expr, fold, torch_apply
from .rejection import GDPAError
from .score_mod import AXES, Aux, ScoreMod

_OPERANDS = "Tensor query, Tensor key, Tensor value, Tensor[] aux, SymInt[] scalars, str score_mod"
_LIBRARY = torch.library.Library("gdpa", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_LIBRARY.define(f"attention({_OPERANDS}, str kernel_options) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"attention_backward(Tensor grad_out, {_OPERANDS}, bool[] needs, str kernel_options) "
    "-> Tensor[]",
    tags=_TAGS,
)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What scores and programs are computed in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def aux_on_axes(tensor: Tensor, spec: Aux) -> Tensor:
    """View an aux tensor as [B|1, H|1, N|1, M|1]."""
    squeezed = tensor.squeeze([d for d, a in enumerate(spec.access) if a == "-"])
    axes = [a for a in spec.access if a != "-"]
    ordered = squeezed.permute([axes.index(a) for a in AXES if a in axes])
    for position, axis in enumerate(AXES):
        if axis not in axes:
            ordered = ordered.unsqueeze(position)
    return ordered


def aux_from_axes(tensor: Tensor, spec: Aux) -> Tensor:
    """The inverse of `aux_on_axes`."""
    squeezed = tensor.squeeze([d for d, a in enumerate(AXES) if a not in spec.access])
    ordered = [a for a in AXES if a in spec.access]
    axes = [a for a in spec.access if a != "-"]
    restored = squeezed.permute([ordered.index(a) for a in axes])
    for position, entry in enumerate(spec.access):
        if entry == "-":
            restored = restored.unsqueeze(position)
    return restored


def expand_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat each key/value head for its group of query heads: [B,Hk,M,D] -> [B,H,M,D]."""
    own = tensor.shape[1]
    if own == heads:
        return tensor
    return (
        tensor.expand(-1, heads, -1, -1) if own == 1 else tensor.repeat_interleave(heads // own, 1)
    )


def program_leaves(
    score: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: ScoreMod,
    grad: Tensor | None = None,
) -> Callable[[Expr], Tensor]:
    """What a leaf of the program is in plain torch, for scores [B,H,N,M] in the compute dtype."""

    def leaf(node: Expr) -> Tensor:
        if node.op == "s":
            return score
        if node.op == "g":
            assert grad is not None
            return grad
        if node.op == "aux":
            number = int(node.value or 0)
            placed = aux_on_axes(aux[number], program.aux[number])
            return placed.to(score.dtype) if node.kind == "f" else placed
        if node.op in AXES:
            axis = AXES.index(node.op)
            shape = [score.shape[d] if d == axis else 1 for d in range(4)]
            return torch.arange(score.shape[axis], device=score.device).view(shape)
        literal = scalars[int(node.value or 0)] if node.op == "scalar" else node.value
        dtype = {"f": score.dtype, "i": torch.int64, "b": torch.bool}[node.kind]
        return torch.full((), literal, dtype=dtype, device=score.device)  # type: ignore[arg-type]

    return leaf


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: ScoreMod,
) -> Tensor:
    """The definition of the operator, in differentiable torch. Shapes as the module says."""
    score = _scores(query, key, value)
    apply = torch_apply(score.dtype)
    (weight,) = fold([program.weight], program_leaves(score, aux, scalars, program), apply)
    weight = weight.expand_as(score)
    return (weight @ expand_heads(value, query.shape[1]).to(score.dtype)).to(value.dtype)


def _scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B,H,N,M], also where only the value has a batch."""
    dtype = compute_dtype(query.dtype)
    score = query.to(dtype) @ expand_heads(key, query.shape[1]).to(dtype).mT
    return score.expand(score_shape(query, key, value))


def reference_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: ScoreMod,
    needs: Sequence[bool],
) -> list[Tensor]:
    """The asked gradients of (query, key, value, *aux), by the formulas of the module."""
    heads = query.shape[1]
    score = _scores(query, key, value)
    out = grad_out.to(score.dtype)
    grad_weight = out @ expand_heads(value, heads).to(score.dtype).mT
    leaf = program_leaves(score, aux, scalars, program, grad_weight)
    wanted = [program.weight, program.gradients.score, *program.gradients.aux]
    asked = [needs[2], needs[0] or needs[1], *needs[3:]]
    roots = [term for term, ask in zip(wanted, asked, strict=True) if term is not None and ask]
    terms = dict(zip(roots, fold(roots, leaf, torch_apply(score.dtype)), strict=True))

    def term(number: int) -> Tensor:
        root = wanted[number]
        found = None if root is None else terms.get(root)
        return torch.zeros_like(score) if found is None else found.expand_as(score)

    results: list[Tensor] = []
    if needs[0]:
        results.append(reduce_to(term(1) @ expand_heads(key, heads).to(score.dtype), query))
    if needs[1]:
        results.append(reduce_to(term(1).mT @ query.to(score.dtype), key))
    if needs[2]:
        results.append(reduce_to(term(0).mT @ out, value))
    for i, (tensor, spec) in enumerate(zip(aux, program.aux, strict=True)):
        if needs[3 + i]:
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


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    aux: Sequence[Tensor],
    scalars: Sequence[int],
    program: ScoreMod,
) -> None:
    """Raise GDPAError where operands do not fit each other or the program, saying which and how."""
    operands = {"query": query, "key": key, "value": value}
    for name, tensor in operands.items():
        if tensor.dim() != 4:
            raise GDPAError(
                f"{name} must be [batch, heads, length, head dim], got shape {tuple(tensor.shape)}"
            )
        if not tensor.dtype.is_floating_point:
            raise GDPAError(f"{name} must be floating point, got {tensor.dtype}")
    for tensor in (key, value, *aux):
        if tensor.device != query.device and tensor.dim() > 0:
            raise GDPAError(f"operands are on {query.device} and {tensor.device}")
    if key.dtype != query.dtype:
        raise GDPAError(f"query and key differ in dtype: {query.dtype}, {key.dtype}")
    _fits("head dim of query and key", query.shape[3], key.shape[3])
    _fits("length of key and value", key.shape[2], value.shape[2])
    batch, heads, rows, cols = score_shape(query, key, value)
    for name, tensor in operands.items():
        if not _is_one(tensor.shape[0]):
            _fits(f"batch of {name}", tensor.shape[0], batch)
    for name, tensor in (("key", key), ("value", value)):
        if query.shape[1] % tensor.shape[1] != 0:
            raise GDPAError(
                f"{query.shape[1]} query heads are no multiple of {tensor.shape[1]} {name} heads"
            )
    if len(aux) != len(program.aux) or len(scalars) < program.num_scalars:
        raise GDPAError(f"the program {program} declares another number of operands")
    sizes = dict(zip(AXES, (batch, heads, rows, cols), strict=True))
    for i, (tensor, spec) in enumerate(zip(aux, program.aux, strict=True)):
        if tensor.dim() != len(spec.access):
            raise GDPAError(
                f"a{i} has {tensor.dim()} dimensions, its access map {spec} has {len(spec.access)}"
            )
        if kind_of(tensor.dtype) != spec.kind:
            raise GDPAError(f"a{i} is {tensor.dtype}, the program declares kind {spec.kind}")
        for size, entry in zip(tensor.shape, spec.access, strict=True):
            _fits(f"dimension {entry} of a{i}", size, sizes.get(entry, 1))


def kind_of(dtype: torch.dtype) -> str:
    """The kind of a program's operand: "b", "f" or "i"."""
    return "b" if dtype == torch.bool else "f" if dtype.is_floating_point else "i"


def _fits(what: str, left: int, right: int) -> None:
    torch._check(left == right, lambda: f"gdpa::attention: {what}: {left} and {right}")


def score_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int, int, int]:
    """[B, H, N, M]: batches of 1 are shared."""
    batches = (t.shape[0] for t in (query, key, value))
    batch = next((b for b in batches if not _is_one(b)), 1)
    return batch, query.shape[1], query.shape[2], key.shape[2]


def _is_one(size: int) -> bool:
    return isinstance(size, int) and size == 1


def _no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The op has no autocast rule: operands are computed with as they come."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


@torch.library.impl(_LIBRARY, "attention", "CompositeExplicitAutograd")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, kernel_options: str,
) -> Tensor:  # fmt: skip
    program = ScoreMod.parse(score_mod)
    check(query, key, value, aux, scalars, program)
    with _no_autocast(query.device):
        return reference(query, key, value, aux, scalars, program)


@torch.library.impl(_LIBRARY, "attention_backward", "CompositeExplicitAutograd")
def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], kernel_options: str,
) -> list[Tensor]:  # fmt: skip
    program = ScoreMod.parse(score_mod)
    with _no_autocast(query.device):
        return reference_backward(grad_out, query, key, value, aux, scalars, program, needs)


@torch.library.register_fake("gdpa::attention", lib=_LIBRARY)
def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor], scalars: list[int],
    score_mod: str, kernel_options: str,
) -> Tensor:  # fmt: skip
    check(query, key, value, aux, scalars, ScoreMod.parse(score_mod))
    batch, heads, rows, _ = score_shape(query, key, value)
    return value.new_empty(batch, heads, rows, value.shape[3])


@torch.library.register_fake("gdpa::attention_backward", lib=_LIBRARY)
def _attention_backward_fake(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, aux: list[Tensor],
    scalars: list[int], score_mod: str, needs: list[bool], kernel_options: str,
) -> list[Tensor]:  # fmt: skip
    operands = (query, key, value, *aux)
    return [t.new_empty(t.shape) for t, need in zip(operands, needs, strict=True) if need]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, aux, scalars, ctx.score_mod, ctx.kernel_options = inputs
    ctx.save_for_backward(query, key, value, *aux)
    ctx.scalars = scalars


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    query, key, value, *aux = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:3], *_flat_needs(ctx.needs_input_grad[3], len(aux))]
    found = iter(
        torch.ops.gdpa.attention_backward(
            grad_out, query, key, value, aux, ctx.scalars, ctx.score_mod, needs, ctx.kernel_options
        )
    )
    grads = [next(found) if need else None for need in needs]
    no_scalars: list[Any] | None = (
        None if ctx.scalars else []
    )  # torch asks for the structure of the inputs
    return (*grads[:3], grads[3:], no_scalars, None, None)


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
