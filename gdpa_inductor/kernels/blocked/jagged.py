"""Jagged GDPA on the CPU: the loop over blocks for one sequence after the other.

A sequence is a dense problem on views of its rows. So nothing is padded, and no row of another
sequence is read. The result of a sequence does not depend on its place in the batch. Offsets are
read here, on the CPU, once for each call.

Short sequences of similar length are padded and run as one problem. One by one they would be all
overhead: a sequence takes some 0.1 ms whatever its length. Lengths are rounded up to whole vectors.
So, wherever a sequence is in the batch, its scores are computed in the same lanes, and its matrices
have the same alignment. Its bits depend on both (MKL, torch 2.13).

Notation: as in `operands`; g is the number of sequences in a group, and 1 of a sequence alone. A
side is "q" or "k". Aux operands are on four axes: a dim for rows of the query side ("q") is at the
axis q_idx, and one for rows of the key side ("k") at kv_idx.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ...operands import Operands, score_shape
from ...program.expr import AXES, INDEX, Expr, call
from ...program.expr import aux as aux_leaf
from ...program.score_mod import JAGGED, Aux
from . import loop
from .loop import Results
from .operands import BlockOperands

_LANES, _SCORES, _MOST = 16, 64 * 64, 256
Spans = dict[str, tuple[slice, ...] | None]  # by side, the rows of each sequence; None if dense
_SIDES = {"query": "q", "key": "k", "value": "k", "out": "q"}


def standing(spec: Aux) -> Aux:
    """The access map with q_idx and kv_idx in place of "q" and "k", as `run` takes operands."""
    return replace(spec, access=tuple(JAGGED.get(entry, entry) for entry in spec.access))


def run(o: Operands[Tensor], results: Results, grad_out: Tensor | None, skip: bool) -> None:
    """Fill `results`, which hold zeros: those of aux operands on four axes. As `loop.run`."""
    pool: dict[str, Tensor] = {}
    for part in _parts(o):
        matrices = {name: part.memory(name, total) for name, total in results.matrices.items()}
        totals = [
            None if total is None else part.aux_memory(total, spec)
            for total, spec in zip(results.totals, o.program.aux, strict=False)
        ]
        rows = None if grad_out is None else part.matrix("out", grad_out)
        # So few scores as those of a group are one block, and no mask skips it.
        skips = skip and part.is_alone
        loop.run(part.operands(o, pool), Results(matrices, totals), rows, skips)
        for name, total in results.matrices.items():
            part.store(name, total, matrices[name])
        for whole, own, spec in zip(results.totals, totals, o.program.aux, strict=False):
            if whole is not None and own is not None:
                part.store_aux(whole, own, spec)


@dataclass(frozen=True)
class Rows:
    """The rows of a part on one side.

    members: The numbers of the sequences; a slice for one. length: Rows of each. index: [g, length]
    or, for one sequence, the slice of its rows; None if the side is dense. valid: [g, length],
    which of them exist.
    """

    members: Tensor | slice
    length: int
    index: Tensor | slice | None = None
    valid: Tensor | None = None

    def pad(self, values: Tensor) -> Tensor:
        """[L, …] to [g, length, …], a view for one sequence. A dense side selects from [B, …]."""
        if self.index is None:
            return values if values.shape[0] == 1 else values[self.members]
        if isinstance(self.index, slice):
            return values[self.index].unsqueeze(0)
        assert self.valid is not None
        padded = values[self.index.clamp(max=values.shape[0] - 1)]
        missing = ~self.valid.view(*self.valid.shape, *[1] * (values.dim() - 1))
        return padded.masked_fill(missing, 0)

    def put(self, target: Tensor, padded: Tensor) -> None:
        """The inverse of `pad`: write the existing rows to `target`."""
        if self.index is None:
            target[self.members] = padded
        elif isinstance(self.index, slice):
            target[self.index] = padded[0]
        else:
            target[self.index[self.valid]] = padded[self.valid]


class JaggedPart:
    """Some sequences as one dense problem: one alone on views, or a group on padded copies."""

    def __init__(
        self,
        members: list[int],
        numbers: Tensor,
        spans: Spans,
        lengths: dict[str, int],
        alone: bool,
    ) -> None:
        first = members[0]
        self.is_alone = alone
        self.numbers = numbers  # the members as a tensor
        chosen = slice(first, first + 1) if alone else self.numbers
        self._rows: dict[str, Rows] = {}
        for side, length in lengths.items():
            own = spans[side]
            if own is None:
                rows = Rows(chosen, length)
            elif alone:
                rows = Rows(chosen, length, own[first])
            else:
                bounds = torch.tensor([[own[b].start, own[b].stop] for b in members])
                index = bounds[:, :1] + torch.arange(length)
                rows = Rows(chosen, length, index, index < bounds[:, 1:])
            self._rows[side] = rows

    def operands(self, o: Operands[Tensor], pool: dict[str, Tensor]) -> BlockOperands:
        tensors = [self.aux(t, spec) for t, spec in zip(o.aux, o.program.aux, strict=True)]
        only: Expr | None = None
        for side, rows in self._rows.items():
            if rows.valid is not None:
                inside = call("lt", INDEX[JAGGED[side]], aux_leaf(len(tensors), "i"))
                only = inside if only is None else call("and", only, inside)
                tensors.append(rows.valid.sum(1).view(-1, 1, 1, 1))
        return BlockOperands.on_cpu(
            self.matrix("query", o.query),
            self.matrix("key", o.key),
            self.matrix("value", o.value),
            aux=tensors,
            scalars=o.scalars,
            program=o.program,
            only=only,
            lengths_vary=True,
            numbers=self.numbers,
            pool=pool,
        )

    def matrix(self, name: str, values: Tensor) -> Tensor:
        """The rows of the part, [g,H,length,D], of [L,H,D] or of [B|1,H,M,D]."""
        rows = self._rows[_SIDES[name]]
        return rows.pad(values) if rows.index is None else rows.pad(values).transpose(1, 2)

    def _is_in_place(self, name: str, total: Tensor) -> bool:
        """Whether a result is added to the total itself.

        Matrices of keys have to be contiguous, and the last bits of a product depend on the
        alignment of their memory. A total that all sequences share is both.
        """
        shared = self._rows[_SIDES[name]].index is None and total.shape[0] == 1
        return self.is_alone and (_SIDES[name] == "q" or shared)

    def memory(self, name: str, total: Tensor) -> Tensor:
        """The memory for a result: a view of the total, or memory of its own."""
        if self._is_in_place(name, total):
            return self.matrix(name, total)
        length = self._rows[_SIDES[name]].length
        size = (len(self.numbers), total.shape[1], length, total.shape[-1])
        return total.new_empty(size) if name == "out" else total.new_zeros(size)

    def store(self, name: str, total: Tensor, part: Tensor) -> None:
        if not self._is_in_place(name, total):
            rows = self._rows[_SIDES[name]]
            rows.put(total, part if rows.index is None else part.transpose(1, 2))

    def aux(self, placed: Tensor, spec: Aux) -> Tensor:
        """The part of an aux operand on four axes that the sequences read."""
        members = self._rows["q"].members
        part = placed[members] if "b" in spec.access else placed
        for side, rows in self._rows.items():
            axis = AXES.index(JAGGED[side])
            if side in spec.access:
                part = rows.pad(part[0].movedim(axis - 1, 0)).movedim(1, axis)
            elif JAGGED[side] in spec.access:
                part = _fitted(part, axis, rows.length)
        return part

    def aux_memory(self, total: Tensor, spec: Aux) -> Tensor:
        part = self.aux(total, spec)
        return part if self.is_alone else torch.zeros_like(part)

    def store_aux(self, total: Tensor, part: Tensor, spec: Aux) -> None:
        """Add the gradient of `aux` to that of the operand."""
        if self.is_alone:
            return
        for side, rows in self._rows.items():
            if JAGGED[side] in spec.access:
                axis = AXES.index(JAGGED[side])
                size = min(rows.length, total.shape[axis])
                total, part = total.narrow(axis, 0, size), part.narrow(axis, 0, size)
        for side, rows in self._rows.items():
            if side in spec.access:
                axis = AXES.index(JAGGED[side])
                return rows.put(total[0].movedim(axis - 1, 0), part.movedim(axis, 1))
        if "b" in spec.access:
            total[self.numbers] = part
        else:
            total.add_(part)


def _fitted(operand: Tensor, axis: int, size: int) -> Tensor:
    """The operand, cut or filled up with zeros to `size` along an axis."""
    present = min(size, operand.shape[axis])
    part = operand.narrow(axis, 0, present)
    if present == size:
        return part
    shape = list(part.shape)
    shape[axis] = size - present
    return torch.cat([part, part.new_zeros(shape)], axis)


def _parts(o: Operands[Tensor]) -> Iterator[JaggedPart]:
    """Groups of short sequences, then the others, one by one; not those without scores."""
    batch, _, rows, cols = score_shape(o)
    spans = {
        "q": _spans(o.cu_seqlens_q, o.max_seqlen_q),
        "k": _spans(o.cu_seqlens_k, o.max_seqlen_k),
    }
    lengths: dict[str, list[int]] = {}
    for side, dense in (("q", rows), ("k", cols)):
        own = spans[side]
        lengths[side] = [dense] * batch if own is None else [s.stop - s.start for s in own]
    alone = {b for b in range(batch) if lengths["q"][b] and lengths["k"][b]}
    for rounded, members in _groups(o, spans, lengths):
        alone.difference_update(members)
        sizes = dict(zip("qk", rounded, strict=True))
        yield JaggedPart(members, torch.tensor(members), spans, sizes, alone=False)
    numbers = torch.arange(batch)
    for b in sorted(alone):
        sizes = {side: lengths[side][b] for side in "qk"}
        yield JaggedPart([b], numbers[b : b + 1], spans, sizes, alone=True)


def _spans(offsets: Tensor | None, longest: int) -> tuple[slice, ...] | None:
    if offsets is None:
        return None
    return tuple(slice(a, a + min(b - a, longest)) for a, b in pairwise(offsets.tolist()))


def _groups(
    o: Operands[Tensor], spans: Spans, lengths: dict[str, list[int]]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """(lengths, members) of groups of at least two short sequences.

    There are none if a dense side is shared, or if its rows are not whole vectors.
    """
    for name, matrix in (("query", o.query), ("key", o.key), ("value", o.value)):
        dense = spans[_SIDES[name]] is None
        if dense and (matrix.shape[0] == 1 or matrix.shape[2] % _LANES):
            return
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for b, sizes in enumerate(zip(lengths["q"], lengths["k"], strict=True)):
        rounded = tuple(
            size if spans[side] is None else -(-size // _LANES) * _LANES
            for side, size in zip("qk", sizes, strict=True)
        )
        if 0 < math.prod(rounded) <= _SCORES:
            alike[rounded].append(b)
    for rounded, members in alike.items():
        parts = -(-len(members) // _MOST)
        for part in range(parts if len(members) > 1 else 0):
            yield rounded, members[part::parts]
