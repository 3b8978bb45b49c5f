"""Forward and backward in chunks of scores:

    forward    S = Q Kᵀ    P = program(S)                                 O = P V
    backward   S = Q Kᵀ    P, dS, Σ da = derivative(S, dP = dO Vᵀ)
               dQ += dS K    dK += dSᵀ Q    dV += Pᵀ dO                   for each chunk of S

Every product is one call of torch's library, in the operands' dtype. The program between them is
one compiled loop. S and dP have one buffer each, which all chunks use; P and dS replace them. The
sums over chunks run in fp32, in the order of the chunks. So equal inputs give equal bits where the
library's products do. No size is read from a device.

Notation: as in `cpu.dense`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...program.expr import AXES, Expr
from ...program.score_mod import ScoreMod
from ..cpu.block_pass import Pass, compiled, storable
from ..cpu.blocks import Block
from ..cpu.dense import _backward_pass, _within
from .chunks import ChunkedCall, ChunkPass, MatrixSpec, passes
from .products import Matrices, RegionSums, is_joint, multiply


@dataclass(frozen=True)
class ChunkedOperands:
    """query [B|1,H,M,D], key [B|1,Hk,N,D], value [B|1,Hv,N,Dv]; aux: on four axes.

    only: there are no scores but where it holds. wide: scores are held in fp32, whatever the
    operands are. lengths_vary: many sizes are to come, so nothing is compiled for a single one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    aux: Sequence[Tensor]
    scalars: Sequence[int]
    program: ScoreMod
    only: Expr | None = None
    wide: bool = False
    lengths_vary: bool = False

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        batches = [t.shape[0] for t in (self.query, self.key, self.value)]
        batch = next((size for size in batches if size != 1), 1)
        return batch, self.query.shape[1], self.query.shape[2], self.key.shape[2]

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def score_dtype(self) -> torch.dtype:
        return self.compute if self.wide else self.query.dtype

    @property
    def in_place(self) -> bool:
        """P may replace S, and dS dP."""
        return self.score_dtype == self.query.dtype == self.value.dtype

    def side(self, name: str, operand: Tensor, along: str) -> MatrixSpec:
        return MatrixSpec(
            name,
            along,
            operand.shape[-1],
            self.sizes[1] // operand.shape[1],
            operand.shape[0] != self.sizes[0],
            operand.dtype.itemsize >= 4,
        )

    @functools.cached_property
    def sides(self) -> tuple[MatrixSpec, MatrixSpec, MatrixSpec]:
        return (
            self.side("query", self.query, "rows"),
            self.side("key", self.key, "cols"),
            self.side("value", self.value, "cols"),
        )

    @functools.cached_property
    def out_side(self) -> MatrixSpec:
        """Of the output, and of its gradient."""
        return MatrixSpec("out", "rows", self.value.shape[-1], exact=self.value.dtype.itemsize >= 4)


class Chunk:
    """The buffers of one call, and the program on them."""

    def __init__(self, given: ChunkedOperands, scores: int) -> None:
        self.given, self._scores = given, scores
        self._buffers: dict[str, Tensor] = {}
        self._runners: dict[tuple[object, ...], object] = {}

    def buffer(self, name: str, block: Block, dtype: torch.dtype) -> Tensor:
        """[units, rows, columns] of the chunk, uninitialised; the buffer is that of the last."""
        found = self._buffers.get(name)
        if found is None:
            found = torch.empty(self._scores, dtype=dtype, device=self.given.query.device)
            self._buffers[name] = found
        batches, heads, rows, cols = block.shape
        return found.as_strided((batches * heads, rows, cols), (rows * cols, cols, 1), 0)

    def run(self, work: Pass, block: Block, tensors: list[Tensor]) -> None:
        """work: over tensors of four axes, the chunk's or 1."""
        key = (work, block.shape, *(t.data_ptr() % 16 == 0 for t in tensors))
        runner = self._runners.get(key)
        if runner is None:
            runner = self._runners[key] = compiled(work, tensors, self.given.lengths_vary)
        runner(*tensors)  # type: ignore[operator]


def _leaves(given: ChunkedOperands, work: Pass) -> list[Tensor]:
    """What the program reads beside scores, over the whole problem."""
    device = given.query.device

    def leaf(node: Expr) -> Tensor:
        if node.op == "aux":
            return storable(given.aux[int(node.value or 0)].to(device))
        if node.op == "scalar":
            literal = given.scalars[int(node.value or 0)]
            return torch.full((1, 1, 1, 1), literal, dtype=torch.int64, device=device)
        axis = AXES.index(node.op)
        shape = [-1 if d == axis else 1 for d in range(4)]
        return torch.arange(given.sizes[axis], device=device).view(shape)

    return [leaf(node) for node in work.operands]


def call_of(
    given: ChunkedOperands, wanted: Sequence[MatrixSpec], grad_out: Tensor | None = None
) -> ChunkedCall:
    """What decides on the chunks."""
    batch, heads, *_ = given.sizes
    tensors = [given.query, given.key, given.value]
    tensors += [] if grad_out is None else [grad_out]
    q, v, s = (x.itemsize for x in (given.query.dtype, given.value.dtype, given.score_dtype))
    per_score = (s, v) if grad_out is None else (s, v, v, q)  # S, P; S, dP, P, dS
    return ChunkedCall(
        given.sizes,
        given.sides,
        all(is_joint(t, batch, heads) for t in tensors),
        tuple(wanted),
        sum(per_score) // (2 if given.in_place else 1),
    )


def forward(given: ChunkedOperands, out: Tensor) -> None:
    """Fill `out` [B,H,M,Dv], contiguous."""
    if 0 in (*given.sizes, out.shape[-1]):
        out.zero_()
        return
    work = replace(
        _within(Pass(given.program.weight, in_place=given.in_place), given.only),
        dtype=given.compute,
    )
    side = given.out_side
    (chunk_pass,) = passes(call_of(given, [side]))
    chunk, read = Chunk(given, _most(chunk_pass)), _leaves(given, work)
    sums = RegionSums(out, side, chunk_pass.visits["out"])
    query, key, value = _matrices(given)
    for block in chunk_pass.blocks:
        score = chunk.buffer("score", block, given.score_dtype)
        multiply(query.of(block), key.of(block).mT, score)
        weight = score if given.in_place else chunk.buffer("weight", block, given.value.dtype)
        places = [score] if given.in_place else [score, weight]
        tensors = [t.view(block.shape) for t in places] + [block.cut(t) for t in read]
        chunk.run(work, block, tensors)
        sums.add(block, weight, value.of(block))


def _matrices(given: ChunkedOperands) -> list[Matrices]:
    operands = (given.query, given.key, given.value)
    return [Matrices(t, side) for t, side in zip(operands, given.sides, strict=True)]


def _most(chunk_pass: ChunkPass) -> int:
    return max(math.prod(block.shape) for block in chunk_pass.blocks)


@dataclass(frozen=True)
class ChunkedGrads:
    """Where to leave the gradients: contiguous, uninitialised, in the operands' shapes and dtypes.
    aux: zeros on four axes to add to. None where not asked.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    aux: Sequence[Tensor | None]

    @property
    def matrices(self) -> dict[str, Tensor]:
        """Those of value, key and query, in the order in which passes are made for them."""
        named = {"value": self.value, "key": self.key, "query": self.query}
        return {name: t for name, t in named.items() if t is not None}


def backward(given: ChunkedOperands, grad_out: Tensor, grads: ChunkedGrads) -> None:
    """Fill `grads` from the gradient of the output, [B,H,M,Dv]."""
    if 0 in given.sizes:
        for grad in grads.matrices.values():
            grad.zero_()
        return
    sides = {side.name: side for side in given.sides}
    order = passes(call_of(given, [sides[name] for name in grads.matrices], grad_out))
    for number, chunk_pass in enumerate(order):
        aux = grads.aux if number == 0 else [None] * len(grads.aux)
        BackwardChunks(given, grad_out, replace(grads, aux=aux), chunk_pass).run()


class BackwardChunks:
    """One pass over the chunks, for the gradients that it serves."""

    def __init__(
        self, given: ChunkedOperands, grad_out: Tensor, grads: ChunkedGrads, chunk_pass: ChunkPass
    ) -> None:
        self.given, self.chunk_pass = given, chunk_pass
        served = [side.name for side in chunk_pass.served]
        asked = _backward_pass(
            given.program,
            "query" in served or "key" in served,
            "value" in served,
            tuple(total is not None for total in grads.aux),
        )
        work = replace(_within(asked, given.only), dtype=given.compute)
        # dS replaces dP only if there is one.
        in_place = given.in_place and (work.reads_grad or work.score_grad is None)
        self.work = replace(work, in_place=in_place)
        summed = zip(given.program.gradients.aux, grads.aux, strict=True)
        self.totals = [total for term, total in summed if term is not None and total is not None]
        self.query, self.key, self.value = _matrices(given)
        self.grad_out = Matrices(grad_out, given.out_side)
        self.read = _leaves(given, self.work)
        self.chunk = Chunk(given, _most(chunk_pass))
        self.sums = {
            side.name: RegionSums(grads.matrices[side.name], side, chunk_pass.visits[side.name])
            for side in chunk_pass.served
        }
        self._without_term(grads)

    def _without_term(self, grads: ChunkedGrads) -> None:
        """A program that is the same at all scores has no gradient of query and key."""
        gone = ("query", "key") if self.work.score_grad is None else ()
        for name in [name for name in self.sums if name in gone]:
            del self.sums[name]
            grads.matrices[name].zero_()

    def run(self) -> None:
        if not self.work.roots:
            return
        for block in self.chunk_pass.blocks:
            self._add(block, *self._weights(block))

    def _weights(self, block: Block) -> tuple[Tensor | None, Tensor | None]:
        """P and dS of a chunk, [units, rows, columns]; adds its part of the aux gradients."""
        given, work = self.given, self.work
        score = self.chunk.buffer("score", block, given.score_dtype)
        multiply(self.query.of(block), self.key.of(block).mT, score)
        buffers = [score]
        if work.reads_grad:
            buffers.append(self.chunk.buffer("grad", block, given.value.dtype))
            multiply(self.grad_out.of(block), self.value.of(block).mT, buffers[1])
        weight, slope = score, buffers[-1]
        if not work.in_place:
            weight = self.chunk.buffer("weight", block, given.value.dtype)
            slope = self.chunk.buffer("slope", block, given.query.dtype)
            asked = ((work.weight, weight), (work.score_grad, slope))
            buffers += [place for term, place in asked if term is not None]
        tensors = [buffer.view(block.shape) for buffer in buffers]
        tensors += [block.cut(t) for t in (*self.totals, *self.read)]
        self.chunk.run(work, block, tensors)
        return (
            None if work.weight is None else weight,
            None if work.score_grad is None else slope,
        )

    def _add(self, block: Block, weight: Tensor | None, slope: Tensor | None) -> None:
        """Add what the chunk gives to dV, dK and dQ."""
        if weight is not None and "value" in self.sums:
            self.sums["value"].add(block, weight.mT, self.grad_out.of(block))
        if slope is not None and "key" in self.sums:
            self.sums["key"].add(block, slope.mT, self.query.of(block))
        if slope is not None and "query" in self.sums:
            self.sums["query"].add(block, slope, self.key.of(block))
