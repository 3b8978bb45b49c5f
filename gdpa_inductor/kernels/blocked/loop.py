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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...operands import add_by_place
from ...program.expr import AXES, POSITIONS, Expr, call
from ...program.score_mod import ScoreMod
from ...sources import source_hash
from . import chunks, tiling
from .block_pass import Pass, Runner, Sum, compiled, fixed
from .chunks import BlockPass, ChunkedCall
from .fused import FusedPass, StoredPass
from .operands import Block, BlockOperands
from .products import Sums, is_joint, multiply
from .recording import Immediate, Recording, StepRecorder, Steps

# The most calls whose steps are kept, and the most chunks of such a call. A longer list takes
# memory, and saves no time.
RECORDINGS, MOST_RECORDED = 256, 1024
# By `_layout_key`: the steps of a call, and the leaves of its program, whose tensors come last.
_RECORDINGS: OrderedDict[object, tuple[Recording, tuple[Expr, ...]]] = OrderedDict()


@dataclass(frozen=True)
class Results:
    """Memory for the results of a call.

    matrices: The output [B,H,M,Dv] as "out"; or the wanted ones of the gradients "value", "key" and
    "query". They are uninitialised, and contiguous, with the shapes and dtypes of the operands.
    Only those of the CPU kernel may have any strides, and its gradients are added to what is there,
    in the compute dtype.
    """

    matrices: Mapping[str, Tensor]
    # Zeros on four axes, to which parts are added: in a forward the row sums, if there are some; in
    # a backward the gradient of each aux operand, None if it is not wanted.
    totals: Sequence[Tensor | None] = ()

    @property
    def wanted(self) -> tuple[bool, ...]:
        return tuple([total is not None for total in self.totals])


def run(
    o: BlockOperands, results: Results, grad_out: Tensor | None = None, skip: bool = True
) -> None:
    """Fill `results`.

    grad_out: The gradient of the output in a backward, [B,H,M,Dv]. skip: Leave out blocks where
    masks make all terms zero; only on the CPU.
    """
    width = results.matrices["out"].shape[-1] if "out" in results.matrices else 1
    if 0 in (*o.sizes, width):
        for matrix in results.matrices.values():
            matrix.zero_()
        return
    if o.pool is not None or o.lengths_vary:
        _run_first(o, results, grad_out, skip, record=False)
        return
    key = _layout_key(o, results, grad_out)
    try:  # without a lock, which a process that forks meanwhile would never see released
        _RECORDINGS.move_to_end(key)
        recorded = _RECORDINGS[key]
    except KeyError:  # it is new, or another thread has dropped it
        first = _run_first(o, results, grad_out, skip, record=True)
        if first is None:
            return
        _RECORDINGS[key] = recorded = first
        while len(_RECORDINGS) > RECORDINGS:
            _RECORDINGS.popitem(last=False)
    recording, leaves = recorded
    recording.run(_bases(o, results, grad_out, leaves))


def _layout_key(o: BlockOperands, results: Results, grad_out: Tensor | None) -> object:
    """Calls with equal keys have the same steps, but for the addresses of their tensors."""
    layouts = [(t.dtype, t.shape, t.stride()) for t in (*_bases(o, results, grad_out, ()), *o.aux)]
    sums = chunks.SUMS, chunks.STORED_SUMS
    limits = chunks.SCORES, chunks.STORED, *sums, chunks.MIN_ROWS, chunks.ALIGNED
    names, wanted = tuple(results.matrices), results.wanted
    fused = o.fused(any(wanted)), o.stores(any(wanted)), o.options
    program = o.program, o.only, o.wide, o.device, *fused
    return (*program, names, wanted, *limits, *layouts)


def _bases(
    o: BlockOperands, results: Results, grad_out: Tensor | None, leaves: Sequence[Expr]
) -> list[Tensor]:
    """The tensors of a call, in the order of a recording."""
    grads = [] if grad_out is None else [grad_out]
    totals = [total for total in results.totals if total is not None]
    matrices = results.matrices.values()
    return [o.query, o.key, o.value, *grads, *matrices, *totals, *map(o.leaf, leaves)]


def _run_first(
    o: BlockOperands, results: Results, grad_out: Tensor | None, skip: bool, record: bool
) -> tuple[Recording, tuple[Expr, ...]] | None:
    """Run a call, or record it and leave the run to the caller. A long call is run too."""
    plan = _plan(o, results, grad_out, skip)
    leaves = tuple(dict.fromkeys(node for work, _ in plan for node in work.operands))
    bases = _bases(o, results, grad_out, leaves)
    record = record and sum(len(block_pass.blocks) for _, block_pass in plan) <= MOST_RECORDED
    steps: Steps = StepRecorder(bases) if record else Immediate(bases, o.pool)
    rest = iter(steps.bases)
    names = ["query", "key", "value"] if grad_out is None else ["query", "key", "value", "out"]
    inputs = dict(zip(names, rest, strict=False))
    matrices = dict(zip(results.matrices, rest, strict=False))
    totals = [None if total is None else next(rest) for total in results.totals]
    tensors = dict(zip(leaves, rest, strict=True))
    for work, block_pass in plan:
        operands = [tensors[node] for node in work.operands]
        BlockLoop(o, work, block_pass, steps, inputs, totals, operands).run(matrices)
    return (steps.recording(), leaves) if isinstance(steps, StepRecorder) else None


def _plan(
    o: BlockOperands, results: Results, grad_out: Tensor | None, skip: bool
) -> list[tuple[Pass, BlockPass]]:
    """The passes over blocks, with the terms that each computes. The first has the totals."""
    names, wanted = tuple(results.matrices), results.wanted
    if o.pool is not None:
        work = _terms(o, names, wanted)
        return [(work, tiling.tiles(o, names, work, skip))]
    plan = []
    for block_pass in chunks.passes(call_of(o, names, grad_out, wanted)):
        served_names = tuple(side.name for side in block_pass.served)
        plan.append((_terms(o, served_names, wanted), block_pass))
        wanted = (False,) * len(wanted)
    return plan


def call_of(
    o: BlockOperands,
    names: tuple[str, ...],
    grad_out: Tensor | None = None,
    wanted: tuple[bool, ...] = (),
) -> ChunkedCall:
    """The facts that decide on the chunks.

    names: The results, in the order of their passes. wanted: Which gradients of aux operands are
    wanted too, or row sums.
    """
    sums, by_head = any(wanted), False
    batch, heads, *_ = o.sizes
    tensors = [o.query, o.key, o.value]
    tensors += [] if grad_out is None else [grad_out]
    query, value, score = (x.itemsize for x in (o.query.dtype, o.value.dtype, o.score_dtype))
    # S and P; in a backward S, dP, P and dS
    per_score = [score, value] if grad_out is None else [score, value, value, query]
    stored = grad_out is not None and o.stores(sums)
    if stored:  # P, dS, and terms
        work = _terms(o, names, wanted)
        score_bytes = value + query * (1 + len(work.own_sums))
        by_head = any(x.axes >= POSITIONS and "b" not in x.axes for x in work.sums)
    elif o.fused(sums):
        score_bytes = sum(per_score[1:])
    else:
        score_bytes = sum(per_score) // (2 if o.in_place else 1)
    if sums and not stored:  # terms and places
        tables = sum(spec.is_table for spec in o.program.aux)
        score_bytes += tables * (o.compute.itemsize + torch.int64.itemsize)
    return ChunkedCall(
        o.sizes,
        tuple(o.specs.sides[name] for name in ("query", "key", "value")),
        all(is_joint(t, batch, heads) for t in tensors),
        tuple(o.specs.sides[name] for name in names),
        score_bytes,
        stored,
        by_head,
    )


def _terms(o: BlockOperands, names: tuple[str, ...], wanted: tuple[bool, ...]) -> Pass:
    in_place = o.in_place and (o.pool is None or names == ("out",))
    stored = o.pool is None and "out" not in names and o.stores(any(wanted))
    return _cached_terms(o.program, o.only, names, wanted, in_place, stored, o.compute)


@functools.lru_cache(maxsize=256)
def _cached_terms(
    program: ScoreMod,
    only: Expr | None,
    names: tuple[str, ...],
    wanted: tuple[bool, ...],
    in_place: bool,
    stored: bool,
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
    if any(wanted) and program.summed is not None and "out" in names:
        sums.append(Sum(masked(program.summed), frozenset(AXES[:-1])))
    elif any(wanted):
        terms = zip(program.gradients.aux, wanted, strict=True)
        for number, (term, need) in enumerate(terms):
            if need and term is not None:
                place = program.places.get(number), program.place_axes(number)
                sums.append(Sum(masked(term), program.axes(number), number, *place))
    work = Pass(weight, score_grad, tuple(sums), dtype=dtype)
    if stored and work.reads_grad:
        return replace(work, program=program.roots)
    # dS replaces dP only if there is one.
    return replace(work, in_place=in_place and (work.reads_grad or score_grad is None))


class BlockLoop:
    """The loop over the blocks of one pass.

    inputs: Query, key, value, and in a backward the gradient of the output as "out". totals: For
    each aux operand. leaves: The tensors of `Pass.operands`.
    """

    def __init__(
        self,
        o: BlockOperands,
        work: Pass,
        block_pass: BlockPass,
        steps: Steps,
        inputs: Mapping[str, Tensor],
        totals: Sequence[Tensor | None],
        leaves: Sequence[Tensor],
    ) -> None:
        self._o, self._work, self._pass, self._steps = o, work, block_pass, steps
        self._inputs, self._leaves = inputs, leaves
        self._stored = bool(work.program)
        self._fused = o.pool is None and o.fused(any(total is not None for total in totals))
        summed = o.program.gradients.aux if "out" in inputs else (o.program.summed,)
        terms = zip(summed, totals, strict=True) if work.sums else ()
        self._totals = [t for term, t in terms if term is not None and t is not None]
        self._buffers: dict[str, Tensor] = {}
        # By the sizes of a block, which decide on all strides.
        self._programs: dict[tuple[int, ...], BlockProgram] = {}
        self._kernels: dict[tuple[int, ...], Runner] = {}

    def run(self, targets: Mapping[str, Tensor]) -> None:
        """Add the parts of all blocks to the targets of the pass, which have the names of sides."""
        o, work, on_cpu = self._o, self._work, self._o.pool is not None
        sums: dict[str, Sums] = {}
        for side in self._pass.served:
            name, target = side.name, targets[side.name]
            without = name in ("query", "key") and work.score_grad is None
            if without or (name == "out" and self._pass.scores < math.prod(o.sizes)):
                self._steps.do(Tensor.zero_, target)
            if not without:
                visits = iter(self._pass.visits[name])
                dtype = o.compute if on_cpu else torch.promote_types(target.dtype, torch.float32)
                onto = on_cpu and name != "out"
                sums[name] = Sums(side, target, visits, dtype, self._steps, onto)
        for block in self._pass.blocks if work.roots else ():
            self._add(block, sums)

    def _add(self, block: Block, sums: Mapping[str, Sums]) -> None:
        """Add the part of a block. Its weights do not outlive it."""
        sides = self._o.specs.sides
        inputs = {name: sides[name].matrices(t, block) for name, t in self._inputs.items()}
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        grad_out = inputs.get("out")
        if self._stored:
            assert grad_out is not None
            weight, slope = self._weights_at_once(block, (query, key, value, grad_out))
        else:
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
        self._steps.do(multiply, rows, cols.mT, product.view(cols.shape[0], -1, cols.shape[1]))
        return product

    def _buffer(
        self, name: str, block: Block, dtype: torch.dtype, axes: Collection[str] = AXES
    ) -> Tensor:
        """Uninitialised, of size 1 along other axes. All blocks share the memory."""
        shape = block.shape_along(axes)
        if len(self._pass.blocks) == 1:
            return self._steps.empty(shape, dtype, name)
        if name not in self._buffers:
            most = max(math.prod(other.shape_along(axes)) for other in self._pass.blocks)
            self._buffers[name] = self._steps.empty((most,), dtype, name)
        return self._buffers[name][: math.prod(shape)].view(shape)

    def _weights(
        self, block: Block, query: Tensor, key: Tensor, grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """(P, dS) of a block, [b,h,rows,cols], or None for one that is not wanted; grad is dP.

        It adds the block's part to the totals too.
        """
        o, work = self._o, self._work
        leaves = [block.cut(t) for t in self._leaves]
        buffers = [] if grad is None else [grad]
        weight: Tensor | None
        slope: Tensor | None
        if self._fused:
            sizes = [(query.dtype, block.shape) for _ in work.roots]
            program = self._program(block)
            outputs = self._steps.make(program, [query, key, *buffers, *leaves], *sizes)
            weight, slope = outputs[0], outputs[-1]
        else:
            buffers.insert(0, self._product("score", block, query, key, o.score_dtype))
            weight, slope = buffers[0], buffers[-1]
            if not work.in_place and work.weight is not None:
                weight = self._buffer("weight", block, o.value.dtype)
                buffers.append(weight)
            if not work.in_place and work.score_grad is not None:
                slope = self._buffer("slope", block, o.query.dtype)
                buffers.append(slope)
            totals = [block.cut(total) for total in self._totals]
            looked_up = self._looked_up(block)
            parts = [looked_up[n][0] if n in looked_up else total for n, total in enumerate(totals)]
            places = [place for _, place in looked_up.values()]
            self._steps.do(self._program(block), *buffers, *parts, *places, *leaves)
            for number, (term, place) in looked_up.items():
                self._steps.do(add_by_place, term, place, totals[number])
        return (
            None if work.weight is None else weight,
            None if work.score_grad is None else slope,
        )

    def _weights_at_once(
        self, block: Block, matrices: tuple[Tensor, ...]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The same by one kernel, which also computes dP."""
        work, dtype = self._work, matrices[0].dtype
        axes = zip(AXES, self._o.sizes, block.shape, strict=True)
        cut = [axis for axis, size, own in axes if size != own]
        leaves = [block.cut(t) for t in self._leaves]
        operands = StoredPass.operands(work, cut, leaves)
        kernel = self._kernel(block, matrices, operands)
        if not isinstance(kernel, BlockProgram):
            outputs = [self._buffer(name, block, dtype) for name in ("weight", "slope")]
            self._steps.do(kernel, *matrices, *outputs, *operands.values())
        else:
            count = (work.weight is not None) + (work.score_grad is not None) + len(work.own_sums)
            sizes = [(dtype, block.shape) for _ in range(count)]
            outputs = self._steps.make(kernel, [*matrices, *operands.values()], *sizes)
        made = iter(outputs)
        weight = None if work.weight is None else next(made)
        slope = None if work.score_grad is None else next(made)
        for summed, total in zip(work.sums, self._totals, strict=True):
            factor = work.of_slope(summed)
            term = next(made) if factor is None or slope is None else slope
            add = functools.partial(_add_sum, 1.0 if factor is None else factor)
            self._steps.do(add, term, block.cut(total))
        return weight, slope

    def _looked_up(self, block: Block) -> dict[int, tuple[Tensor, Tensor]]:
        """Memory for the terms of tables and for their places, by the number of the sum."""
        return {
            number: (
                self._buffer(f"term {number}", block, self._o.compute, summed.axes),
                self._buffer(f"place {number}", block, torch.int64, summed.place_axes),
            )
            for number, summed in enumerate(self._work.sums)
            if summed.place is not None
        }

    def _kernel(
        self, block: Block, matrices: Sequence[Tensor], operands: Mapping[Expr, Tensor]
    ) -> Runner:
        """What fills P and dS of the chunk; or a program that returns new ones, by Inductor."""
        kernel = self._kernels.get(block.shape)
        if kernel is None:
            chunk = StoredPass.of(self._work, operands, block.shape[1], self._o.options)
            if self._o.direct is not None:
                given = list(operands.values())
                kernel = self._o.direct(chunk, matrices, given, self._o.device)
            kernel = kernel or BlockProgram(chunk, self._o.lengths_vary)
            self._kernels[block.shape] = kernel
        return kernel

    def _program(self, block: Block) -> BlockProgram:
        shape = block.shape
        program = self._programs.get(shape)
        if program is None:
            work = FusedPass(self._work, shape[1]) if self._fused else self._work
            program = self._programs[shape] = BlockProgram(work, self._o.lengths_vary)
        return program


def _add_sum(factor: float, term: Tensor, total: Tensor) -> None:
    """Add factor times a term of scores to a total, summed over the axes that this lacks."""
    missing = [dim for dim, size in enumerate(total.shape) if size != term.shape[dim]]
    part = term.sum(missing, keepdim=True, dtype=total.dtype) if missing else term
    total.add_(part, alpha=factor)


class BlockProgram:
    """A score program for blocks of one shape. It is compiled when it first runs."""

    def __init__(self, work: Pass | FusedPass | StoredPass, lengths_vary: bool) -> None:
        self._work, self._vary = work, lengths_vary
        self._runners: dict[tuple[bool, ...], Runner] = {}  # by which tensors are aligned

    def __call__(self, *tensors: Tensor) -> Any:
        aligned = tuple([t.data_ptr() % 16 == 0 for t in tensors])
        runner = self._runners.get(aligned)
        if runner is None:
            if isinstance(self._work, Pass):
                runner = compiled(self._work, tensors, lengths_vary=self._vary)
            else:
                runner = fixed(self._work, tensors, source_hash())
            if runner is not self._work:  # which runs until compiling it, tried again, succeeds
                self._runners[aligned] = runner
        return runner(*tensors)
