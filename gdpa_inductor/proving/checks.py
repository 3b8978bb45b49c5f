"""What a case is held to: the error rule, then equal bits wherever the same call runs again.

- Against the formula in fp64, by the error of eager in the same precision (`error_rule`).
- Again and again, in memory that held NaN before.
- On two streams at once, and in a CUDA graph.

The call is the one that generated code makes (`lowerings/cute/calls.py`): its first run records the
launches, and later runs replay them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..error_rule import error_of
from ..kernels.blocked.fused import StoredPass
from ..kernels.cute import precompile as workers
from ..kernels.cute import tables
from ..kernels.cute.certificates import trusted_config_of
from ..kernels.cute.config import unsupported
from ..look_up import summed
from ..lowerings.cute.calls import BACKWARD, FORWARD, backward_site, forward_site
from ..lowerings.cute.weights import Filling
from ..lowerings.weights import terms
from ..operands import Operands, dtype_name, score_shape
from ..ops import Arguments
from ..program.expr import fold, torch_apply
from ..reference import expand_heads, program_leaves
from ..sequences import Padding
from .cases import CASES, TABLES, Case

RUNS = 20
STREAMS = 2
ROUNDS = 4  # of runs on several streams, and of replays of a graph

Run = Callable[[], Sequence[Tensor]]
# A name, and a function that gives the call, eager's results and the exact ones.
Check = tuple[str, Callable[[], tuple[Run, Sequence[Tensor], Sequence[Tensor]]]]


def checks_of(family: str, device: torch.device) -> list[Check]:
    """All cases of a family that its kernels take. Workers begin to compile them."""
    if family == "tables":
        return [_sums(*case, device) for case in TABLES]
    kind = trusted_config_of(device)
    assert kind  # else `cannot` has said so
    checks: list[Check] = []
    for case in CASES[family]:
        names = [dtype_name(dtype) for dtype in case.aux]
        if not unsupported(kind, (case.dtype, case.dtype), case.dims, names):
            check = _weights if family == "weights" else _attention
            checks.append((case.name, functools.partial(check, case, family, device)))
            o = case.operands(device)
            config, needs = workers.guess(o, kind, fast=True, skip=True), case.needs(o, family)
            if family == "weights":
                workers.weights(config)
            elif needs:
                workers.backward(config, needs, True, workers.likely_sizes(o))
            else:
                workers.forward(config)
    return checks


def _attention(
    case: Case, family: str, device: torch.device
) -> tuple[Run, Sequence[Tensor], Sequence[Tensor]]:
    o = case.operands(device)
    needs, options = case.needs(o, family), {"fast": True, "skip": True}
    grad_out = case.grad_out(o) if needs else None
    if needs:
        site = backward_site(False)
        arguments = Arguments(o, grad_out, needs, {**options, "ordered": True})
        args, options = BACKWARD.call(arguments)
    else:
        site = forward_site(False)
        args, options = FORWARD.call(Arguments(o, options=options))

    def run() -> Sequence[Tensor]:
        with torch.cuda.device(device):
            results = site(*args, **options)
        return results if needs else [results]

    eager, exact = (unfused(o, dtype, grad_out, needs) for dtype in (case.dtype, torch.float64))
    return run, eager, exact


def _weights(
    case: Case, family: str, device: torch.device
) -> tuple[Run, Sequence[Tensor], Sequence[Tensor]]:
    """P and dS, by the call that a chunk makes."""
    o = case.operands(device)
    heads, needs, grad_out = case.heads, case.needs(o, family), case.grad_out(o)
    kernel = Filling(StoredPass(o.program, needs, heads, ""))
    expanded = (expand_heads(x, heads) for x in (o.key, o.value))
    matrices = [x.flatten(0, 1) for x in (o.query, *expanded, grad_out)]

    def run() -> Sequence[Tensor]:
        made = [o.query.new_empty(score_shape(o)) for _ in range(2)]
        with torch.cuda.device(device):
            kernel(*matrices, *made, *o.aux)
        return made

    eager, exact = (stored(o, dtype, grad_out, needs) for dtype in (case.dtype, torch.float64))
    return run, eager, exact


def _sums(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Check:
    rows, columns, places = sizes

    def make() -> tuple[Run, Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(rows)
        grad = torch.randn(columns, rows, generator=generator).to(device, dtype)
        index = torch.randint(0, places, (rows,), generator=generator).to(device)
        eager, exact = (
            summed(grad.to(x), index, 1, places) for x in (torch.float32, torch.float64)
        )
        return lambda: [tables.sums(grad, index, places)], [eager], [exact]

    return f"{dtype_name(dtype)}, {places} places", make


def unfused(
    operands: Operands[Tensor],
    dtype: torch.dtype,
    grad_out: Tensor | None = None,
    needs: Sequence[bool] = (),
) -> list[Tensor]:
    """The output as a model computes it, which rounds each product to `dtype`.

    With a gradient of the output those in `needs`, of query, key, value and aux operands, instead.
    Aux operands keep their dtypes, unless `dtype` is fp64.
    """
    wide = dtype == torch.float64
    tensors = [
        x.detach().to(dtype if wide or number < 3 else x.dtype) if x.is_floating_point() else x
        for number, x in enumerate(operands.differentiable)
    ]
    leaves = [x.requires_grad_() for x, need in zip(tensors, needs, strict=False) if need]
    o = operands.filled([*tensors, *operands.flat()[len(tensors) :]])
    padding = Padding.of(o)
    dense = padding.pad(o) if o.jagged else o
    heads = dense.query.shape[1]
    score = dense.query @ expand_heads(dense.key, heads).mT
    for x in dense.aux:  # a float operand promotes the scores
        score = score.to(torch.promote_types(score.dtype, x.dtype))
    leaf = program_leaves(score, dense.aux, dense.scalars, dense.program)
    (weight,) = fold([dense.program.weight], leaf, torch_apply(score.dtype))
    weight = weight.to(dtype).expand_as(score)
    if padding.mask is not None:
        weight = torch.where(padding.mask, weight, 0.0)
    out = padding.unpad_heads(weight @ expand_heads(dense.value, heads), "q")
    if grad_out is None:
        return [out.detach()]
    return list(torch.autograd.grad(out, leaves, grad_out.to(dtype)))


def stored(
    operands: Operands[Tensor], dtype: torch.dtype, grad_out: Tensor, needs: Sequence[bool]
) -> list[Tensor]:
    """P and dS of all scores, as torch computes them in `dtype`, or in fp32 for one of 16 bits."""
    heads = operands.query.shape[1]
    key, value = (expand_heads(x, heads) for x in (operands.key, operands.value))
    aux = [x.to(dtype) if x.is_floating_point() else x for x in operands.aux]
    q, k, v = (x.to(dtype) for x in (operands.query, key, value))
    o = Operands(q, k, v, aux, operands.scalars, operands.program)
    return terms(Arguments(o, grad_out.to(dtype), tuple(needs)))


def verdict(
    run: Run, eager: Sequence[Tensor], exact: Sequence[Tensor], direction: str, device: torch.device
) -> str:
    """What is wrong with a call, or ""."""
    first = [x.clone() for x in _poisoned(run, eager)]
    for number, results in enumerate(zip(first, eager, exact, strict=True)):
        if fault := error_of(*results, direction=direction):
            return f"result {number}: {fault}"
    ways: dict[str, Callable[[], bool]] = {"from run to run": lambda: _again(run, first)}
    if device.type == "cuda":
        ways["on two streams"] = lambda: _on_streams(run, first, device)
        ways["in a CUDA graph"] = lambda: _in_graph(run, first)
    return next((f"bits differ {way}" for way, equal in ways.items() if not equal()), "")


def _poisoned(run: Run, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """A run whose results probably lie where NaN was: allocators hand out what was freed last."""
    nan = [torch.full(x.shape, torch.nan, dtype=x.dtype, device=x.device) for x in like]
    del nan
    return run()


def _equal(results: Sequence[Tensor], first: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(results, first, strict=True))


def _again(run: Run, first: Sequence[Tensor]) -> bool:
    return all(_equal(_poisoned(run, first), first) for _ in range(RUNS))


def _on_streams(run: Run, first: Sequence[Tensor], device: torch.device) -> bool:
    torch.cuda.synchronize(device)
    results = []
    streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]
    for _ in range(ROUNDS):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(run())
    torch.cuda.synchronize(device)
    return all(_equal(x, first) for x in results)


def _in_graph(run: Run, first: Sequence[Tensor]) -> bool:
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for _ in range(ROUNDS):
        for x in results:
            x.fill_(torch.nan)
        graph.replay()
        if not _equal(results, first):
            return False
    return True
