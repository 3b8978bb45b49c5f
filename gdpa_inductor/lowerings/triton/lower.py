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
from ...kernels.triton.template import DIAGONAL
from ...operands import Size, aux_from_axes, by_access
from ...program.expr import AXES, POSITIONS, Expr
from ...program.places import by_distance
from ...program.score_mod import Aux
from ...reference import reduce_to
from ...sequences import Padding, padded_program
from ..call import Call, in_order
from ..donation import buffer_like
from . import five_matmul, one_tile
from .inputs import Inputs, empty
from .launch import Rival, run
from .plan import Output
from .table_sums import ScoreShare, TermSums, padding_of

QUERY, KEY, VALUE, AUX = range(4)  # the numbers of gradients: that of aux operand i is AUX + i
# Terms of scores that are stored at a time for the gradient of a table, in bytes, as far as SHARES
# shares of the batch and the heads are enough. Each share is a few more kernels to launch.
STORED = 64 << 20
SHARES = 64
Terms = dict[int, Expr]  # the terms that wanted gradients sum, by their numbers
Gradients = dict[int, Any]
Kernel = Callable[[Terms, Inputs], Gradients]


def lower(call: Call, rival: Rival | None = None) -> Any:
    """O, with row sums [O, sums], or the wanted gradients of (query, key, value, *aux) in the
    shapes of their operands; contiguous. Inductor IR in and out. rival: as in `launch.run`, of a
    forward.
    """
    return _backward(call) if call.backward else _forward(Inputs(call), rival)


def _forward(o: Inputs, rival: Rival | None) -> Any:
    p = o.problem
    size, summed = _size(o, "q", p.heads, p.value_dim), o.program.summed
    outputs = [Output("p", o.program.weight, size, p.value_dtype)]
    if summed is not None:
        outputs.append(Output("r", summed, _size(o, "q", p.heads), torch.float32))
    if empty(p):
        results = [lowering.zeros(x.size, x.dtype, p.device) for x in outputs]
        return results if summed is not None else results[0]
    if summed is not None:
        return run("forward", outputs, o)
    rows, count = shapes.size_hint(p.rows), 1
    if rows is not None and rows <= splits.MOST_ROWS and not rival:
        count = one_tile.shares(p, p.value_dim)
    if count == 1:
        (out,) = run("forward", outputs, o, rival=rival)
        return out
    output = Output("p", o.program.weight, (count, *size), torch.float32)
    (parts,) = run("forward", [output], o, split=True)
    total = lambda parts, like: _added(parts).to(like.dtype)
    return lowering.finish(total, parts, output.size, output.dtype, o.fakes.value)


def _added(parts: torch.Tensor) -> torch.Tensor:
    """The sum of partial sums [shares, ...], in a fixed order."""
    return functools.reduce(torch.add, parts.unbind(0))


def _backward(call: Call) -> list[Any]:
    o, needs = Inputs(call), call.needs
    grads: Gradients = {}
    if not empty(o.problem):
        weight, slopes = o.program.weight, o.program.gradients
        terms = enumerate([slopes.score, slopes.score, weight, *slopes.aux])
        wanted = {number: term for number, term in terms if term is not None and needs[number]}
        for kernel in _kernels(wanted, o):
            grads.update(kernel(wanted, o))
    return [
        grads[i] if i in grads else lowering.zeros(tuple(leaf.shape), leaf.dtype, leaf.device)
        for i, leaf in enumerate(o.fakes.differentiable)
        if needs[i]
    ]


def _kernels(wanted: Terms, o: Inputs) -> tuple[Kernel, ...]:
    """The functions that compute the wanted gradients."""
    summed_rows = any("kv_idx" not in axes for _, axes in _wanted_aux(wanted, o))
    if {QUERY, KEY} <= wanted.keys():
        alone = not (o.grouped or o.shared - {"Q"})
        if VALUE in wanted and not summed_rows and alone and one_tile.fits(o.problem):
            return _one_tile, _tiles
        if not summed_rows and five_matmul.applies(_key_outputs(wanted, o)[0], o):
            return _five_matmul, _tiles
        if not in_order(o.options) and "Q" not in o.shared:
            return _keys_and_queries, _tiles
    return _rows, _keys, _tiles


def _size(o: Inputs, side: str, heads: Size, *width: Size) -> tuple[Size, ...]:
    """The size of a result along a side: [B,heads,M|N,·], or [L,heads,·] if that is jagged."""
    if side in o.offsets:
        return (o.total(side), heads, *width)
    return (o.problem.batch, heads, o.longest(side), *width)


def _rows(wanted: Terms, o: Inputs) -> Gradients:
    """dQ, and the gradients of operands that do not vary along the keys."""
    p = o.problem
    outputs: dict[int, Output] = {}
    if QUERY in wanted:
        dtype = torch.float32 if "Q" in o.shared else p.dtype
        size = _size(o, "q", p.heads, p.head_dim)
        outputs[QUERY] = Output("ds", wanted[QUERY], size, dtype, _strides(QUERY, size, o))
    for i, axes in _wanted_aux(wanted, o):
        if "kv_idx" not in axes:
            size = _size(o, "q", p.heads)
            outputs[AUX + i] = Output(f"g{i}", wanted[AUX + i], size, torch.float32)
    return _finished("rows", outputs, o)


def _keys(wanted: Terms, o: Inputs, added: Sequence[Any] = ()) -> Gradients:
    """dK, dV, and the gradients of aux operands that vary along the keys only.

    added: A buffer to which the kernel adds dQ, if it does.
    """
    outputs, loops_heads = _key_outputs(wanted, o)
    return _finished("keys", outputs, o, added=added, loops_heads=loops_heads)


def _key_outputs(wanted: Terms, o: Inputs) -> tuple[dict[int, Output], bool]:
    """(outputs of the kernel of dK and dV, whether a CTA sums over the query heads of a group)."""
    p = o.problem
    columns = [i for i, axes in _wanted_aux(wanted, o) if axes & POSITIONS == {"kv_idx"}]
    # A CTA can if key and value have the same groups.
    loops_heads = (
        o.grouped == {"K", "V"}
        and shapes.statically_known_true(p.key_heads == p.value_heads)
        and not columns
    )
    heads = p.key_heads if loops_heads else p.heads
    outputs: dict[int, Output] = {}
    sums = ((VALUE, "p", "V", p.value_dim), (KEY, "ds", "K", p.head_dim))
    for number, name, operand, width in sums:
        if number in wanted:
            partial = operand in o.shared or (operand in o.grouped and not loops_heads)
            dtype = torch.float32 if partial else p.dtype
            size = _size(o, "k", heads, width)
            outputs[number] = Output(name, wanted[number], size, dtype, _strides(number, size, o))
    for i in columns:
        size = _size(o, "k", heads)
        outputs[AUX + i] = Output(f"g{i}", wanted[AUX + i], size, torch.float32)
    return outputs, loops_heads


def _strides(number: int, size: tuple[Size, ...], o: Inputs) -> tuple[Size, ...] | None:
    """The strides of `laid_gradients`, if a kernel stores the final gradient; else None."""
    operand = o.fakes.differentiable[number]
    stores_final = len(size) == 4 and _same_shape(size, operand.shape)
    return shapes.dense_strides(operand) if stores_final else None


def _five_matmul(wanted: Terms, o: Inputs) -> Gradients:
    """The results of `_keys`, and dQ, summed in the order of the keys: 5 products instead of 7."""
    p = o.problem
    query = lowering.empty(_size(o, "q", p.heads, p.head_dim), p.dtype, p.device)
    outputs, _ = _key_outputs(wanted, o)
    added = [five_matmul.sums(o), query]
    order = five_matmul.order(o)
    return {**_finished("five_matmul", outputs, o, added=added, order=order), QUERY: query}


def _one_tile(wanted: Terms, o: Inputs) -> Gradients:
    """The results of `_keys`, and dQ, whose shares are added in a fixed order."""
    p, count = o.problem, one_tile.shares(o.problem)
    size = (count, p.batch, p.heads, p.rows, p.head_dim)
    dtype = torch.float32 if count > 1 or "Q" in o.shared else p.dtype  # it is summed later
    query = lowering.empty(size, dtype, p.device)
    outputs, _ = _key_outputs(wanted, o)
    if not any(axes >= POSITIONS for _, axes in _wanted_aux(wanted, o)):
        outputs[KEY] = replace(outputs[KEY], room=_key_room(outputs[KEY], o))
    grads = _finished("one_tile", outputs, o, added=[query])
    summed = lambda parts, like: reduce_to(_added(parts), like)
    return {**grads, QUERY: lowering.finish(summed, query, size, dtype, o.fakes.query)}


def _key_room(output: Output, o: Inputs) -> Any:
    """The memory of K, for dK, if nobody needs K afterwards; else None. A CTA reads K before."""
    key, node = o.fakes.key, o.matrices["K"]
    alike = output.dtype == key.dtype and _same_shape(output.size, key.shape)
    strides = output.strides or ()
    lies = len(strides) == key.dim() and _same_shape(strides, key.stride())
    donates = "K" in o.spent and lowering.is_input(node)
    return buffer_like(node) if donates and alike and lies else None


def _keys_and_queries(wanted: Terms, o: Inputs) -> Gradients:
    """The results of `_keys` and `_rows`, with dQ by atomic additions: 5 products instead of 7."""
    p = o.problem
    size = _size(o, "q", p.heads, p.head_dim)
    sums = lowering.zeroed(size, torch.float32, p.device)
    others = {number: term for number, term in wanted.items() if number != QUERY}
    grads = {**_rows(others, o), **_keys(wanted, o, [sums])}
    rounded = lambda part, like: part.to(like.dtype)
    grads[QUERY] = lowering.finish(rounded, sums, size, torch.float32, o.fakes.query)
    return grads


def _tiles(wanted: Terms, o: Inputs) -> Gradients:
    """The gradients of aux operands that vary along queries and keys, with a kernel for each."""
    p = o.problem
    grads: Gradients = {}
    for i, axes in _wanted_aux(wanted, o):
        if not axes >= POSITIONS:
            continue
        own = [p.sizes[axis] if axis in axes else 1 for axis in "bh"]
        summed, is_table = frozenset("bh") - axes, o.program.aux[i].is_table
        if is_table and not by_distance(o.program, i):
            grads[AUX + i] = _by_shares(i, wanted[AUX + i], o)
            continue
        dtype = torch.float32 if summed or is_table else p.aux_dtypes[i]
        sides = (p.rows + p.cols - 1, DIAGONAL) if is_table else (p.rows, p.cols)
        # A CTA has a whole diagonal, and most are shorter than the longest.
        enough = 2048 if is_table else 512
        size = (_splits(o, summed, (*own, *sides), enough), *own, *sides)
        output = Output(f"g{i}", wanted[AUX + i], size, dtype)
        fields = {"summed": summed, "diagonal": is_table}
        grads.update(_finished("tiles", {AUX + i: output}, o, **fields))
    return grads


def _by_shares(number: int, term: Expr, o: Inputs) -> Any:
    """The gradient of a table whose place is read for each score, from one share after another."""
    p, axes, sums = o.problem, o.program.axes(number), TermSums(number, o)
    along_batch, along_heads = _shares(sums)
    count = along_batch * along_heads
    share = ScoreShare.start(o, along_batch, along_heads) if count > 1 else None
    batch, heads = (share.batch, share.heads) if share else (p.batch, p.heads)
    stored = [batch if "b" in axes else 1, heads if "h" in axes else 1, p.rows, p.cols]
    summed = frozenset("bh") - axes
    size = (_splits(o, summed, stored), *stored)
    # The terms of an element of W lie together.
    order = sorted(range(5), key=lambda d: (d > 0, d > 0 and AXES[d - 1] not in sums.outer))
    strides = shapes.contiguous_strides(size, order)
    output = Output(f"g{number}", term, size, torch.float32, strides)
    placed = functools.partial(_placed, "tiles", axes)
    totals: list[Any] = []
    for part in range(count):
        begin = share.first if share else None
        (terms,) = run("tiles", [output], o, begin=begin, summed=summed)
        own = TermSums(number, o, share=share)
        added = own.sums(terms, output, placed)
        if not totals or (part < along_heads and "h" in sums.outer):
            totals.append(added)
        else:
            place = part % len(totals)
            totals[place] = lowering.lowered(torch.ops.aten.add.Tensor, totals[place], added)
            lowering.realized(totals[place], p.device)  # so that the shares before are added now
        if share and part < count - 1:
            share = share.following(o, added, own.shape)
    whole = lowering.lowered(torch.ops.aten.cat.default, totals) if len(totals) > 1 else totals[0]
    return sums.gradient(whole)


def _shares(sums: TermSums) -> tuple[int, int]:
    """Into how many shares the batch and the heads are cut, to store STORED bytes at a time."""
    p, spec, axes = sums.o.problem, sums.spec, sums.o.program.axes(sums.number)
    cut = {"b": "b" in axes and "b" not in spec.axes}
    cut["h"] = "h" in axes and ("h" not in spec.axes or sums.outer == ["h"])
    batch, heads = (
        size if is_cut and isinstance(size := p.sizes[axis], int) else 1
        for axis, is_cut in cut.items()
    )
    stored = 4 * math.prod(shapes.size_hint(p.sizes[axis]) or 1 for axis in axes)
    pairs = [(n, 1) for n in range(1, batch + 1) if batch % n == 0]
    pairs += [(batch, n) for n in range(2, heads + 1) if heads % n == 0]
    pairs = [(b, h) for b, h in pairs if b * h <= SHARES]
    return next(((b, h) for b, h in pairs if stored <= STORED * b * h), pairs[-1])


def _wanted_aux(wanted: Terms, o: Inputs) -> list[tuple[int, frozenset[str]]]:
    """The aux operands with a wanted gradient, and the axes along which what is read varies."""
    return [(n - AUX, o.program.axes(n - AUX)) for n in wanted if n >= AUX]


def _splits(o: Inputs, summed: frozenset[str], stored: Sequence[Size], enough: int = 512) -> int:
    """Into how many shares "tiles" cuts its sum over the axes `summed`.

    stored: The sizes of a sum. enough: CTAs that fill the device.
    """
    members = math.prod(shapes.size_hint(o.problem.sizes[axis]) or 1 for axis in summed)
    *own, height, width = (shapes.size_hint(size) or 1 for size in stored)
    tiles = math.prod(own) * -(-height // 64) * -(-width // 64)
    # Partial sums are at most 64 MiB.
    room = (64 << 20) // max(1, 4 * math.prod(own) * height * width)
    return max(1, min(members, enough // tiles, room))


def _finished(kernel: str, outputs: dict[int, Output], o: Inputs, **fields: Any) -> Gradients:
    """Run a kernel, and turn its results into gradients of the right shapes."""
    if not outputs:
        return {}
    stored = run(kernel, list(outputs.values()), o, **fields)
    grads: Gradients = {}
    for (number, output), buffer in zip(outputs.items(), stored, strict=True):
        leaf = o.fakes.differentiable[number]
        grads[number] = buffer
        if number >= AUX and o.program.aux[number - AUX].is_table:
            diagonal, axes = bool(fields.get("diagonal")), o.program.axes(number - AUX)
            axes -= {"kv_idx"} if diagonal else set()
            placed = functools.partial(_placed, kernel, axes)
            sums = TermSums(number - AUX, o, diagonal)
            grads[number] = sums.gradient(sums.sums(buffer, output, placed))
        elif number >= AUX:
            formula = _aux_gradient(kernel, number - AUX, o)
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

    The formula also takes offsets, total rows and longest of each jagged side.
    """
    spec, padded = o.program.aux[number], padded_program(o.program).aux[number]

    def formula(part: torch.Tensor, like: torch.Tensor, *sized: Any) -> torch.Tensor:
        padding = padding_of(o, sized)
        listed = _LISTED.get(kernel, "")
        if listed in padding.sides and listed in spec.access:
            return _per_token(part, spec, listed).to(like.dtype)
        summed = _placed(kernel, spec.axes, part, padding)
        return padding.unpad_aux(aux_from_axes(summed, padded), spec).to(like.dtype)

    return formula


# The side whose rows a kernel stores, where it is jagged.
_LISTED = {"rows": "q", "keys": "k", "five_matmul": "k"}


def _placed(
    kernel: str, axes: frozenset[str], part: torch.Tensor, padding: Padding
) -> torch.Tensor:
    """What a kernel stores of a gradient, summed to [B|1,H|1,M|1,N|1].

    It is [B,H,·] or [L,H] along one side, [shares,B,H,M,N], or [shares,B,H,M+N-1,DIAGONAL].
    """
    axis = {"rows": 3, "tiles": None}.get(kernel, 2)
    listed = _LISTED.get(kernel, "")
    placed = part
    if axis is None:
        placed = part.squeeze(0) if part.shape[0] == 1 else part.sum(0)
    if listed in padding.sides:
        placed = padding.sides[listed].pad(part).transpose(1, 2)
    placed = placed if axis is None else placed.unsqueeze(axis)
    left = [d for d, name in enumerate(AXES) if name not in axes]
    return placed.sum(left, keepdim=True) if left else placed


def _per_token(part: torch.Tensor, spec: Aux, letter: str) -> torch.Tensor:
    """From [L,H] to the gradient of an aux operand that is indexed by rows of a jagged side."""
    with_heads = "h" in spec.access
    return by_access(part if with_heads else part.sum(1), (letter, "h")[: 1 + with_heads], spec)
