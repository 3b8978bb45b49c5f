"""Forward and backward in chunks of scores:

    forward    S = Q Kᵀ    P = program(S)                                 O = P V
    backward   S = Q Kᵀ    P, dS, Σ da = derivative(S, dP = dO Vᵀ)
               dQ += dS K    dK += dSᵀ Q    dV += Pᵀ dO                   for each chunk of S

Every product is one call of torch's library, in the operands' dtype. The program between them is
one compiled loop, or one kernel with the product before it (`chunk`). The sums over chunks run in
fp32, in the order of the chunks. So results are bitwise reproducible if the library's products are.
No size is read from a device. The steps of a call are recorded for its sizes (`recording`).

Notation: as in `cpu.dense`.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...program.expr import Expr
from ...program.score_mod import ScoreMod
from ..cpu.block_pass import Pass
from ..cpu.blocks import Block
from ..cpu.dense import _backward_pass, _within
from . import chunks
from .chunk import Chunk
from .chunks import ChunkedCall, ChunkPass, MatrixSpec, passes
from .operands import ChunkedOperands, leaves_of
from .products import Matrices, RegionSums, is_joint, multiply
from .recording import Immediate, Recording, Steps

# The most calls whose steps are kept, and the most chunks of such a call. A longer list takes
# memory, and saves no time.
RECORDINGS, MOST_RECORDED = 256, 1024


def call_of(
    given: ChunkedOperands,
    wanted: Sequence[MatrixSpec],
    grad_out: Tensor | None = None,
    sums: bool = False,
) -> ChunkedCall:
    """The facts that decide on the chunks. sums: Gradients of aux operands are wanted."""
    batch, heads, *_ = given.sizes
    tensors = [given.query, given.key, given.value]
    tensors += [] if grad_out is None else [grad_out]
    q, v, s = (x.itemsize for x in (given.query.dtype, given.value.dtype, given.score_dtype))
    per_score = (s, v) if grad_out is None else (s, v, v, q)  # S, P; S, dP, P, dS
    if given.fused(sums):
        score_bytes = sum(per_score[1:])
    else:
        score_bytes = sum(per_score) // (2 if given.in_place else 1)
    return ChunkedCall(
        given.sizes,
        given.sides,
        all(is_joint(t, batch, heads) for t in tensors),
        tuple(wanted),
        score_bytes,
    )


@dataclass(frozen=True)
class Repeat:
    """A recorded pass, for calls with the same sizes, strides, dtypes and program.

    targets: The names of the gradients that a backward fills.
    """

    recording: Recording
    work: Pass
    targets: tuple[str, ...] = ()

    def forward(self, given: ChunkedOperands, out: Tensor) -> None:
        self._run(given, out)

    def backward(
        self, given: ChunkedOperands, grad_out: Tensor, matrices: Mapping[str, Tensor]
    ) -> None:
        self._run(given, grad_out, *[matrices[name] for name in self.targets])

    def _run(self, given: ChunkedOperands, *others: Tensor) -> None:
        leaves = leaves_of(given, self.work)
        self.recording.run((given.query, given.key, given.value, *others, *leaves))


def forward(given: ChunkedOperands, out: Tensor) -> tuple[Repeat] | None:
    """Fill `out` [B,H,M,Dv], contiguous. Returns the recorded pass, or None."""
    if 0 in (*given.sizes, out.shape[-1]):
        out.zero_()
        return None
    work = _forward_pass(given)
    (chunk_pass,) = passes(call_of(given, [given.out_side]))
    bases = (given.query, given.key, given.value, out, *leaves_of(given, work))
    fused = given.fused(sums=False)

    def steps_of(on: ChunkedOperands, steps: Steps) -> None:
        target, leaves = steps.bases[3], steps.bases[4:]
        chunk = Chunk(on, work, leaves, _most(chunk_pass), steps, fused)
        sums = RegionSums(target, given.out_side, chunk_pass.visits["out"], steps)
        query, key, value = _matrices(on)

        def add(block: Block) -> None:  # its weights do not outlive it
            weight, _ = chunk.weights(block, query.of(block), key.of(block), None, [])
            assert weight is not None
            sums.add(block, weight, value.of(block))

        for block in chunk_pass.blocks:
            add(block)

    recording = _run(given, (work, fused), chunk_pass, bases, steps_of)
    return None if recording is None else (Repeat(recording, work),)


@functools.lru_cache(maxsize=256)
def _whole_pass(program: ScoreMod, in_place: bool, only: Expr | None, dtype: torch.dtype) -> Pass:
    return replace(_within(Pass(program.weight, in_place=in_place), only), dtype=dtype)


def _forward_pass(given: ChunkedOperands) -> Pass:
    return _whole_pass(given.program, given.in_place, given.only, given.compute)


_RECORDINGS: OrderedDict[tuple[object, ...], Recording] = OrderedDict()
_lock = threading.Lock()


def _run(
    given: ChunkedOperands,
    what: tuple[object, ...],
    chunk_pass: ChunkPass,
    bases: Sequence[Tensor],
    steps_of: Callable[[ChunkedOperands, Steps], None],
) -> Recording | None:
    """Run the steps of a pass, and record them if such a call may come again.

    what: The key of the recording, beside the chunks and the sizes, strides and dtypes of `bases`.
    bases: Query, key, value, and further tensors.
    """
    if given.lengths_vary or len(chunk_pass.blocks) > MOST_RECORDED:
        steps_of(given, Immediate(bases))
        return None
    layouts = [(t.dtype, t.shape, t.stride()) for t in bases]
    limits = chunks.SCORES, chunks.SUMS, chunks.MIN_ROWS, chunks.ALIGNED
    key = (*what, given.device, given.wide, *limits, *chunk_pass.served, *layouts)
    with _lock:
        found = _RECORDINGS.get(key)
        if found is not None:
            _RECORDINGS.move_to_end(key)
    if found is None:
        found = Recording(bases)
        query, key_, value = found.bases[:3]
        steps_of(replace(given, query=query, key=key_, value=value), found)
        found.close()
        with _lock:
            _RECORDINGS[key] = found
            while len(_RECORDINGS) > RECORDINGS:
                _RECORDINGS.popitem(last=False)
    found.run(bases)
    return found


def _matrices(given: ChunkedOperands) -> list[Matrices]:
    operands = (given.query, given.key, given.value)
    return [Matrices(t, side) for t, side in zip(operands, given.sides, strict=True)]


def _most(chunk_pass: ChunkPass) -> int:
    return max(math.prod(block.shape) for block in chunk_pass.blocks)


@dataclass(frozen=True)
class ChunkedGrads:
    """Memory for the gradients, or None for those that are not wanted.

    query, key, value: Contiguous and uninitialised, with the shapes and dtypes of the operands.
    aux: Zeros on four axes, to which gradients are added.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    aux: Sequence[Tensor | None]

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The gradients of value, key and query, in the order of their passes."""
        named = {"value": self.value, "key": self.key, "query": self.query}
        return {name: t for name, t in named.items() if t is not None}


def backward(
    given: ChunkedOperands, grad_out: Tensor, grads: ChunkedGrads
) -> tuple[Repeat, ...] | None:
    """Fill `grads` from the gradient of the output, [B,H,M,Dv]. Returns the recorded passes.

    None if not all of it was recorded, or if an aux operand has a gradient.
    """
    if 0 in given.sizes:
        for grad in grads.matrices.values():
            grad.zero_()
        return None
    sides = {side.name: side for side in given.sides}
    sums = any(total is not None for total in grads.aux)
    order = passes(call_of(given, [sides[name] for name in grads.matrices], grad_out, sums))
    fused = given.fused(sums)
    found: list[Repeat | None] = []
    for number, chunk_pass in enumerate(order):
        aux = grads.aux if number == 0 else [None] * len(grads.aux)
        found.append(
            BackwardChunks(given, grad_out, replace(grads, aux=aux), chunk_pass, fused).run()
        )
    repeats = tuple(repeat for repeat in found if repeat is not None)
    return None if sums or len(repeats) < len(found) else repeats


class BackwardChunks:
    """One pass over the chunks, for the gradients that it serves."""

    def __init__(
        self,
        given: ChunkedOperands,
        grad_out: Tensor,
        grads: ChunkedGrads,
        chunk_pass: ChunkPass,
        fused: bool,
    ) -> None:
        self.given, self.chunk_pass, self.fused = given, chunk_pass, fused
        self.grad_out, self.grads = grad_out, grads
        self.names = [side.name for side in chunk_pass.served]
        asked = _backward_pass(
            given.program,
            "query" in self.names or "key" in self.names,
            "value" in self.names,
            tuple(total is not None for total in grads.aux),
        )
        work = replace(_within(asked, given.only), dtype=given.compute)
        # dS replaces dP only if there is one.
        in_place = given.in_place and (work.reads_grad or work.score_grad is None)
        self.work = replace(work, in_place=in_place)
        summed = zip(given.program.gradients.aux, grads.aux, strict=True)
        self.totals = [total for term, total in summed if term is not None and total is not None]
        self._without_term()

    def _without_term(self) -> None:
        """Zero gradients of query and key, for a program that does not depend on the score."""
        gone = ("query", "key") if self.work.score_grad is None else ()
        for name in [name for name in self.names if name in gone]:
            self.names.remove(name)
            self.grads.matrices[name].zero_()

    def run(self) -> Repeat | None:
        """Run the pass. Returns its recording, or None if not all of it was recorded."""
        if not self.work.roots:
            return None
        o = self.given
        targets = [self.grads.matrices[name] for name in self.names]
        leaves = leaves_of(o, self.work)
        bases = (o.query, o.key, o.value, self.grad_out, *targets, *self.totals, *leaves)
        what = (self.work, self.fused, *self.names)
        recording = _run(o, what, self.chunk_pass, bases, self._steps)
        whole = len(self.names) == len(self.chunk_pass.served)
        return Repeat(recording, self.work, tuple(self.names)) if recording and whole else None

    def _steps(self, given: ChunkedOperands, steps: Steps) -> None:
        named, summed = len(self.names), len(self.totals)
        grad_out, rest = steps.bases[3], steps.bases[4:]
        targets, totals = rest[:named], rest[named : named + summed]
        sides = {side.name: side for side in self.given.sides}
        sums = {
            name: RegionSums(target, sides[name], self.chunk_pass.visits[name], steps)
            for name, target in zip(self.names, targets, strict=True)
        }
        matrices = [*_matrices(given), Matrices(grad_out, given.out_side)]
        leaves, scores = rest[named + summed :], _most(self.chunk_pass)
        chunk = Chunk(given, self.work, leaves, scores, steps, self.fused)
        for block in self.chunk_pass.blocks:
            self._add(block, chunk, matrices, totals, sums, steps)

    def _add(
        self,
        block: Block,
        chunk: Chunk,
        matrices: list[Matrices],
        totals: list[Tensor],
        sums: dict[str, RegionSums],
        steps: Steps,
    ) -> None:
        """Add the part of a chunk to dV, dK, dQ and the aux gradients."""
        query, key, value, grad_out = (m.of(block) for m in matrices)
        grad: Tensor | None = None
        if self.work.reads_grad:
            grad = chunk.buffer("grad", block, self.given.value.dtype)
            steps.do(multiply, grad_out, value.mT, grad)
        weight, slope = chunk.weights(block, query, key, grad, totals)
        if weight is not None and "value" in sums:
            sums["value"].add(block, weight.mT, grad_out)
        if slope is not None and "key" in sums:
            sums["key"].add(block, slope.mT, query)
        if slope is not None and "query" in sums:
            sums["query"].add(block, slope, key)
