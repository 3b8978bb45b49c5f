"""Forward and backward in blocks of scores:

    forward    S = Q Kᵀ    P = program(S)                                 O += P V
    backward   S = Q Kᵀ    P, dS, Σ da = derivative(S, dP = dO Vᵀ)
               dQ += dS K    dK += dSᵀ Q    dV += Pᵀ dO                   for each block of S

Every product is one call of torch's library. The program between them is one compiled loop
(`block_pass`), or one kernel with the product before it (`fused`). Blocks are computed in a fixed
order, which depends only on the sizes and on the number of threads. So results are bitwise
reproducible if the library's products are. Sums run in fp32, or in fp64 for fp64.

No size is read from a device. The steps of a call in chunks are recorded for its sizes
(`recording`). Notation: as in `operands`.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...program.expr import Expr, call
from ...program.score_mod import ScoreMod
from ...sources import source_hash
from . import chunks, tiling
from .block_pass import Pass, Runner, Sum, compiled, fixed
from .chunks import BlockPass, ChunkedCall
from .fused import FusedPass
from .operands import Block, BlockOperands
from .products import Sums, is_joint, multiply
from .recording import Immediate, Recording, Steps

# The most calls whose steps are kept, and the most chunks of such a call. A longer list takes
# memory, and saves no time.
RECORDINGS, MOST_RECORDED = 256, 1024


@dataclass(frozen=True)
class RecordedCall:
    """The recorded steps of a call, for calls with the same sizes, strides, dtypes and program.

    leaves: The leaves of the program, whose tensors follow the others.
    """

    recording: Recording
    leaves: tuple[Expr, ...]

    def run(self, o: BlockOperands, results: Results, grad_out: Tensor | None = None) -> None:
        """As `run`."""
        self.recording.run(_bases(o, results, grad_out, self.leaves))


_RECORDINGS: OrderedDict[object, RecordedCall] = OrderedDict()


@dataclass(frozen=True)
class Results:
    """Memory for the results of a call.

    matrices: The output [B,H,M,Dv] as "out"; or the wanted ones of the gradients "value", "key" and
    "query". They are uninitialised, and contiguous, with the shapes and dtypes of the operands.
    Only those of the CPU kernel may have any strides, and its gradients are added to what is there,
    in the compute dtype.
    totals: Zeros on four axes for each aux operand, to which its gradient is added, or None.
    """

    matrices: Mapping[str, Tensor]
    totals: Sequence[Tensor | None] = ()

    @property
    def wanted(self) -> tuple[bool, ...]:
        """Which aux operands have a gradient."""
        return tuple([total is not None for total in self.totals])


def run(
    o: BlockOperands, results: Results, grad_out: Tensor | None = None, skip: bool = True
) -> RecordedCall | None:
    """Fill `results`. Returns the recorded steps, or None if they were not recorded.

    grad_out: The gradient of the output in a backward, [B,H,M,Dv]. skip: Leave out blocks where
    masks make all terms zero; only on the CPU.
    """
    width = results.matrices["out"].shape[-1] if "out" in results.matrices else 1
    if 0 in (*o.sizes, width):
        for matrix in results.matrices.values():
            matrix.zero_()
        return None
    if o.pool is not None or o.lengths_vary:
        return _run_first(o, results, grad_out, skip, record=False)
    tensors = (*_bases(o, results, grad_out, ()), *o.aux)
    layouts = [(t.dtype, t.shape, t.stride()) for t in tensors]
    limits = chunks.SCORES, chunks.SUMS, chunks.MIN_ROWS, chunks.ALIGNED
    names, wanted = tuple(results.matrices), results.wanted
    what = (o.program, o.only, o.wide, o.device, o.fused(any(wanted)), names, wanted)
    key = (*what, *limits, *layouts)
    try:  # without a lock, which a process that forks meanwhile would never see released
        _RECORDINGS.move_to_end(key)
        recorded = _RECORDINGS[key]
    except KeyError:  # it is new, or another thread has dropped it
        first = _run_first(o, results, grad_out, skip, record=True)
        if first is None:
            return None
        _RECORDINGS[key] = recorded = first
        while len(_RECORDINGS) > RECORDINGS:
            _RECORDINGS.popitem(last=False)
    recorded.run(o, results, grad_out)
    return recorded


def _bases(
    o: BlockOperands, results: Results, grad_out: Tensor | None, leaves: Sequence[Expr]
) -> list[Tensor]:
    """The tensors of a call, in the order of a recording. leaves: Those of the program."""
    grads = [] if grad_out is None else [grad_out]
    totals = [total for total in results.totals if total is not None]
    matrices = results.matrices.values()
    return [o.query, o.key, o.value, *grads, *matrices, *totals, *o.leaves(leaves)]


def _run_first(
    o: BlockOperands, results: Results, grad_out: Tensor | None, skip: bool, record: bool
) -> RecordedCall | None:
    """Run a call, or record it and leave the run to the caller. A long call is run too."""
    plan = _plan(o, results, grad_out, skip)
    leaves = tuple(dict.fromkeys(node for work, _ in plan for node in work.operands))
    bases = _bases(o, results, grad_out, leaves)
    record = record and sum(len(block_pass.blocks) for _, block_pass in plan) <= MOST_RECORDED
    steps: Steps = Recording(bases) if record else Immediate(bases, o.pool)
    rest = iter(steps.bases)
    names = ["query", "key", "value"] if grad_out is None else ["query", "key", "value", "out"]
    inputs = dict(zip(names, rest, strict=False))
    matrices = dict(zip(results.matrices, rest, strict=False))
    totals = [None if total is None else next(rest) for total in results.totals]
    tensors = dict(zip(leaves, rest, strict=True))
    for work, block_pass in plan:
        loop = BlockLoop(o, work, block_pass, steps)
        loop.run(inputs, matrices, totals, [tensors[node] for node in work.operands])
    if isinstance(steps, Immediate):
        return None
    steps.close()
    return RecordedCall(steps, leaves)


def _plan(
    o: BlockOperands, results: Results, grad_out: Tensor | None, skip: bool
) -> list[tuple[Pass, BlockPass]]:
    """The passes over blocks, with the terms that each computes. The first has the totals."""
    names, wanted = tuple(results.matrices), results.wanted
    if o.pool is not None:
        work = _terms(o, names, wanted)
        return [(work, tiling.tiles(o, names, work, skip))]
    plan = []
    for block_pass in chunks.passes(call_of(o, names, grad_out, any(wanted))):
        served_names = tuple(side.name for side in block_pass.served)
        plan.append((_terms(o, served_names, wanted), block_pass))
        wanted = (False,) * len(wanted)
    return plan


def call_of(
    o: BlockOperands, names: Sequence[str], grad_out: Tensor | None = None, sums: bool = False
) -> ChunkedCall:
    """The facts that decide on the chunks. names: Of the results, in the order of their passes.

    sums: Gradients of aux operands are wanted.
    """
    batch, heads, *_ = o.sizes
    tensors = [o.query, o.key, o.value]
    tensors += [] if grad_out is None else [grad_out]
    query, value, score = (x.itemsize for x in (o.query.dtype, o.value.dtype, o.score_dtype))
    if grad_out is None:
        per_score: tuple[int, ...] = (score, value)  # S, P
    else:
        per_score = (score, value, value, query)  # S, dP, P, dS
    if o.fused(sums):
        score_bytes = sum(per_score[1:])
    else:
        score_bytes = sum(per_score) // (2 if o.in_place else 1)
    return ChunkedCall(
        o.sizes,
        tuple(o.specs.sides[name] for name in ("query", "key", "value")),
        all(is_joint(t, batch, heads) for t in tensors),
        tuple(o.specs.sides[name] for name in names),
        score_bytes,
    )


def _terms(o: BlockOperands, names: tuple[str, ...], wanted: tuple[bool, ...]) -> Pass:
    """The terms for results of these names, and for the wanted gradients of aux operands."""
    in_place = o.in_place and (o.pool is None or names == ("out",))
    return _cached_terms(o.program, o.only, names, wanted, in_place, o.compute)


@functools.lru_cache(maxsize=256)
def _cached_terms(
    program: ScoreMod,
    only: Expr | None,
    names: tuple[str, ...],
    wanted: tuple[bool, ...],
    in_place: bool,
    dtype: torch.dtype,
) -> Pass:
    def masked(term: Expr) -> Expr:
        return term if only is None else call("where", only, term, 0.0)

    weight = score_grad = None
    sums: list[Sum] = []
    if "out" in names or "value" in names:
        weight = masked(program.weight)
    if ("query" in names or "key" in names) and program.gradients.score is not None:
        score_grad = masked(program.gradients.score)
    if any(wanted):
        for term, spec, need in zip(program.gradients.aux, program.aux, wanted, strict=True):
            if need and term is not None:
                sums.append(Sum(masked(term), spec.axes))
    work = Pass(weight, score_grad, tuple(sums), dtype=dtype)
    # dS replaces dP only if there is one.
    return replace(work, in_place=in_place and (work.reads_grad or score_grad is None))


class BlockLoop:
    """The loop over the blocks of one pass."""

    def __init__(self, o: BlockOperands, work: Pass, block_pass: BlockPass, steps: Steps) -> None:
        self._o, self._work, self._pass, self._steps = o, work, block_pass, steps
        self._buffers: dict[str, Tensor] = {}
        self._programs: dict[tuple[int, ...], BlockProgram] = {}

    def run(
        self,
        inputs: Mapping[str, Tensor],
        targets: Mapping[str, Tensor],
        totals: Sequence[Tensor | None],
        leaves: Sequence[Tensor],
    ) -> None:
        """Add the parts of all blocks to the targets of the pass.

        inputs: Query, key, value, and in a backward the gradient of the output as "out". targets:
        By name. totals: For each aux operand. leaves: The tensors of `Pass.operands`.
        """
        o, work, block_pass = self._o, self._work, self._pass
        on_cpu = o.pool is not None
        self._fused = not on_cpu and o.fused(any(total is not None for total in totals))
        self._inputs = inputs
        self._sums: dict[str, Sums] = {}
        for side in block_pass.served:
            name, target = side.name, targets[side.name]
            without = name in ("query", "key") and work.score_grad is None
            if without or (name == "out" and block_pass.scores < math.prod(o.sizes)):
                self._steps.do(Tensor.zero_, target)
            if not without:
                visits = iter(block_pass.visits[name])
                dtype = o.compute if on_cpu else torch.promote_types(target.dtype, torch.float32)
                onto = on_cpu and name != "out"
                self._sums[name] = Sums(side, target, visits, dtype, self._steps, onto)
        self._leaves = list(leaves)
        if work.sums:
            terms = zip(o.program.gradients.aux, totals, strict=True)
            self._leaves[:0] = [t for term, t in terms if term is not None and t is not None]
        if work.roots:
            for block in self._pass.blocks:
                self._add(block)

    def _add(self, block: Block) -> None:
        """Add the part of a block. Its weights do not outlive it."""
        sums, sides = self._sums, self._o.specs.sides
        inputs = {name: sides[name].matrices(t, block) for name, t in self._inputs.items()}
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        grad_out = inputs.get("out")
        grad: Tensor | None = None
        if self._work.reads_grad:
            assert grad_out is not None
            grad = self._product("grad", block, grad_out, value, self._o.value.dtype)
        weight, slope = self._weights(block, query, key, grad)
        if weight is not None:
            weight = weight.view(value.shape[0], -1, value.shape[1])
            if "out" in sums:
                sums["out"].add(block, weight, value)
            else:
                assert grad_out is not None
                sums["value"].add(block, weight.mT, grad_out)
        if slope is not None:
            slope = slope.view(key.shape[0], -1, key.shape[1])
            if "key" in sums:
                sums["key"].add(block, slope.mT, query)
            if "query" in sums:
                sums["query"].add(block, slope, key)

    def _product(
        self, name: str, block: Block, rows: Tensor, cols: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """rows · colsᵀ of a block, [b,h,rows,cols], in the buffer of this name."""
        product = self._buffer(name, block, dtype)
        out = product.view(cols.shape[0], -1, cols.shape[1])
        self._steps.do(multiply, rows, cols.mT, out)
        return product

    def _buffer(self, name: str, block: Block, dtype: torch.dtype) -> Tensor:
        """A buffer for a block of scores, uninitialised. All blocks share it."""
        if len(self._pass.blocks) == 1:
            return self._steps.empty(block.shape, dtype, name)
        if name not in self._buffers:
            most = max(math.prod(other.shape) for other in self._pass.blocks)
            self._buffers[name] = self._steps.empty((most,), dtype, name)
        return self._buffers[name][: math.prod(block.shape)].view(block.shape)

    def _weights(
        self, block: Block, query: Tensor, key: Tensor, grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """(P, dS) of a block, [b,h,rows,cols], or None for one that is not wanted.

        It adds the block's part to the totals. query, key: The matrices of the block. grad: dP.
        """
        o, work = self._o, self._work
        leaves = [block.cut(t) for t in self._leaves]
        grads = [] if grad is None else [grad]
        if self._fused:
            sizes = [(query.dtype, block.shape) for _ in work.roots]
            outputs = self._steps.make(self._program(block), [query, key, *grads, *leaves], *sizes)
            weight, slope = outputs[0], outputs[-1]
        else:
            score = self._product("score", block, query, key, o.score_dtype)
            buffers = [score, *grads]
            weight, slope = score, buffers[-1]
            if not work.in_place and work.weight is not None:
                weight = self._buffer("weight", block, o.value.dtype)
                buffers.append(weight)
            if not work.in_place and work.score_grad is not None:
                slope = self._buffer("slope", block, o.query.dtype)
                buffers.append(slope)
            self._steps.do(self._program(block), *buffers, *leaves)
        return (
            None if work.weight is None else weight,
            None if work.score_grad is None else slope,
        )

    def _program(self, block: Block) -> BlockProgram:
        shape = block.shape
        program = self._programs.get(shape)
        if program is None:
            work = FusedPass(self._work, shape[1]) if self._fused else self._work
            program = self._programs[shape] = BlockProgram(work, self._o.lengths_vary)
        return program


class BlockProgram:
    """A score program for blocks of one shape. It is compiled when it first runs."""

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
                runner = compiled(self._work, tensors, lengths_vary=self._vary)
            self._runners[aligned] = runner
        return runner(*tensors)
