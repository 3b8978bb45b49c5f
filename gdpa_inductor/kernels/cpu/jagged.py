"""Jagged GDPA on the CPU: the blocked kernel of `dense`, one sequence after the other.

A sequence is a dense problem on views of its rows. So nothing is padded, and no row of another
sequence is read. The result of a sequence does not depend on its place in the batch. Short
sequences run together (`short`). Offsets are read here, on the CPU, once for each call.

Notation: as in `dense`. `o` is the call, with aux operands on four axes. A dim for rows of the
query side ("q") is at the axis q_idx, and one for rows of the key side ("k") at kv_idx.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...operands import Operands as Call
from ...operands import score_shape
from ...program.score_mod import JAGGED, Aux
from . import dense as cpu
from . import short

_WHOLE = slice(None)


def standing(spec: Aux) -> Aux:
    """The access map with q_idx and kv_idx in place of "q" and "k", as `Jagged` takes operands."""
    return replace(spec, access=tuple(JAGGED.get(entry, entry) for entry in spec.access))


@dataclass(frozen=True)
class Side:
    """The rows of each sequence on one side. spans: None if the side is dense."""

    spans: tuple[slice, ...] | None

    @staticmethod
    def of(offsets: Tensor | None, longest: int) -> Side:
        if offsets is None:
            return Side(None)
        cu = offsets.tolist()
        return Side(tuple(slice(a, a + min(b - a, longest)) for a, b in pairwise(cu)))

    def cut(self, operand: Tensor, b: int) -> Tensor:
        """The rows of sequence b, [1,H,n,D], of [L,H,D] or of [B|1,H,M,D]. It is a view."""
        if self.spans is None:
            return operand if operand.shape[0] == 1 else operand[b : b + 1]
        return operand[self.spans[b]].transpose(0, 1).unsqueeze(0)

    def length(self, dense: int, b: int) -> int:
        return dense if self.spans is None else self.spans[b].stop - self.spans[b].start

    def span(self, letter: str, access: Sequence[str], dense: int, b: int) -> slice:
        """The slice of an aux operand along the axis of this side. letter: "q" or "k"."""
        if self.spans is not None and letter in access:
            return self.spans[b]
        present = JAGGED[letter] in access
        return slice(0, self.length(dense, b)) if present else _WHOLE


class One(NamedTuple):
    """A sequence with queries and keys: its number, and its operands as a dense problem."""

    b: int
    operands: cpu.BlockOperands


class Jagged:
    """A jagged call. Its sequences run in two steps: first `grouped`, then `alone`."""

    def __init__(self, o: Call[Tensor], dtype: torch.dtype) -> None:
        self.o, self.dtype = o, dtype
        self.batch, _, self.rows, self.cols = score_shape(o)
        self.query = Side.of(o.cu_seqlens_q, o.max_seqlen_q)
        self.key = Side.of(o.cu_seqlens_k, o.max_seqlen_k)
        self._scratch = cpu.Scratch(dtype)
        self._numbers = torch.arange(self.batch)
        self.lengths = [
            (self.query.length(self.rows, b), self.key.length(self.cols, b))
            for b in range(self.batch)
        ]
        self._alone = {b for b, lengths in enumerate(self.lengths) if all(lengths)}

    def grouped(self) -> Iterator[tuple[short.Group, cpu.BlockOperands]]:
        """Groups of short sequences, each with its operands."""
        for group in short.groups(self.o, (self.query.spans, self.key.spans), self.lengths):
            self._alone.difference_update(group.numbers.tolist())
            yield group, group.operands(self.dtype, self._scratch)

    def alone(self) -> Iterator[One]:
        """The other sequences, one by one."""
        o = self.o
        for b in sorted(self._alone):
            aux = [self.cut_aux(t, spec, b) for t, spec in zip(o.aux, o.program.aux, strict=True)]
            yield One(
                b,
                cpu.BlockOperands(
                    self.query.cut(o.query, b),
                    self.key.cut(o.key, b),
                    self.key.cut(o.value, b),
                    aux,
                    o.scalars,
                    self.dtype,
                    numbers=self._numbers[b : b + 1],
                    scratch=self._scratch,
                ),
            )

    def cut_aux(self, placed: Tensor, spec: Aux, b: int) -> Tensor:
        """The part of an aux operand on four axes that sequence b reads. It is a view."""
        batch = slice(b, b + 1) if "b" in spec.access else _WHOLE
        rows = self.query.span("q", spec.access, self.rows, b)
        return placed[batch, :, rows, self.key.span("k", spec.access, self.cols, b)]


def forward(jagged: Jagged, out: Tensor, skip: bool = True) -> None:
    """Fill `out`, which holds zeros."""
    for group, together in jagged.grouped():
        short.forward(group, together, out)
    for b, operands in jagged.alone():
        cpu.forward(operands, jagged.o.program, jagged.query.cut(out, b), skip)


def backward(jagged: Jagged, grad_out: Tensor, grads: cpu.Grads, skip: bool = True) -> None:
    """Add gradients to `grads`: zeros with the operands' shapes, for aux operands on four axes."""
    program = jagged.o.program
    for group, together in jagged.grouped():
        short.backward(group, together, grad_out, grads)
    for b, operands in jagged.alone():
        own = cpu.Grads(
            None if grads.query is None else jagged.query.cut(grads.query, b),
            _own(grads.key, jagged.key, b),
            _own(grads.value, jagged.key, b),
            tuple(
                None if total is None else jagged.cut_aux(total, spec, b)
                for total, spec in zip(grads.aux, program.aux, strict=True)
            ),
        )
        cpu.BackwardPass(operands, program, jagged.query.cut(grad_out, b), own, skip).run()
        for total, part in ((grads.key, own.key), (grads.value, own.value)):
            if total is not None and part is not None and part is not total:
                jagged.key.cut(total, b).copy_(part)


def _own(total: Tensor | None, side: Side, b: int) -> Tensor | None:
    """The memory to which products of a sequence are added.

    It is `total` itself if the batch shares it, and else a buffer. Matrices have to be contiguous,
    and the last bits of a product depend on the alignment of this memory.
    """
    if total is None:
        return None
    place = side.cut(total, b)
    return place if place is total else torch.zeros(place.shape, dtype=place.dtype)
