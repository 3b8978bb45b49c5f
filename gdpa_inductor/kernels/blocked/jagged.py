"""Jagged GDPA on the CPU: the loop over blocks for one sequence after the other.

A sequence is a dense problem on views of its rows. So nothing is padded, and no row of another
sequence is read. The result of a sequence does not depend on its place in the batch. Offsets are
read here, on the CPU, once for each call.

Short sequences of similar length are padded and run as one problem. One by one they would be all
overhead: a sequence takes some 0.1 ms whatever its length. Lengths are rounded up to whole vectors.
So, wherever a sequence is in the batch, its scores are computed in the same lanes, and its matrices
have the same alignment. Its bits depend on both (MKL, torch 2.13).

Sequences whose keys lie in pages are computed alone too, on a copy of the keys of one at a time.

Notation: as in `operands`; g is the number of sequences in a group, and 1 of a sequence alone. A
side is "q" or "k". Aux operands are on four axes: a dim for rows of the query side ("q") is at the
axis q_idx, and one for rows of the key side ("k") at kv_idx.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...operands import Operands, row_sums_spec, rows_of_pages, score_shape
from ...program.expr import AXES, INDEX, Expr, call
from ...program.expr import aux as aux_leaf
from ...program.score_mod import JAGGED, Aux
from . import loop
from .loop import Results
from .operands import BlockOperands

_LANES, _SCORES, _MOST = 16, 64 * 64, 256
_AXES = {side: AXES.index(place) for side, place in JAGGED.items()}
_SIDES = {"query": "q", "key": "k", "value": "k", "out": "q"}


def standing(specs: Sequence[Aux]) -> list[Aux]:
    """The access maps with q_idx and kv_idx in place of "q" and "k", as `run` takes operands."""
    return [replace(x, access=tuple(JAGGED.get(entry, entry) for entry in x.access)) for x in specs]


def run(o: Operands[Tensor], results: Results, grad_out: Tensor | None, skip: bool) -> None:
    """Fill `results`, which hold zeros: those of aux operands on four axes. As `loop.run`."""
    pool: dict[str, Tensor] = {}
    jagged = o.sides

    def place(name: str, values: Tensor) -> Tensor:
        return values.transpose(0, 1).unsqueeze(0) if _SIDES[name] in jagged else values

    inputs = {"query": place("query", o.query), "key": place("key", o.key)}
    inputs["value"] = place("value", o.value)
    wholes = {name: place(name, total) for name, total in results.matrices.items()}
    cotangent = None if grad_out is None else place("out", grad_out)
    specs = [row_sums_spec(o)] if grad_out is None else o.program.aux
    for part in _parts(o):
        matrices = {name: part.memory(name, whole) for name, whole in wholes.items()}
        totals = [
            None if total is None else part.aux_memory(total, spec)
            for total, spec in zip(results.totals, specs, strict=False)
        ]
        rows = None if cotangent is None else part.matrix("out", cotangent)
        # So few scores as those of a group are one block, and no mask skips it.
        skips = skip and part.is_alone
        loop.run(part.operands(o, inputs, pool), Results(matrices, totals), rows, skips)
        for name, whole in wholes.items():
            part.store(name, whole, matrices[name])
        if not part.is_alone:
            for total, own, spec in zip(results.totals, totals, specs, strict=False):
                if total is not None and own is not None:
                    part.store_aux(total, own, spec)


class Rows(NamedTuple):
    """The rows of a part on one side."""

    members: Tensor | slice  # the numbers of the sequences; a slice for one
    length: int  # rows of each
    # [g, length]; of one sequence, where its first row is; None if the side is dense
    places: Tensor | int | None = None
    valid: Tensor | None = None  # [g, length], which of them exist
    pages: Tensor | None = None  # [1, pages] that hold the rows

    def pad(self, values: Tensor, axis: int = 2) -> Tensor:
        """The rows [g, …, length, …] of [1, …, L, …], L at `axis`; dense ones are of [B|1, …]."""
        if self.pages is not None:
            return rows_of_pages(values, self.pages)
        if self.places is None:
            return values if values.shape[0] == 1 else values[self.members]
        if isinstance(self.places, int):
            return values.narrow(axis, self.places, self.length)
        assert self.valid is not None
        rows = values[0].movedim(axis - 1, 0)
        padded = rows[self.places.clamp(max=rows.shape[0] - 1)]
        missing = ~self.valid.view(*self.valid.shape, *[1] * (rows.dim() - 1))
        return padded.masked_fill(missing, 0).movedim(1, axis)

    def put(self, target: Tensor, padded: Tensor, axis: int = 2) -> None:
        """The inverse of `pad`: write the existing rows to `target`."""
        if self.places is None:
            target[self.members] = padded
        elif isinstance(self.places, int):
            target.narrow(axis, self.places, self.length).copy_(padded)
        else:
            rows = target[0].movedim(axis - 1, 0)
            rows[self.places[self.valid]] = padded.movedim(axis, 1)[self.valid]


class JaggedPart(NamedTuple):
    """Some sequences as one dense problem: one alone on views, or a group on padded copies.

    Matrices of a jagged side are [1,H,L,D] here.
    """

    numbers: Tensor  # of the sequences, [g]
    rows: dict[str, Rows]  # by side
    is_alone: bool

    def operands(
        self, o: Operands[Tensor], inputs: Mapping[str, Tensor], pool: dict[str, Tensor]
    ) -> BlockOperands:
        tensors = [self.aux(t, spec) for t, spec in zip(o.aux, o.program.aux, strict=True)]
        only: Expr | None = None
        for side, rows in self.rows.items():
            if rows.valid is not None:
                inside = call("lt", INDEX[JAGGED[side]], aux_leaf(len(tensors), "i"))
                only = inside if only is None else call("and", only, inside)
                tensors.append(rows.valid.sum(1).view(-1, 1, 1, 1))
        return BlockOperands.on_cpu(
            *[self.matrix(name, values) for name, values in inputs.items()],
            aux=tensors,
            scalars=o.scalars,
            program=o.program,
            only=only,
            lengths_vary=True,
            numbers=self.numbers,
            pool=pool,
        )

    def matrix(self, name: str, values: Tensor) -> Tensor:
        """The rows of the part, [g,H,length,D]."""
        return self.rows[_SIDES[name]].pad(values)

    def _is_in_place(self, name: str, total: Tensor) -> bool:
        """Whether a result is added to the total itself."""
        # Matrices of keys have to be contiguous, and the last bits of a product depend on the
        # alignment of their memory. A total that all sequences share is both.
        side = _SIDES[name]
        shared = self.rows[side].places is None and total.shape[0] == 1
        return self.is_alone and (side == "q" or shared)

    def memory(self, name: str, total: Tensor) -> Tensor:
        """The memory for a result: a view of the total, or memory of its own."""
        if self._is_in_place(name, total):
            return self.matrix(name, total)
        length = self.rows[_SIDES[name]].length
        size = (self.numbers.numel(), total.shape[1], length, total.shape[-1])
        return total.new_empty(size) if name == "out" else total.new_zeros(size)

    def store(self, name: str, total: Tensor, part: Tensor) -> None:
        if not self._is_in_place(name, total):
            self.rows[_SIDES[name]].put(total, part)

    def aux(self, placed: Tensor, spec: Aux) -> Tensor:
        """The part of an aux operand on four axes that the sequences read."""
        part = placed[self.rows["q"].members] if "b" in spec.access else placed
        for side, rows in self.rows.items():
            if side in spec.access:
                part = rows.pad(part, _AXES[side])
            elif JAGGED[side] in spec.access:
                part = _fitted(part, _AXES[side], rows.length)
        return part

    def aux_memory(self, total: Tensor, spec: Aux) -> Tensor:
        part = self.aux(total, spec)
        return part if self.is_alone else torch.zeros_like(part)

    def store_aux(self, total: Tensor, part: Tensor, spec: Aux) -> None:
        """Add the gradient of `aux` of a group to that of the operand."""
        for side, rows in self.rows.items():
            if JAGGED[side] in spec.access:
                size = min(rows.length, total.shape[_AXES[side]])
                total, part = (t.narrow(_AXES[side], 0, size) for t in (total, part))
        for side, rows in self.rows.items():
            if side in spec.access:
                return rows.put(total, part, _AXES[side])
        if "b" in spec.access:
            total[self.numbers] = part
        else:
            total.add_(part)


def _fitted(operand: Tensor, axis: int, size: int) -> Tensor:
    part = operand.narrow(axis, 0, min(size, operand.shape[axis]))
    if part.shape[axis] == size:
        return part
    shape = list(part.shape)
    shape[axis] = size - part.shape[axis]
    return torch.cat([part, part.new_zeros(shape)], axis)


def _parts(o: Operands[Tensor]) -> Iterator[JaggedPart]:
    """Groups of short sequences, then the others, one by one; not those without scores."""
    batch, _, rows, cols = score_shape(o)
    starts: dict[str, list[int] | None] = {"q": None, "k": None}
    lengths = {"q": [rows] * batch, "k": [cols] * batch}
    for side, own in o.sides.items():
        offsets = starts[side] = own.cu_seqlens.tolist()
        lengths[side] = [min(b - a, own.longest) for a, b in pairwise(offsets)]
    alone = {b for b in range(batch) if lengths["q"][b] and lengths["k"][b]}
    for rounded, members in _groups(o, starts, lengths):
        alone.difference_update(members)
        numbers = torch.tensor(members)
        sides = {}
        for side, length in zip("qk", rounded, strict=True):
            first, steps = starts[side], torch.arange(length)
            sides[side] = Rows(numbers, length)
            if first is not None:
                places = torch.tensor([first[b] for b in members]).view(-1, 1) + steps
                valid = steps < torch.tensor([lengths[side][b] for b in members]).view(-1, 1)
                sides[side] = Rows(numbers, length, places, valid)
        yield JaggedPart(numbers, sides, is_alone=False)
    each = torch.arange(batch).split(1)
    for b in sorted(alone):
        sides = {}
        for side, first in starts.items():
            place = None if first is None else first[b]
            sides[side] = Rows(slice(b, b + 1), lengths[side][b], place)
        if o.page_table is not None:
            pages = o.page_table[b % o.page_table.shape[0]].unsqueeze(0)
            sides["k"] = sides["k"]._replace(pages=pages)
        yield JaggedPart(each[b], sides, is_alone=True)


def _groups(
    o: Operands[Tensor], starts: dict[str, list[int] | None], lengths: dict[str, list[int]]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """(lengths, members) of groups of at least two short sequences."""
    # There are none if keys lie in pages, if a dense side is shared, or if its rows are not whole
    # vectors.
    if o.page_table is not None:
        return
    for side, matrix in (("q", o.query), ("k", o.key), ("k", o.value)):
        if starts[side] is None and (matrix.shape[0] == 1 or matrix.shape[2] % _LANES):
            return
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for b, sizes in enumerate(zip(lengths["q"], lengths["k"], strict=True)):
        rounded = tuple(
            size if starts[side] is None else -(-size // _LANES) * _LANES
            for side, size in zip("qk", sizes, strict=True)
        )
        if 0 < math.prod(rounded) <= _SCORES:
            alike[rounded].append(b)
    for rounded, members in alike.items():
        parts = -(-len(members) // _MOST)
        for part in range(parts if len(members) > 1 else 0):
            yield rounded, members[part::parts]
