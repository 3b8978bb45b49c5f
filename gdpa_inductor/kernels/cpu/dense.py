"""GDPA on the CPU in blocks of scores. Beside the results it needs a few MiB, whatever M and N are.

    forward    S = Q Kᵀ    P = program(S)                                 O += P V
    backward   S = Q Kᵀ    P, dS, Σ da = derivative(S, dP = dO Vᵀ)
               dQ += dS K    dK += dSᵀ Q    dV += Pᵀ dO                   for each block of S

Products are torch.bmm into buffers that all blocks reuse. The score program between them is one
compiled loop (`block_pass`). Blocks where the program's masks make all scores zero are skipped
(`tiles`). Sums run in fp32 (fp64 for fp64). Their order depends only on the sizes and the number of
threads, so results are bitwise reproducible.

Notation
    B, H, M, N   Batches, query heads, rows (queries) and columns (keys) of the scores.
    block        A slice of each of these.
    unit         One matrix of a batched product: a key (or value) head of one batch, with the rows
                 of all query heads that read it.

All tensors have four dims. Those of query, key and value are as in `ops`; aux tensors are
[B|1, H|1, M|1, N|1].
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from ...program.expr import AXES, Expr, call
from ...program.score_mod import Aux, ScoreMod
from . import blocks, tiles
from .block_pass import Pass, Sum, compiled, storable
from .blocks import WHOLE, Block, spans, tile

_ALIGNED = 64  # bytes; torch.empty aligns so


class Scratch:
    """Buffers by number, which all blocks reuse. Each grows to its largest request."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._buffers: dict[int, Tensor] = {}

    def take(self, number: int, size: int) -> Tensor:
        """A buffer [size], uninitialised."""
        found = self._buffers.get(number)
        if found is None or found.numel() < size:
            found = self._buffers[number] = torch.empty(size, dtype=self.dtype)
        return found[:size]


class BlockOperands:
    """Query, key and value in the compute dtype, the operands of the program, and the blocks.

    numbers: The numbers of the sequences of a jagged call, [batch], or None. If given, sizes vary
    from block to block, and code is compiled for all sizes. only: A condition. Scores exist only
    where it holds.
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
        self._shared = batch != 1 and any(t.shape[0] == 1 for t in (query, key, value))
        self.tiling = tile(self.sizes, self.groups, self._shared)
        self._zero: Tensor | None = None

    def read_by(self, work: Pass) -> list[Tensor]:
        """The leaves of a pass, for the whole problem. An index is a range along its axis."""
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
        """Have `blocks` skip scores where all terms of `work` are 0.

        aux: The declarations of the program's operands.
        """
        term = tiles.zero(work.roots, aux)
        if term is None or math.prod(self.sizes) <= blocks.FEW:
            return
        self.tiling = tile(self.sizes, self.groups, self._shared, masked=True)
        steps = (self.tiling.rows, self.tiling.skip_cols)
        if self.sizes[2] > steps[0] or self.sizes[3] > steps[1]:
            self._zero = tiles.verdicts(
                term, self._index, steps, self._aux, self._scalars, self.dtype
            )

    def bands(self) -> Iterator[Block]:
        """The bands: blocks with all columns."""
        batch, heads, rows, cols = self.sizes
        for b in spans(batch, self.tiling.batch):
            for h in spans(heads, self.tiling.heads):
                for span in spans(rows, self.tiling.rows):
                    yield Block(b, h, span, slice(0, cols))

    def blocks(self, band: Block) -> Iterator[Block]:
        """The blocks of a band, without skipped scores."""
        for left in self._left(band):
            for part in spans(left.stop - left.start, self.tiling.cols):
                yield band._replace(cols=slice(left.start + part.start, left.start + part.stop))

    def _left(self, band: Block) -> Iterator[slice]:
        """The columns of a band that are not skipped, as slices."""
        cells = list(spans(self.sizes[3], self.tiling.skip_cols))
        zeros = [False] * len(cells)
        if self._zero is not None:
            row = band.rows.start // self.tiling.rows
            found = band._replace(rows=slice(row, row + 1), cols=WHOLE).cut(self._zero)
            zeros = found.flatten(0, 2).all(0).expand(len(cells)).tolist()
        for zero, run in itertools.groupby(zip(zeros, cells, strict=True), key=itemgetter(0)):
            taken = [cell for _, cell in run]
            if not zero:
                yield slice(taken[0].start, taken[-1].stop)

    def scratch(self, number: int, size: int | None = None) -> Tensor:
        """A buffer. By default it has the size of a block of scores."""
        return self._scratch.take(number, self.tiling.scores if size is None else size)

    def run(self, work: Pass, tensors: list[Tensor]) -> None:
        compiled(work, tensors, lengths_vary=self._numbers is not None)(*tensors)


def multipliable(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """The operand in `dtype`, with contiguous rows or columns, so that torch.bmm makes no copy."""
    converted = operand.to(dtype)
    return converted if 1 in converted.stride()[-2:] else converted.contiguous()


def of_heads(operand: Tensor, block: Block, group: int) -> Tensor:
    """The block of a key-like [B|1, H/group, N, D] as [units, columns, D], a view if contiguous."""
    heads = slice(block.h.start // group, (block.h.stop - 1) // group + 1)
    return operand[_batches(operand, block), heads, block.cols].flatten(0, 1)


def of_rows(operand: Tensor, block: Block, count: int) -> Tensor:
    """The block of a query-like [B|1, H, M, D] as [units, rows of its heads, D], maybe a copy."""
    return operand[_batches(operand, block), block.h, block.rows].reshape(
        count, -1, operand.shape[3]
    )


def _batches(operand: Tensor, block: Block) -> slice:
    return block.b if operand.shape[0] != 1 else WHOLE


def forward(operands: BlockOperands, program: ScoreMod, out: Tensor, skip: bool = True) -> None:
    """Fill `out` [B,H,M,Dv]. skip: Skip blocks where masks make all scores zero."""
    work = _within(_forward_pass(program), operands.only)
    if skip:
        operands.leave_out(work, program.aux)
    read = operands.read_by(work)
    scratch = operands.scratch(0)
    for band in operands.bands():
        total = Total(out[band[:3]], operands)
        for block in operands.blocks(band):
            score = _products(operands.query, operands.key, block, operands.groups[0], scratch)
            operands.run(work, [score, *(block.cut(t) for t in read)])
            total.add(score, of_heads(operands.value, block, operands.groups[1]))
        total.write()


@functools.lru_cache(maxsize=256)
def _forward_pass(program: ScoreMod) -> Pass:
    return Pass(program.weight, in_place=True)


@functools.lru_cache(maxsize=256)
def _backward_pass(program: ScoreMod, score: bool, value: bool, aux: tuple[bool, ...]) -> Pass:
    """The pass of a backward. score, value, aux: Which gradients are wanted."""
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
    """rows · headsᵀ of a block, [b,h,rows,cols], in the scratch."""
    right = of_heads(heads, block, group)
    left = of_rows(rows, block, len(right))
    scores = scratch[: math.prod(block.shape)].view(block.shape)
    torch.bmm(left, right.mT, out=scores.view(len(right), -1, right.shape[1]))
    return scores


class Total:
    """A sum of products over the blocks of a band. `write` stores it in `target` [b,h,rows,D].

    The first product is written, not added to zeros. onto: Add to the content of the target.
    """

    def __init__(self, target: Tensor, operands: BlockOperands, onto: bool = False) -> None:
        self._target, self._onto = target, onto
        # The last bits of a product depend on the alignment of its memory.
        aligned = target.is_contiguous() and target.data_ptr() % _ALIGNED == 0
        self._direct = aligned and target.dtype == operands.dtype
        buffer = target if self._direct else operands.scratch(4, target.numel())
        self._place = buffer.view(target.shape)
        self._empty = not (self._direct and onto)

    def add(self, left: Tensor, right: Tensor) -> None:
        """left [b,h,rows,cols] · right [units, columns, D]"""
        count, columns, size = right.shape
        place, left = self._place.view(count, -1, size), left.view(count, -1, columns)
        if self._empty:
            torch.bmm(left, right, out=place)
        else:
            place.baddbmm_(left, right)
        self._empty = False

    def write(self) -> None:
        if self._empty:
            if not self._onto:
                self._target.zero_()
        elif not self._direct:
            (self._target.add_ if self._onto else self._target.copy_)(self._place)


def _add_transposed(
    total: Tensor, left: Tensor, rows: Tensor, block: Block, operands: BlockOperands
) -> None:
    """total [units, columns, D] += leftᵀ · rows of the block.

    left: [b,h,rows,cols]. rows: [B|1,H,M,D].
    """
    count, columns, _ = total.shape
    left, right = left.view(count, -1, columns).mT, of_rows(rows, block, count)
    if total.is_contiguous():
        total.baddbmm_(left, right)
    else:  # which torch.baddbmm multiplies one by one
        product = operands.scratch(5, total.numel()).view(total.shape)
        total.add_(torch.bmm(left, right, out=product))


@dataclass(frozen=True)
class Grads:
    """Zeros with the operands' shapes, to which gradients are added. None if not wanted."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    aux: tuple[Tensor | None, ...]


class BackwardPass:
    """Computes gradients from that of the output, [B,H,M,Dv], and adds them to `grads`."""

    def __init__(
        self, operands: BlockOperands, program: ScoreMod, grad_out: Tensor, grads: Grads,
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
                target = self.grads.query[_batches(self.grads.query, band), band.h, band.rows]
                total = Total(target, self.operands, onto=True)
            for block in self.operands.blocks(band):
                self._multiply(block, total, *self._weights(block))
            if total is not None:
                total.write()

    def _weights(self, block: Block) -> tuple[Tensor | None, Tensor | None]:
        """(P, dS) of a block, [b,h,rows,cols]. It adds the block's part of the aux gradients."""
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
        query_grad: Total | None,
        weight: Tensor | None,
        score_grad: Tensor | None,
    ) -> None:
        """Add the block's part to dV, dK and dQ [b,h,rows,D]."""
        key_group, value_group = self.operands.groups
        if weight is not None and self.grads.value is not None:
            place = of_heads(self.grads.value, block, value_group)
            _add_transposed(place, weight, self.grad_out, block, self.operands)
        if score_grad is not None and self.grads.key is not None:
            place = of_heads(self.grads.key, block, key_group)
            _add_transposed(place, score_grad, self.operands.query, block, self.operands)
        if score_grad is not None and query_grad is not None:
            query_grad.add(score_grad, of_heads(self.operands.key, block, key_group))
