"""GDPA by Triton: what each kernel of one op computes, and the templates that compute it.

Forward is one kernel. The backward is up to three kinds, each with loops of its own, so that every
sum has one order and no gradient needs an atomic: "rows" (dQ and sums over the keys), "keys" (dK,
dV and sums over the rows) and one "tiles" per operand that varies along both. What a kernel cannot
sum by itself (over the batch, over heads) it leaves to Inductor, in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import operands as ops
from .._compat import size_hint, statically_known_true
from ..expr import Expr, postorder
from ..kernels.configs import Config, Shape, configs
from ..kernels.template import AuxRead, Plan
from ..ops import aux_from_axes, reduce_to
from ..options import KernelOptions
from ..problem import Problem, Size
from ..score_mod import AXES, Aux, ScoreMod
from . import _compat, emit

_FAST_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Operands:
    """The operands of one op as Inductor IR, realized, and what is known of them.

    aux: in the order of the program. shared, grouped: see `Plan`. grad_out is None in the forward.
    """

    problem: Problem
    options: KernelOptions
    matrices: dict[str, Any]
    aux: tuple[Any, ...]
    scalars: tuple[Any, ...]
    shared: frozenset[str]
    grouped: frozenset[str]

    @property
    def program(self) -> ScoreMod:
        return self.problem.program

    @property
    def fast(self) -> bool:
        return (
            self.options.fast_math
            and self.problem.dtype in _FAST_DTYPES
            and torch.version.hip is None
        )


@dataclass(frozen=True)
class Output:
    """One term that a kernel computes, and the contiguous buffer that it goes to."""

    name: str
    term: Expr
    size: tuple[Size, ...]
    dtype: torch.dtype


def lower(operands: ops.Operands[Any], options: KernelOptions) -> Any:
    """O [B,H,N,Dv], contiguous. Operands are Inductor IR in the op's layout."""
    o = _operands(operands, {}, options)
    program = operands.program
    p = o.problem
    size = (p.batch, p.heads, p.rows, p.value_dim)
    if _empty(p):
        return _compat.zeros(size, p.value_dtype, p.device)
    (out,) = _run("forward", [Output("p", program.weight, size, p.value_dtype)], o)
    return out


def lower_backward(
    grad_out: Any, operands: ops.Operands[Any], needs: Sequence[bool], options: KernelOptions
) -> list[Any]:
    """The asked gradients of (query, key, value, *aux), each as its operand, contiguous."""
    program = operands.program
    o = _operands(operands, {"DO": grad_out}, options)
    fakes = _compat.lowered_node_values()
    leaves = [*fakes[1:4], *fakes[4]]
    found: dict[int, Any] = {}
    if not _empty(o.problem):
        wanted = {
            number: term
            for number, term in _terms(program).items()
            if term is not None and needs[number]
        }
        for kernel in (_rows, _keys, _tiles):
            found.update(kernel(wanted, leaves, o))
    return [
        found[i] if i in found else _compat.zeros(tuple(leaf.shape), leaf.dtype, leaf.device)
        for i, leaf in enumerate(leaves)
        if needs[i]
    ]


def _terms(program: ScoreMod) -> dict[int, Expr | None]:
    """By the number of the gradient (query, key, value, *aux): the term that it is made of."""
    score, others = program.gradients.score, program.gradients.aux
    return {0: score, 1: score, 2: program.weight, **{3 + i: term for i, term in enumerate(others)}}


def _rows(wanted: dict[int, Expr], leaves: list[Any], o: Operands) -> dict[int, Any]:
    """dQ, and the gradients of operands that do not vary along the keys."""
    p = o.problem
    outputs: dict[int, Output] = {}
    if 0 in wanted:
        dtype = torch.float32 if "Q" in o.shared else p.dtype
        outputs[0] = Output("ds", wanted[0], (p.batch, p.heads, p.rows, p.head_dim), dtype)
    for i, spec in _aux_wanted(wanted, p):
        if "m" not in spec.access:
            outputs[3 + i] = Output(
                f"g{i}", wanted[3 + i], (p.batch, p.heads, p.rows), torch.float32
            )
    return _finished("rows", outputs, leaves, o, axis=3)


def _keys(wanted: dict[int, Expr], leaves: list[Any], o: Operands) -> dict[int, Any]:
    """dK, dV, and the gradients of operands that vary along the keys only."""
    p = o.problem
    columns = [
        i for i, spec in _aux_wanted(wanted, p) if "m" in spec.access and "n" not in spec.access
    ]
    loops_heads = _loops_heads(o) and not columns
    heads = p.key_heads if loops_heads else p.heads
    outputs: dict[int, Output] = {}
    for number, name, operand, width in ((2, "p", "V", p.value_dim), (1, "ds", "K", p.head_dim)):
        if number in wanted:
            partial = operand in o.shared or (operand in o.grouped and not loops_heads)
            dtype = torch.float32 if partial else p.dtype
            outputs[number] = Output(name, wanted[number], (p.batch, heads, p.cols, width), dtype)
    for i in columns:
        outputs[3 + i] = Output(f"g{i}", wanted[3 + i], (p.batch, heads, p.cols), torch.float32)
    return _finished("keys", outputs, leaves, o, axis=2, loops_heads=loops_heads)


def _tiles(wanted: dict[int, Expr], leaves: list[Any], o: Operands) -> dict[int, Any]:
    """The gradients of operands that vary along rows and keys, a kernel each."""
    p = o.problem
    found: dict[int, Any] = {}
    for i, spec in _aux_wanted(wanted, p):
        if not {"n", "m"} <= spec.axes:
            continue
        own = [
            extent if axis in spec.axes else 1 for axis, extent in (("b", p.batch), ("h", p.heads))
        ]
        summed = frozenset("bh") - spec.axes
        splits = _splits(p, summed)
        dtype = torch.float32 if summed else p.aux_dtypes[i]
        output = Output(f"g{i}", wanted[3 + i], (splits, *own, p.rows, p.cols), dtype)
        found.update(_finished("tiles", {3 + i: output}, leaves, o, summed=summed))
    return found


def _aux_wanted(wanted: dict[int, Expr], problem: Problem) -> list[tuple[int, Aux]]:
    return [(number - 3, problem.program.aux[number - 3]) for number in wanted if number >= 3]


def _loops_heads(o: Operands) -> bool:
    """Key and value heads are the same groups, so one program can sum over the query heads of a
    group."""
    return o.grouped == {"K", "V"} and statically_known_true(
        o.problem.key_heads == o.problem.value_heads
    )


def _splits(problem: Problem, summed: frozenset[str]) -> int:
    """Into how many shares to part what "tiles" sums over, so that the device is filled, within 64
    MiB of partial sums."""
    sizes = {"b": problem.batch, "h": problem.heads, "n": problem.rows, "m": problem.cols}
    hints = {axis: size_hint(size) or 1 for axis, size in sizes.items()}
    members = math.prod(hints[axis] for axis in summed)
    own = math.prod(hints[axis] for axis in "bh" if axis not in summed)
    tiles = own * -(-hints["n"] // 64) * -(-hints["m"] // 64)
    room = (64 << 20) // max(1, 4 * own * hints["n"] * hints["m"])
    return max(1, min(members, 512 // tiles, room))


def _finished(
    kernel: str,
    outputs: dict[int, Output],
    leaves: list[Any],
    o: Operands,
    axis: int | None = None,
    **plan: Any,
) -> dict[int, Any]:
    """Run a kernel and bring what it stored to the shapes of the gradients. axis: what the sums of
    the kernel lack."""
    if not outputs:
        return {}
    stored = _run(kernel, list(outputs.values()), o, **plan)
    found: dict[int, Any] = {}
    for (number, output), buffer in zip(outputs.items(), stored, strict=True):
        leaf = leaves[number]
        found[number] = buffer
        if number >= 3:
            formula = _aux_gradient(o.program.aux[number - 3], axis)
            found[number] = _compat.finish(formula, buffer, output.size, output.dtype, leaf)
        elif not _same_shape(output.size, leaf.shape):
            found[number] = _compat.finish(reduce_to, buffer, output.size, output.dtype, leaf)
    return found


def _same_shape(size: Sequence[Size], other: Sequence[Size]) -> bool:
    return all(statically_known_true(x == y) for x, y in zip(size, other, strict=True))


def _aux_gradient(spec: Aux, axis: int | None) -> Any:
    """From sums over [B,H,·] without `axis`, or over [shares,B,H,N,M], to the gradient of the
    operand."""

    def formula(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        placed = part.sum(0) if axis is None else part.unsqueeze(axis)
        left = [d for d, name in enumerate(AXES) if name not in spec.axes]
        summed = placed.sum(left, keepdim=True) if left else placed
        return aux_from_axes(summed, spec).to(like.dtype)

    return formula


def _operands(
    operands: ops.Operands[Any], others: dict[str, Any], options: KernelOptions
) -> Operands:
    values = _compat.lowered_node_values()[len(others) :]
    query, key, value, fake_aux, scalars = values[:5]
    fakes = ops.Operands(query, key, value, fake_aux, scalars, operands.program)
    problem = Problem.of(fakes, training=bool(others))
    problem = replace(problem, head_dim=int(problem.head_dim), value_dim=int(problem.value_dim))
    rounds = _rounds(problem)
    matrices = {"Q": operands.query, "K": operands.key, "V": operands.value, **others}
    by_name = {"Q": query, "K": key, "V": value}
    return Operands(
        problem=problem,
        options=options,
        matrices={
            name: _compat.realized(_compat.rounded_to_tf32(x) if rounds else x, problem.device)
            for name, x in matrices.items()
        },
        aux=tuple(_compat.realized(x, problem.device) for x in operands.aux),
        scalars=tuple(operands.scalars),
        shared=frozenset(
            n for n, x in by_name.items() if not statically_known_true(x.shape[0] == problem.batch)
        ),
        grouped=frozenset(
            n for n, x in by_name.items() if not statically_known_true(x.shape[1] == problem.heads)
        ),
    )


def _rounds(problem: Problem) -> bool:
    """The tensor core cuts fp32 to TF32, which shrinks every product; so operands are rounded to
    nearest before."""
    return problem.dtype == torch.float32 and _compat.float32_precision() == "tf32"


def _empty(problem: Problem) -> bool:
    sizes = (problem.batch, problem.heads, problem.rows, problem.cols)
    return any(statically_known_true(size == 0) for size in sizes)


def _plan(kernel: str, outputs: list[Output], o: Operands, **plan: Any) -> Plan:
    terms = [output.term for output in outputs]
    used = sorted({int(node.value or 0) for node in postorder(terms) if node.op == "aux"})
    flat = [
        out.name
        for out in outputs
        if not any(node.op in ("s", "g") for node in postorder([out.term]))
    ]
    return Plan(
        kernel=kernel,
        names=tuple(output.name for output in outputs),
        reads=tuple(AuxRead(i, o.program.aux[i]) for i in used),
        flat=frozenset(flat),
        shared=o.shared,
        grouped=o.grouped,
        **plan,
    )


def _run(kernel: str, outputs: list[Output], o: Operands, **plan: Any) -> list[Any]:
    """Put one kernel into the graph; the buffers of its outputs."""
    planned = _plan(kernel, outputs, o, **plan)
    others = [_compat.empty(out.size, out.dtype, o.problem.device) for out in outputs[1:]]
    body = {
        "subgraphs": [
            emit.subgraph(out.term, o.program.weight, o.scalars, o.problem.device, o.fast)
            for out in outputs
        ],
        "input_nodes": [
            *(o.matrices[name] for name in planned.operands),
            *(o.aux[a.number] for a in planned.reads),
            *others,
        ],
        "mutated_inputs": others or None,
        "layout": _compat.contiguous_layout(outputs[0].size, outputs[0].dtype, o.problem.device),
        "call_sizes": _call_sizes(kernel, outputs[0], o.problem),
    }
    template = _compat.template(planned)
    tried = _configs(planned, o.problem)
    choices = [
        {"num_warps": c.warps, "num_stages": c.stages, **_constants(c, o.problem, outputs[0])}
        for c in tried
    ]
    return [_compat.best_of(template, f"gdpa_{kernel}", choices, body), *others]


def _call_sizes(kernel: str, output: Output, problem: Problem) -> list[Any]:
    """What the grid is a function of: rows, keys, and how many (batch, head) units there are."""
    units = output.size[:3] if kernel == "tiles" else output.size[:2]
    return [_compat.size_expr(size) for size in (problem.rows, problem.cols)] + [
        math.prod((_compat.size_expr(size) for size in units), start=_compat.size_expr(1))
    ]


def _configs(plan: Plan, problem: Problem) -> list[Config]:
    dims = [max(16, 1 << (int(d) - 1).bit_length()) for d in (problem.head_dim, problem.value_dim)]
    tiles = [a.number for a in plan.reads if {"n", "m"} <= a.spec.axes]
    score_bytes = sum(problem.aux_dtypes[number].itemsize for number in tiles)
    shape = Shape(dims[0], dims[1], problem.dtype.itemsize, score_bytes)
    shared, capability = _compat.shared_memory(problem.device), _compat.capability(problem.device)
    found = configs(plan.kernel, shape, shared, _compat.thorough(), capability)
    return list(dict.fromkeys(_cut(config, problem) for config in found))


def _cut(config: Config, problem: Problem) -> Config:
    """No tile needs to be longer than the rows or keys that there are."""
    limits = [
        1 << max(4, (hint - 1).bit_length())
        for hint in (size_hint(problem.rows), size_hint(problem.cols))
        if hint
    ]
    if len(limits) < 2:
        return config
    return replace(config, rows=min(config.rows, limits[0]), keys=min(config.keys, limits[1]))


def _constants(config: Config, problem: Problem, output: Output) -> dict[str, Any]:
    """The compile-time names of the templates."""
    head_dim, value_dim = int(problem.head_dim), int(problem.value_dim)
    block_d, block_v = (max(16, 1 << (d - 1).bit_length()) for d in (head_dim, value_dim))
    return {
        "BLOCK_N": config.rows,
        "BLOCK_M": config.keys,
        "D": head_dim,
        "DV": value_dim,
        "BLOCK_D": block_d,
        "BLOCK_V": block_v,
        "EVEN_N": statically_known_true(problem.rows % config.rows == 0),
        "EVEN_M": statically_known_true(problem.cols % config.keys == 0),
        "EVEN_D": block_d == head_dim,
        "EVEN_V": block_v == value_dim,
        "SPLITS": int(output.size[0]) if len(output.size) == 5 else 1,
        "PRECISION": repr(_compat.float32_precision()),
        "ROUND_TF32": _rounds(problem),
    }
