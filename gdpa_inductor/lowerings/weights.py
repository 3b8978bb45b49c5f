"""`gdpa::attention_weights`: P, dS and terms of aux operands of all scores, by one kernel.

The chunked backend multiplies them by torch's library (`kernels/blocked`). Operands are dense, and
as many as there are scores: [B,H,·,·]. There are two kernels, chosen as those of attention are:
CuTe's of P and dS on Hopper, and Triton's of any terms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._compat import dynamo, lowering
from ..kernels.blocked.fused import StoredPass
from ..operands import Operands, score_shape
from ..ops import Arguments, Signature
from ..options import KernelOptions
from ..problem import Problem
from ..program.expr import compute_dtype, fold, torch_apply
from ..reference import program_leaves
from .backends import Backend, backends
from .call import Call
from .choose import Choice, first_of

log = logging.getLogger("gdpa_inductor")
_LIBRARY = torch.library.Library("gdpa", "FRAGMENT")
WEIGHTS = Signature("attention_weights", backward=True)


def lower(*args: Any, **kwargs: Any) -> list[Any]:
    """These terms, contiguous [B,H,M,N] in the query's dtype, by Triton: Inductor IR in and out."""
    if args[0].get_device().type != "cuda":
        return list(lowering.extern_call(WEIGHTS.op, *args, **kwargs))
    from .triton.weights import lower as by_triton

    return by_triton(Call.of(WEIGHTS, args, kwargs))


def direct(
    chunk: StoredPass, matrices: Sequence[Tensor], operands: Sequence[Tensor], device: torch.device
) -> Callable[..., object] | None:
    """The kernel of a chunk, if Inductor compiles none (`BlockOperands.direct`)."""
    if device.type != "cuda":
        return None
    query, key, value, _ = chunk.by_head(matrices)
    o = Operands(query, key, value, operands, (), chunk.program)
    problem, options = Problem.of(o, True, chunk.needs), KernelOptions.parse(chunk.options)
    choice = choose(replace(problem, device=device), options.kernel)
    dynamo.counters["gdpa"][f"weights_{choice.kernel}"] += 1
    log.info("P and dS of a chunk by the %s kernel (%s)", choice.kernel, choice.reason)
    kernel = next(x for x in _kernels() if x.name == choice.kernel)
    found: Callable[..., object] | None = kernel.lower(chunk)
    return found


def choose(problem: Problem, kernel: str) -> Choice:
    """The kernel for a problem. kernel: The option; backends without one count as "auto"."""
    kernels = _kernels()
    named = {x.name: number for number, x in enumerate(kernels)}
    name = kernel if kernel in named else "auto"
    choice = first_of(problem, kernels[named.get(name, 0) :], name, profit=False)
    assert isinstance(choice, Choice)  # the last kernel refuses nothing
    return choice


def _kernels() -> list[Backend]:
    return [x.weights for x in backends() if x.weights is not None]


def terms(arguments: Arguments[Tensor]) -> list[Tensor]:
    """The same in plain torch, any device and float dtype."""
    o = arguments.operands
    dtype = compute_dtype(o.query.dtype)
    score, grad = (
        left.to(dtype) @ right.to(dtype).mT
        for left, right in ((o.query, o.key), (arguments.grad_out, o.value))
    )
    leaf = program_leaves(score, o.aux, o.scalars, o.program, grad)
    roots = list(o.program.summed_terms(arguments.needs).values())
    values = fold(roots, leaf, torch_apply(dtype))
    return [value.expand_as(score).to(o.query.dtype).contiguous() for value in values]


def _fakes(arguments: Arguments[Tensor]) -> list[Tensor]:
    o = arguments.operands
    size = score_shape(o)
    return [o.query.new_empty(size) for _ in o.program.summed_terms(arguments.needs)]


WEIGHTS.register(_LIBRARY, "CompositeExplicitAutograd", terms, _fakes)


def register() -> None:
    lowering.register_lowering(WEIGHTS.op, lower)
