"""Short sequences on the CPU: sequences of similar length are padded and run as one problem.

One by one they would be all overhead: a sequence takes some 0.1 ms whatever its length. Lengths are
rounded up to whole vectors. So, wherever a sequence is in the batch, its scores are computed in the
same lanes, and its matrices have the same alignment. Its bits depend on both (MKL, torch 2.13).

Notation: as in `jagged`; g is the number of sequences in a group.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...operands import Operands as Call
from ...program.expr import AXES, INDEX, Expr, aux, call
from ...program.score_mod import JAGGED, Aux
from . import dense as cpu

_LANES, _SCORES, _MOST = 16, 64 * 64, 256


@dataclass(frozen=True)
class Rows:
    """The rows of a group on one side. index, valid: [g, length]. index is None if dense."""

    numbers: Tensor
    length: int
    index: Tensor | None = None
    valid: Tensor | None = None

    @staticmethod
    def of(spans: list[slice], numbers: Tensor, length: int) -> Rows:
        starts, stops = torch.tensor([[s.start, s.stop] for s in spans]).unsqueeze(2).unbind(1)
        index = starts + torch.arange(length)
        return Rows(numbers, length, index, index < stops)

    def pad(self, values: Tensor) -> Tensor:
        """Pad values [L, …] to [g, length, …]. On a dense side select [g, …] from [B, …]."""
        if self.index is None or self.valid is None:
            return values[self.numbers]
        found = values[self.index.clamp(max=values.shape[0] - 1)]
        missing = ~self.valid.view(*self.valid.shape, *[1] * (values.dim() - 1))
        return found.masked_fill(missing, 0)

    def put(self, target: Tensor, padded: Tensor) -> None:
        """The inverse of `pad`: write the existing rows to `target`."""
        if self.index is None or self.valid is None:
            target[self.numbers] = padded
        else:
            target[self.index[self.valid]] = padded[self.valid]

    def heads(self, values: Tensor) -> Tensor:
        """Query, key or value of the group, [g,H,length,D]."""
        return self.pad(values) if self.index is None else self.pad(values).transpose(1, 2)

    def put_heads(self, target: Tensor, padded: Tensor) -> None:
        self.put(target, padded if self.index is None else padded.transpose(1, 2))


class Group:
    """A group of sequences as one dense problem."""

    def __init__(self, o: Call[Tensor], numbers: Tensor, query: Rows, key: Rows) -> None:
        self.o, self.numbers, self.query, self.key = o, numbers, query, key
        # The entries that count rows, and places in a sequence; their axis; the rows.
        self.sides = [
            (letter, place, AXES.index(place), rows)
            for (letter, place), rows in zip(JAGGED.items(), (query, key), strict=True)
        ]

    def operands(self, dtype: torch.dtype, scratch: cpu.Scratch) -> cpu.BlockOperands:
        o = self.o
        given = [self.pad_aux(t, spec) for t, spec in zip(o.aux, o.program.aux, strict=True)]
        only: Expr | None = None
        for _, place, _, rows in self.sides:
            if rows.valid is not None:
                inside = call("lt", INDEX[place], aux(len(given), "i"))
                only = inside if only is None else call("and", only, inside)
                given.append(rows.valid.sum(1).view(-1, 1, 1, 1))
        return cpu.BlockOperands(
            self.query.heads(o.query),
            self.key.heads(o.key),
            self.key.heads(o.value),
            given,
            o.scalars,
            dtype,
            numbers=self.numbers,
            only=only,
            scratch=scratch,
        )

    def pad_aux(self, placed: Tensor, spec: Aux) -> Tensor:
        """The part of an aux operand on four axes that the group reads."""
        found = placed[self.numbers] if "b" in spec.access else placed
        for letter, place, axis, rows in self.sides:
            if letter in spec.access:
                found = rows.pad(found[0].movedim(axis - 1, 0)).movedim(1, axis)
            elif place in spec.access:
                found = _fitted(found, axis, rows.length)
        return found

    def put_aux(self, target: Tensor, grad: Tensor, spec: Aux) -> None:
        """Add the gradient of `pad_aux` to that of the operand."""
        for _, place, axis, rows in self.sides:
            if place in spec.access:
                size = min(rows.length, target.shape[axis])
                target, grad = target.narrow(axis, 0, size), grad.narrow(axis, 0, size)
        for letter, _, axis, rows in self.sides:
            if letter in spec.access:
                return rows.put(target[0].movedim(axis - 1, 0), grad.movedim(axis, 1))
        if "b" in spec.access:
            target[self.numbers] = grad
        else:
            target.add_(grad)


def _fitted(operand: Tensor, axis: int, size: int) -> Tensor:
    """The operand, cut or filled up with zeros to `size` along an axis."""
    there = min(size, operand.shape[axis])
    part = operand.narrow(axis, 0, there)
    if there == size:
        return part
    shape = [size - there if d == axis else n for d, n in enumerate(part.shape)]
    return torch.cat([part, part.new_zeros(shape)], axis)


def groups(
    o: Call[Tensor], spans: tuple[tuple[slice, ...] | None, ...], lengths: list[tuple[int, int]]
) -> Iterator[Group]:
    """Groups of at least two short sequences.

    There are none if a dense side is shared, or if its rows are not whole vectors.

    Args:
        spans: The rows of each sequence on the query side and on the key side; None if dense.
        lengths: (queries, keys) of each sequence.
    """
    matrices = zip((spans[0], spans[1], spans[1]), (o.query, o.key, o.value), strict=True)
    if any(own is None and (t.shape[0] == 1 or t.shape[2] % _LANES) for own, t in matrices):
        return
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for b, sizes in enumerate(lengths):
        rounded = tuple(
            size if own is None else -(-size // _LANES) * _LANES
            for own, size in zip(spans, sizes, strict=True)
        )
        if 0 < math.prod(rounded) <= _SCORES:
            alike[rounded].append(b)
    for rounded, members in alike.items():
        parts = -(-len(members) // _MOST)
        for part in range(parts if len(members) > 1 else 0):
            taken = members[part::parts]
            numbers = torch.tensor(taken)
            sides = [
                Rows(numbers, size)
                if own is None
                else Rows.of([own[b] for b in taken], numbers, size)
                for own, size in zip(spans, rounded, strict=True)
            ]
            yield Group(o, numbers, *sides)


def forward(group: Group, operands: cpu.BlockOperands, out: Tensor) -> None:
    """Fill the rows of the group in `out`. So few scores are one block, and no mask skips it."""
    batch, heads, rows, _ = operands.sizes
    padded = out.new_empty(batch, heads, rows, out.shape[-1])
    cpu.forward(operands, group.o.program, padded, skip=False)
    group.query.put_heads(out, padded)


def backward(group: Group, operands: cpu.BlockOperands, grad_out: Tensor, grads: cpu.Grads) -> None:
    """Add the group's part to `grads`."""
    o, dtype = group.o, operands.dtype
    matrices = (
        (group.query, grads.query, operands.query),
        (group.key, grads.key, operands.key),
        (group.key, grads.value, operands.value),
    )
    found = [
        None if total is None else torch.zeros(padded.shape, dtype=dtype)
        for _, total, padded in matrices
    ]
    own = tuple(
        None if total is None else torch.zeros_like(group.pad_aux(total, spec))
        for total, spec in zip(grads.aux, o.program.aux, strict=True)
    )
    padded_grads = cpu.Grads(found[0], found[1], found[2], own)
    rows = group.query.heads(grad_out)
    cpu.BackwardPass(operands, o.program, rows, padded_grads, skip=False).run()
    for (side, total, _), part in zip(matrices, found, strict=True):
        if total is not None and part is not None:
            side.put_heads(total, part)
    for total, part, spec in zip(grads.aux, own, o.program.aux, strict=True):
        if total is not None and part is not None:
            group.put_aux(total, part, spec)
