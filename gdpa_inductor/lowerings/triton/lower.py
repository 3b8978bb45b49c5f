"""Lower one op to Triton kernels: which kernels it needs, and what each of them computes.

The forward is one kernel. A backward has some of these kernels:

    "rows"         dQ, and the gradients of aux operands that do not vary along the keys.
    "keys"         dK, dV, and the gradients of aux operands that vary along the keys only. With
                   `gdpa.deterministic=False` also dQ, by atomics.
    "five_matmul"  Replaces these two for many short sequences.
    "one_tile"     Replaces these two for few queries.
    "tiles"        The gradient of one aux operand that varies along queries and keys.

Each kernel has loops of its own. So every sum has a fixed order, and no gradient needs an atomic. A
kernel cannot sum over the batch or over heads. It stores partial sums in fp32, and Inductor adds
them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..._compat import lowering, shapes
from ...kernels.triton import splits
from ...operands import aux_from_axes, by_access
from ...problem import Problem, Size
from ...program.expr import AXES, POSITIONS, Expr
from ...program.score_mod import Aux, ScoreMod
from ...reference import reduce_to
from ...sequences import Padding, Sequences, padded_program
from .. import gpu
from ..call import Call, in_order
from ..donation import buffer_like
from . import five_matmul, one_tile
from .inputs import Inputs, empty, inputs_of
from .launch import Output, Rival, run

# A function from wanted terms to gradients, both by the number of the operand (see `_terms`).
Kernel = Callable[[dict[int, Expr], Inputs], dict[int, Any]]


def lower(call: Call, rival: Rival | None = None) -> Any:
    """O, contiguous. Inductor IR in and out. rival: see `launch.run`."""
    o = inputs_of(call)
    p = o.problem
    size = _rows_of(o, p.value_dim)
    if empty(p):
        return lowering.zeros(size, p.value_dtype, p.device)
    count = 1 if rival else _shares(o)
    if count > 1:
        return _split(o, (count, *size))
    output = Output("p", o.program.weight, size, p.value_dtype)
    (out,) = run("forward", [output], o, rival=rival)
    return out


def _shares(o: Inputs) -> int:
    """Into how many shares the keys are cut, if all queries of a sequence are in one tile.

    Symbolic sizes count by their hints, without a guard.
    """
    p = o.problem
    known = [shapes.size_hint(x) for x in (p.batch, p.heads, p.rows, p.cols)]
    batch, heads, rows, keys = (0 if size is None else size for size in known)
    if None in known or rows > splits.MOST_ROWS:
        return 1
    written = shapes.size_hint(p.total_rows) if p.jagged_query else batch * rows
    partial = 4 * (written or batch * rows) * heads * int(p.value_dim)
    return splits.shares(batch * heads, keys, gpu.processors(p.device), partial)


def _split(o: Inputs, size: tuple[Size, ...]) -> Any:
    """O from partial sums [shares, ...], added in a fixed order."""
    output = Output("p", o.program.weight, size, torch.float32)
    (parts,) = run("forward", [output], o, split=True)
    return lowering.finish(_added, parts, size, torch.float32, o.fakes.value)


def _added(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, parts.unbind(0)).to(like.dtype)


def lower_backward(call: Call) -> list[Any]:
    """The wanted gradients of (query, key, value, *aux), each in the shape of its operand."""
    o, needs = inputs_of(call), call.needs
    leaves = o.fakes.differentiable
    grads: dict[int, Any] = {}
    if not empty(o.problem):
        wanted = {
            number: term
            for number, term in _terms(o.program).items()
            if term is not None and needs[number]
        }
        for kernel in _kernels(wanted, o):
            grads.update(kernel(wanted, o))
    return [
        grads[i] if i in grads else lowering.zeros(tuple(leaf.shape), leaf.dtype, leaf.device)
        for i, leaf in enumerate(leaves)
        if needs[i]
    ]


def _kernels(wanted: dict[int, Expr], o: Inputs) -> tuple[Kernel, ...]:
    """The functions that compute the wanted gradients."""
    if _in_one_tile(wanted, o):
        return _one_tile, _tiles
    if _owns(wanted, o):
        return _five_matmul, _tiles
    return (_keys_and_queries, _tiles) if _adds(wanted, o) else (_rows, _keys, _tiles)


def _terms(program: ScoreMod) -> dict[int, Expr | None]:
    """The term that each gradient sums, by the number of the operand: query, key, value, *aux."""
    score, others = program.gradients.score, program.gradients.aux
    return {0: score, 1: score, 2: program.weight, **{3 + i: term for i, term in enumerate(others)}}


def _rows_of(o: Inputs, *width: Size) -> tuple[Size, ...]:
    """The size of a result that has queries: [B,H,M,·], or [Lq,H,·] if the query is jagged."""
    p = o.problem
    if p.jagged_query:
        return (p.total_rows, p.heads, *width)
    return (p.batch, p.heads, p.rows, *width)


def _keys_of(o: Inputs, heads: Size, *width: Size) -> tuple[Size, ...]:
    p = o.problem
    if p.jagged_key:
        return (p.total_cols, heads, *width)
    return (p.batch, heads, p.cols, *width)


def _rows(wanted: dict[int, Expr], o: Inputs) -> dict[int, Any]:
    """dQ, and the gradients of operands that do not vary along the keys."""
    p = o.problem
    outputs: dict[int, Output] = {}
    if 0 in wanted:
        dtype = torch.float32 if "Q" in o.shared else p.dtype
        size = _rows_of(o, p.head_dim)
        outputs[0] = Output("ds", wanted[0], size, dtype, _strides(0, size, o))
    for i, spec in _aux_wanted(wanted, p):
        if "kv_idx" not in spec.axes:
            outputs[3 + i] = Output(f"g{i}", wanted[3 + i], _rows_of(o), torch.float32)
    return _finished("rows", outputs, o)


def _keys(wanted: dict[int, Expr], o: Inputs, added: Sequence[Any] = ()) -> dict[int, Any]:
    """dK, dV, and the gradients of aux operands that vary along the keys only.

    added: A buffer to which the kernel adds dQ, if it does.
    """
    outputs, loops_heads = _key_outputs(wanted, o)
    return _finished("keys", outputs, o, added=added, loops_heads=loops_heads)


def _key_outputs(wanted: dict[int, Expr], o: Inputs) -> tuple[dict[int, Output], bool]:
    """(outputs of the kernel of dK and dV, whether a CTA sums over the query heads of a group)."""
    p = o.problem
    columns = [i for i, spec in _aux_wanted(wanted, p) if spec.axes & POSITIONS == {"kv_idx"}]
    loops_heads = _loops_heads(o) and not columns
    heads = p.key_heads if loops_heads else p.heads
    outputs: dict[int, Output] = {}
    for number, name, operand, width in ((2, "p", "V", p.value_dim), (1, "ds", "K", p.head_dim)):
        if number in wanted:
            partial = operand in o.shared or (operand in o.grouped and not loops_heads)
            dtype = torch.float32 if partial else p.dtype
            size = _keys_of(o, heads, width)
            outputs[number] = Output(name, wanted[number], size, dtype, _strides(number, size, o))
    for i in columns:
        outputs[3 + i] = Output(f"g{i}", wanted[3 + i], _keys_of(o, heads), torch.float32)
    return outputs, loops_heads


def _strides(number: int, size: tuple[Size, ...], o: Inputs) -> tuple[Size, ...] | None:
    """The strides of `laid_gradients`, if a kernel stores the final gradient; else None."""
    operand = o.fakes.differentiable[number]
    stores_final = len(size) == 4 and _same_shape(size, operand.shape)
    return shapes.dense_strides(operand) if stores_final else None


def _owns(wanted: dict[int, Expr], o: Inputs) -> bool:
    """Whether "five_matmul" runs: a CTA computes dQ, dK and dV of a whole sequence and head."""
    rows = any("kv_idx" not in spec.axes for _, spec in _aux_wanted(wanted, o.problem))
    return (
        {0, 1} <= wanted.keys() and not rows and five_matmul.applies(_key_outputs(wanted, o)[0], o)
    )


def _five_matmul(wanted: dict[int, Expr], o: Inputs) -> dict[int, Any]:
    """The results of `_keys`, and dQ, summed in the order of the keys: 5 products instead of 7."""
    p = o.problem
    query = lowering.empty(_rows_of(o, p.head_dim), p.dtype, p.device)
    added = [five_matmul.sums(o), query]
    grads = _finished(
        "five_matmul", _key_outputs(wanted, o)[0], o, added=added, order=five_matmul.order(o)
    )
    return {**grads, 0: query}


def _in_one_tile(wanted: dict[int, Expr], o: Inputs) -> bool:
    """Whether "one_tile" runs: a CTA computes all queries of a sequence and head in one tile."""
    rows = any("kv_idx" not in spec.axes for _, spec in _aux_wanted(wanted, o.problem))
    return {0, 1, 2} <= wanted.keys() and not rows and one_tile.applies(o)


def _one_tile(wanted: dict[int, Expr], o: Inputs) -> dict[int, Any]:
    """The results of `_keys`, and dQ, whose shares are added in a fixed order."""
    size, dtype = one_tile.query_size(o)
    query = lowering.empty(size, dtype, o.problem.device)
    outputs, _ = _key_outputs(wanted, o)
    if not any(spec.axes >= POSITIONS for _, spec in _aux_wanted(wanted, o.problem)):
        outputs[1] = replace(outputs[1], room=_key_room(outputs[1], o))
    grads = _finished("one_tile", outputs, o, added=[query])
    return {**grads, 0: lowering.finish(_query_of_shares, query, size, dtype, o.fakes.query)}


def _key_room(output: Output, o: Inputs) -> Any:
    """The memory of K, for dK, if nobody needs K afterwards; else None. A CTA reads K before."""
    key, node = o.fakes.key, o.matrices["K"]
    alike = output.dtype == key.dtype and _same_shape(output.size, key.shape)
    strides = output.strides or ()
    lies = len(strides) == key.dim() and _same_shape(strides, key.stride())
    donates = "K" in o.spent and lowering.is_input(node)
    return buffer_like(node) if donates and alike and lies else None


def _query_of_shares(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return reduce_to(functools.reduce(torch.add, parts.unbind(0)), like)


def _adds(wanted: dict[int, Expr], o: Inputs) -> bool:
    """Whether the kernel of dK may sum dQ too, in no fixed order: 5 products instead of 7."""
    return not in_order(o.options) and {0, 1} <= wanted.keys() and "Q" not in o.shared


def _keys_and_queries(wanted: dict[int, Expr], o: Inputs) -> dict[int, Any]:
    """The results of `_keys` and `_rows`, with dQ by atomic additions in fp32."""
    p = o.problem
    size = _rows_of(o, p.head_dim)
    sums = lowering.zeroed(size, torch.float32, p.device)
    grads = {
        **_rows({number: term for number, term in wanted.items() if number != 0}, o),
        **_keys(wanted, o, [sums]),
    }
    grads[0] = lowering.finish(
        lambda part, like: part.to(like.dtype), sums, size, torch.float32, o.fakes.query
    )
    return grads


def _tiles(wanted: dict[int, Expr], o: Inputs) -> dict[int, Any]:
    """The gradients of aux operands that vary along queries and keys, with a kernel for each."""
    p = o.problem
    grads: dict[int, Any] = {}
    for i, spec in _aux_wanted(wanted, p):
        if not spec.axes >= POSITIONS:
            continue
        own = [
            extent if axis in spec.axes else 1 for axis, extent in (("b", p.batch), ("h", p.heads))
        ]
        summed = frozenset("bh") - spec.axes
        splits = _splits(p, summed)
        dtype = torch.float32 if summed else p.aux_dtypes[i]
        output = Output(f"g{i}", wanted[3 + i], (splits, *own, p.rows, p.cols), dtype)
        grads.update(_finished("tiles", {3 + i: output}, o, summed=summed))
    return grads


def _aux_wanted(wanted: dict[int, Expr], problem: Problem) -> list[tuple[int, Aux]]:
    return [(number - 3, problem.program.aux[number - 3]) for number in wanted if number >= 3]


def _loops_heads(o: Inputs) -> bool:
    """Whether key and value have the same groups of query heads, so that a CTA can sum over one."""
    return o.grouped == {"K", "V"} and shapes.statically_known_true(
        o.problem.key_heads == o.problem.value_heads
    )


def _splits(problem: Problem, summed: frozenset[str]) -> int:
    """Into how many shares "tiles" cuts its sum: enough to fill the device, with partial sums of at
    most 64 MiB. summed: The axes of the sum."""
    sizes = {"b": problem.batch, "h": problem.heads, "q_idx": problem.rows, "kv_idx": problem.cols}
    hints = {axis: shapes.size_hint(size) or 1 for axis, size in sizes.items()}
    members = math.prod(hints[axis] for axis in summed)
    own = math.prod(hints[axis] for axis in "bh" if axis not in summed)
    tiles = own * -(-hints["q_idx"] // 64) * -(-hints["kv_idx"] // 64)
    room = (64 << 20) // max(1, 4 * own * hints["q_idx"] * hints["kv_idx"])
    return max(1, min(members, 512 // tiles, room))


def _finished(kernel: str, outputs: dict[int, Output], o: Inputs, **plan: Any) -> dict[int, Any]:
    """Run a kernel, and turn its results into gradients of the right shapes."""
    if not outputs:
        return {}
    stored = run(kernel, list(outputs.values()), o, **plan)
    grads: dict[int, Any] = {}
    for (number, output), buffer in zip(outputs.items(), stored, strict=True):
        leaf = o.fakes.differentiable[number]
        grads[number] = buffer
        if number >= 3:
            formula = _aux_gradient(kernel, number - 3, o)
            extra = o.extents
            grads[number] = lowering.finish(formula, buffer, output.size, output.dtype, leaf, extra)
        elif not _same_shape(output.size, leaf.shape):
            formula = reduce_to if len(output.size) == 4 else _sum_groups
            grads[number] = lowering.finish(formula, buffer, output.size, output.dtype, leaf)
    return grads


def _same_shape(size: Sequence[Size], other: Sequence[Size]) -> bool:
    return all(shapes.statically_known_true(x == y) for x, y in zip(size, other, strict=True))


def _sum_groups(grad: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """Sum a gradient [L,H,D] over the query heads that share a key head: [L,Hk,D]."""
    return grad.unflatten(1, (operand.shape[1], -1)).sum(2).to(operand.dtype)


def _aux_gradient(kernel: str, number: int, o: Inputs) -> Any:
    """A formula from what `kernel` stores to the gradient of an aux operand.

    The kernel stores [B,H,·] or [L,H] along one side, or [shares,B,H,M,N]. The formula also takes
    offsets, total rows and longest of each jagged side.
    """
    spec, padded = o.program.aux[number], padded_program(o.program).aux[number]
    axis = {"rows": 3, "tiles": None}.get(kernel, 2)
    listed = {"rows": "q", "keys": "k", "five_matmul": "k"}.get(kernel, "")

    def formula(part: torch.Tensor, like: torch.Tensor, *sized: Any) -> torch.Tensor:
        sides = {s: Sequences(*sized[3 * i : 3 * i + 3]) for i, s in enumerate(o.offsets)}
        if listed in sides and listed in spec.access:
            return _per_token(part, spec, listed).to(like.dtype)
        placed = part.sum(0) if axis is None else part
        if listed in sides:
            placed = sides[listed].pad(part).transpose(1, 2)
        placed = placed if axis is None else placed.unsqueeze(axis)
        left = [d for d, name in enumerate(AXES) if name not in spec.axes]
        summed = placed.sum(left, keepdim=True) if left else placed
        padding = Padding(sides.get("q"), sides.get("k"))
        return padding.unpad_aux(aux_from_axes(summed, padded), spec).to(like.dtype)

    return formula


def _per_token(part: torch.Tensor, spec: Aux, letter: str) -> torch.Tensor:
    """From [L,H] to the gradient of an aux operand that is indexed by rows of a jagged side."""
    with_heads = "h" in spec.access
    return by_access(part if with_heads else part.sum(1), (letter, "h")[: 1 + with_heads], spec)
