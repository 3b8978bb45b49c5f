"""Compute S = Q Kᵀ and the score program for one chunk after the other.

S and dP have one buffer each, which all chunks use. P overwrites S, and dS overwrites dP. If one
kernel computes S and the program (`fused`), S is not stored, and P and dS are new for each chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...sources import source_hash
from ..cpu.block_pass import Pass, Runner, compiled, fixed
from ..cpu.blocks import Block
from .fused import FusedPass
from .operands import ChunkedOperands
from .products import multiply
from .recording import Steps


class ChunkProgram:
    """A score program for chunks of one shape. It is compiled when it first runs."""

    def __init__(self, work: Pass | FusedPass, lengths_vary: bool) -> None:
        self._work, self._vary = work, lengths_vary
        self._runners: dict[tuple[bool, ...], Runner] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        aligned = tuple([t.data_ptr() % 16 == 0 for t in tensors])
        runner = self._runners.get(aligned)
        if runner is None:
            if isinstance(self._work, FusedPass):
                runner = fixed(self._work, tensors, source_hash())
            else:
                runner = compiled(self._work, tensors, self._vary)
            self._runners[aligned] = runner
        return runner(*tensors)


class Chunk:
    """The program and the buffers of one pass over the chunks.

    leaves:  The tensors that the program reads beside scores, for the whole problem.
    scores:  How many scores the largest chunk has.
    fused:   One kernel computes S and the program.
    """

    def __init__(
        self,
        given: ChunkedOperands,
        work: Pass,
        leaves: Sequence[Tensor],
        scores: int,
        steps: Steps,
        fused: bool,
    ) -> None:
        self._given, self._work, self._leaves, self._scores = given, work, leaves, scores
        self._steps, self._is_fused = steps, fused
        self._buffers: dict[str, Tensor] = {}
        self._programs: dict[tuple[int, ...], ChunkProgram] = {}

    def buffer(self, name: str, block: Block, dtype: torch.dtype) -> Tensor:
        """A buffer [units, rows, columns] for a chunk, uninitialised. All chunks share it."""
        found = self._buffers.get(name)
        if found is None:
            found = self._buffers[name] = self._steps.empty((self._scores,), dtype)
        units, rows, cols = _units(block)
        start = found.storage_offset()
        return found.as_strided((units, rows, cols), (rows * cols, cols, 1), start)

    def weights(
        self,
        block: Block,
        query: Tensor,
        key: Tensor,
        grad: Tensor | None,
        totals: Sequence[Tensor],
    ) -> tuple[Tensor | None, Tensor | None]:
        """(P, dS) of a chunk, [units, rows, columns], or None for one that is not wanted.

        It adds the chunk's part of aux gradients to `totals`. query, key: The matrices of the
        chunk. grad: dP.
        """
        leaves = [block.cut(t) for t in (*totals, *self._leaves)]
        made = self._fused if self._is_fused else self._separate
        weight, slope = made(block, query, key, grad, leaves)
        work = self._work
        return (
            None if work.weight is None else weight,
            None if work.score_grad is None else slope,
        )

    def _fused(
        self, block: Block, query: Tensor, key: Tensor, grad: Tensor | None, leaves: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        grads = [] if grad is None else [grad.view(block.shape)]
        sizes = [(query.dtype, _units(block)) for _ in self._work.roots]
        found = self._steps.make(self._program(block), [query, key, *grads, *leaves], *sizes)
        return found[0], found[-1]

    def _separate(
        self, block: Block, query: Tensor, key: Tensor, grad: Tensor | None, leaves: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        given, work = self._given, self._work
        score = self.buffer("score", block, given.score_dtype)
        self._steps.do(multiply, query, key.mT, score)
        buffers = [score] if grad is None else [score, grad]
        weight, slope = score, buffers[-1]
        if not work.in_place:
            weight = self.buffer("weight", block, given.value.dtype)
            slope = self.buffer("slope", block, given.query.dtype)
            asked = ((work.weight, weight), (work.score_grad, slope))
            buffers += [place for term, place in asked if term is not None]
        tensors = [*(t.view(block.shape) for t in buffers), *leaves]
        self._steps.do(self._program(block), *tensors)
        return weight, slope

    def _program(self, block: Block) -> ChunkProgram:
        if block.shape not in self._programs:
            work = FusedPass(self._work, block.shape[1]) if self._is_fused else self._work
            self._programs[block.shape] = ChunkProgram(work, self._given.lengths_vary)
        return self._programs[block.shape]


def _units(block: Block) -> tuple[int, int, int]:
    batches, heads, rows, cols = block.shape
    return batches * heads, rows, cols
