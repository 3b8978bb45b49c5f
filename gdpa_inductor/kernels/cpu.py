"""GDPA on the CPU in blocks of scores: beyond the results it takes a few MiB, whatever N and M are.

    forward    S = Q Kᵀ    P = program(S)                                 O += P V
    backward   S = Q Kᵀ    P, dS, Σ da = derivative(S, dP = dO Vᵀ)
               dQ += dS K    dK += dSᵀ Q    dV += Pᵀ dO                   for each block of S

Products are torch.bmm into buffers that all blocks reuse, the step between them is one compiled
loop (`cpu_pass`). Blocks of which the program's masks leave nothing are left out (`cpu_tiles`).
Sums run in fp32 (fp64 for fp64), in an order that the sizes and the number of threads fix, so equal
inputs give equal bits.

Notation: B, H, N, M batches, query heads, rows and columns of the scores. A block is a span of
each. Every tensor has four dimensions; those of query, key and value are as in `ops`, aux tensors
are [B|1, H|1, N|1, M|1]. A *unit* is what one matrix of a batched product covers: a key (or value)
head of one batch with the rows of all query heads that read it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..expr import Expr, call
from ..score_mod import AXES, Aux, ScoreMod
from . import cpu_tiles
from .cpu_pass import Pass, Sum, compiled, storable

# 256K scores are 1 MiB in fp32, a core's share of a usual L2. Flat blocks slow the products down: a
# forward with N = M = 2048, D = 64 takes 113, 89, 75, 65 ms in blocks of 64×1024, 128×1024,
# 256×512, 512×512 (two cores of an EPYC 9004, torch 2.13).
_SCORES, _EDGE = 1 << 18, 512
_MAX_THREADS = 16


class Block(NamedTuple):
    """A span of each axis of the scores."""

    b: slice
    h: slice
    n: slice
    m: slice

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(span.stop - span.start for span in self)

    def cut(self, operand: Tensor) -> Tensor:
        """The part of a [B|1, H|1, N|1, M|1] operand that the block reads; a view."""
        sizes = operand.shape
        return operand[
            tuple(span if size != 1 else _WHOLE for span, size in zip(self, sizes, strict=True))
        ]


_WHOLE = slice(None)


def _spans(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, max(step, 1)))


@dataclass(frozen=True)
class Tiling:
    """The size of a block along each axis; the last one may be smaller."""

    batch: int
    heads: int
    rows: int
    cols: int

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.rows * self.cols


def tile(sizes: tuple[int, int, int, int], groups: Sequence[int], shared: bool) -> Tiling:
    """Blocks of about _SCORES for each thread.

    groups: query heads per key head, and per value head; a block has whole groups, or lies in one.
    shared: an operand serves all batches; then a block has one, so that its gradient adds in place.
    """
    batch, heads, rows, cols = sizes
    row_step = _even(rows, _EDGE)
    col_step = _even(cols, max(_EDGE, _SCORES // max(row_step, 1)))
    row_step = _even(rows, max(_EDGE, _SCORES // max(col_step, 1)))
    room = min(torch.get_num_threads(), _MAX_THREADS) * _SCORES // max(row_step * col_step, 1)
    fitting = [
        count
        for count in range(1, heads + 1)
        if heads % count == 0 and all(count % g == 0 or g % count == 0 for g in groups)
    ]
    head_step = max((count for count in fitting if count <= room), default=1)
    whole = head_step == heads and not shared
    return Tiling(
        max(1, min(batch, room // max(heads, 1))) if whole else 1, head_step, row_step, col_step
    )


def _even(size: int, limit: int) -> int:
    """The smallest step of at most `limit` that needs no more steps, whole vectors long."""
    if size <= limit:
        return size
    return min(limit, math.ceil(math.ceil(size / math.ceil(size / limit)) / 16) * 16)


class Scratch:
    """Buffers that all blocks use again, by number; each grows to the largest request."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._buffers: dict[int, Tensor] = {}

    def take(self, number: int, size: int) -> Tensor:
        """Uninitialised, [size]."""
        found = self._buffers.get(number)
        if found is None or found.numel() < size:
            found = self._buffers[number] = torch.empty(size, dtype=self.dtype)
        return found[:size]


class Operands:
    """Query, key and value in the compute dtype, what the program reads, and the blocks.

    numbers: [batch], which sequences of a jagged call these are; then sizes differ from block to
    block, and code is compiled for all of them. only: a condition; there are no scores but where it
    holds.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        aux: Sequence[Tensor],
        scalars: Sequence[int],
        dtype: torch.dtype,
        numbers: Tensor | None = None,
        only: Expr | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        self.query, self.key, self.value = (multipliable(t, dtype) for t in (query, key, value))
        batch = max((t.shape[0] for t in (query, key, value)), key=lambda size: size != 1)
        self.sizes = (batch, query.shape[1], query.shape[2], key.shape[2])
        self.dtype = dtype
        self._aux, self._scalars, self._numbers = aux, scalars, numbers
        self.only = only
        self._scratch = scratch or Scratch(dtype)
        self.groups = tuple(query.shape[1] // max(t.shape[1], 1) for t in (key, value))
        shared = batch != 1 and any(t.shape[0] == 1 for t in (query, key, value))
        self.tiling = tile(self.sizes, self.groups, shared)
        self._zero: Tensor | None = None

    def read_by(self, work: Pass) -> list[Tensor]:
        """The leaves of the pass over the whole problem: an index is a range along its axis."""
        return [self._leaf(node) for node in work.operands]

    def _leaf(self, node: Expr) -> Tensor:
        if node.op == "aux":
            return storable(self._aux[int(node.value or 0)])
        if node.op == "scalar":
            return torch.full((1, 1, 1, 1), self._scalars[int(node.value or 0)], dtype=torch.int64)
        return self._index(node.op)

    def _index(self, name: str) -> Tensor:
        axis = AXES.index(name)
        numbered = name == "b" and self._numbers is not None
        index = self._numbers if numbered else torch.arange(self.sizes[axis])
        assert index is not None
        return index.view([-1 if d == axis else 1 for d in range(4)])

    def leave_out(self, work: Pass, aux: tuple[Aux, ...]) -> None:
        """From here on, `blocks` leaves out those where the terms of `work` are 0. aux: what the
        program declares. A single block is not worth the question.
        """
        steps = (self.tiling.rows, self.tiling.cols)
        term = cpu_tiles.zero(work.roots, aux)
        if term is not None and (self.sizes[2] > steps[0] or self.sizes[3] > steps[1]):
            self._zero = cpu_tiles.verdicts(
                term, self._index, steps, self._aux, self._scalars, self.dtype
            )

    def _is_zero(self, block: Block) -> bool:
        if self._zero is None:
            return False
        n, m = block.n.start // self.tiling.rows, block.m.start // self.tiling.cols
        place = Block(block.b, block.h, slice(n, n + 1), slice(m, m + 1))
        return bool(place.cut(self._zero).all())

    def bands(self) -> Iterator[Block]:
        """Blocks over all columns."""
        batch, heads, rows, cols = self.sizes
        for b in _spans(batch, self.tiling.batch):
            for h in _spans(heads, self.tiling.heads):
                for n in _spans(rows, self.tiling.rows):
                    yield Block(b, h, n, slice(0, cols))

    def blocks(self, band: Block) -> Iterator[Block]:
        """Those that a band is made of, without the ones that are left out."""
        blocks = (band._replace(m=m) for m in _spans(self.sizes[3], self.tiling.cols))
        return (block for block in blocks if not self._is_zero(block))

    def scratch(self, number: int) -> Tensor:
        return self._scratch.take(number, self.tiling.scores)

    def run(self, work: Pass, tensors: list[Tensor]) -> None:
        compiled(work, tensors, lengths_vary=self._numbers is not None)(*tensors)


def multipliable(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """In `dtype`, laid out as torch.bmm reads it without a copy: rows or columns contiguous."""
    converted = operand.to(dtype)
    return converted if 1 in converted.stride()[-2:] else converted.contiguous()


def of_heads(operand: Tensor, block: Block, group: int) -> Tensor:
    """[units, columns, D] of a key-like [B|1, H/group, M, D]; a view, where that is contiguous."""
    heads = slice(block.h.start // group, (block.h.stop - 1) // group + 1)
    return operand[_batches(operand, block), heads, block.m].flatten(0, 1)


def of_rows(operand: Tensor, block: Block, count: int) -> Tensor:
    """[units, rows of the unit's query heads, D] of a query-like [B|1, H, N, D]; maybe a copy."""
    return operand[_batches(operand, block), block.h, block.n].reshape(count, -1, operand.shape[3])


def _batches(operand: Tensor, block: Block) -> slice:
    return block.b if operand.shape[0] != 1 else _WHOLE


def forward(operands: Operands, program: ScoreMod, out: Tensor, skip: bool = True) -> None:
    """Fill `out` [B,H,N,Dv]. skip: leave out blocks of which the masks leave nothing."""
    work = _within(_forward_pass(program), operands.only)
    if skip:
        operands.leave_out(work, program.aux)
    read = operands.read_by(work)
    scratch = operands.scratch(0)
    for band in operands.bands():
        target = out[band[:3]]
        total = torch.zeros(target.shape, dtype=operands.dtype)
        for block in operands.blocks(band):
            score = _products(operands.query, operands.key, block, operands.groups[0], scratch)
            operands.run(work, [score, *(block.cut(t) for t in read)])
            _add_product(total, score, of_heads(operands.value, block, operands.groups[1]))
        target.copy_(total)


@functools.lru_cache(maxsize=256)
def _forward_pass(program: ScoreMod) -> Pass:
    return Pass(program.weight, in_place=True)


@functools.lru_cache(maxsize=256)
def _backward_pass(program: ScoreMod, score: bool, value: bool, aux: tuple[bool, ...]) -> Pass:
    """score, value, aux: of which gradients the terms are asked."""
    terms = program.gradients
    sums = zip(terms.aux, program.aux, aux, strict=True)
    return Pass(
        program.weight if value else None,
        terms.score if score else None,
        tuple(Sum(term, spec.axes) for term, spec, asked in sums if asked and term is not None),
    )


@functools.lru_cache(maxsize=256)
def _within(work: Pass, only: Expr | None) -> Pass:
    """The pass with zeros where the condition does not hold."""
    if only is None:
        return work

    def masked(term: Expr | None) -> Expr | None:
        return None if term is None else call("where", only, term, 0.0)

    sums = tuple(Sum(call("where", only, s.term, 0.0), s.axes) for s in work.sums)
    return Pass(masked(work.weight), masked(work.score_grad), sums, work.in_place)


def _products(rows: Tensor, heads: Tensor, block: Block, group: int, scratch: Tensor) -> Tensor:
    """rows · headsᵀ of a block, [b,h,n,m], in the scratch."""
    right = of_heads(heads, block, group)
    left = of_rows(rows, block, len(right))
    scores = scratch[: math.prod(block.shape)].view(block.shape)
    torch.bmm(left, right.mT, out=scores.view(len(right), -1, right.shape[1]))
    return scores


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total [b,h,n,D] += left [b,h,n,m] · right [units, columns, D]"""
    count, columns, size = right.shape
    total.view(count, -1, size).baddbmm_(left.view(count, -1, columns), right)


def _add_transposed(total: Tensor, left: Tensor, rows: Tensor, block: Block) -> None:
    """total [units, columns, D] += leftᵀ · rows of the block, left [b,h,n,m], rows [B|1,H,N,D]"""
    count, columns, _ = total.shape
    total.baddbmm_(left.view(count, -1, columns).mT, of_rows(rows, block, count))


@dataclass(frozen=True)
class Grads:
    """Zeros to add the gradients to, in the operands' shapes; None where not asked."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    aux: tuple[Tensor | None, ...]


class Backward:
    """Adds the gradients that follow from that of the output, [B,H,N,Dv], to `grads`."""

    def __init__(
        self, operands: Operands, program: ScoreMod, grad_out: Tensor, grads: Grads,
        skip: bool = True,
    ) -> None:  # fmt: skip
        asked = _backward_pass(
            program,
            grads.query is not None or grads.key is not None,
            grads.value is not None,
            tuple(total is not None for total in grads.aux),
        )
        self.work = _within(asked, operands.only)
        summed = zip(program.gradients.aux, grads.aux, strict=True)
        self.totals = [total for term, total in summed if term is not None and total is not None]
        if skip:
            operands.leave_out(self.work, program.aux)
        self.operands, self.grads = operands, grads
        self.grad_out = multipliable(grad_out, operands.dtype)
        self.read = operands.read_by(self.work)
        self.score = operands.scratch(0)
        self.weight_grad = operands.scratch(1) if self.work.reads_grad else None
        self.weight = operands.scratch(2) if self.work.weight is not None else None
        self.score_grad = operands.scratch(3) if self.work.score_grad is not None else None

    def run(self) -> None:
        if not self.work.roots:
            return
        for band in self.operands.bands():
            total = None
            if self.grads.query is not None and self.score_grad is not None:
                target = self.grads.query[_batches(self.grads.query, band), band.h, band.n]
                total = torch.zeros(target.shape, dtype=self.operands.dtype)
            for block in self.operands.blocks(band):
                self._multiply(block, total, *self._weights(block))
            if total is not None:
                target.add_(total)

    def _weights(self, block: Block) -> tuple[Tensor | None, Tensor | None]:
        """P and dS of a block, [b,h,n,m]; adds what the block gives to the aux gradients."""
        operands, (key_group, value_group) = self.operands, self.operands.groups
        tensors = [_products(operands.query, operands.key, block, key_group, self.score)]
        if self.weight_grad is not None:
            tensors.append(
                _products(self.grad_out, operands.value, block, value_group, self.weight_grad)
            )
        count = math.prod(block.shape)
        weight, score_grad = (
            None if scratch is None else scratch[:count].view(block.shape)
            for scratch in (self.weight, self.score_grad)
        )
        tensors += [place for place in (weight, score_grad) if place is not None]
        tensors += [block.cut(t) for t in (*self.totals, *self.read)]
        operands.run(self.work, tensors)
        return weight, score_grad

    def _multiply(
        self,
        block: Block,
        query_grad: Tensor | None,
        weight: Tensor | None,
        score_grad: Tensor | None,
    ) -> None:
        """Add what the block gives to dV, dK and, [b,h,n,D], dQ."""
        key_group, value_group = self.operands.groups
        if weight is not None and self.grads.value is not None:
            _add_transposed(
                of_heads(self.grads.value, block, value_group), weight, self.grad_out, block
            )
        if score_grad is not None and self.grads.key is not None:
            _add_transposed(
                of_heads(self.grads.key, block, key_group), score_grad, self.operands.query, block
            )
        if score_grad is not None and query_grad is not None:
            _add_product(query_grad, score_grad, of_heads(self.operands.key, block, key_group))
