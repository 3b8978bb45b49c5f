"""The operands of one op as Inductor IR, and facts about them that decide on kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._compat import lowering, shapes
from ...kernels.devices import nvidia
from ...operands import Operands
from ...options import KernelOptions
from ...problem import Problem, Size
from ...program.score_mod import ScoreMod
from .. import gpu
from ..call import Call

_FAST_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Inputs:
    """The operands of one op as realised Inductor IR, and facts about them.

    nodes:            The operands as Inductor passed them.
    fakes:            The operands as fake tensors.
    matrices:         "Q", "K", "V" and, in a backward, "DO".
    aux:              The aux operands, in the order of the program.
    scalars:          The integers that the program reads.
    offsets:          `cu_seqlens` of the jagged sides, by "q" and "k".
    alike:            Both sides have the same `cu_seqlens` and `max_seqlen`.
    shared, grouped:  See `Plan`.
    spent:            The matrices whose memory nobody needs after the backward.
    """

    nodes: Operands[Any]
    fakes: Operands[Any]
    problem: Problem
    options: KernelOptions
    matrices: dict[str, Any]
    aux: tuple[Any, ...]
    scalars: tuple[Any, ...]
    offsets: dict[str, Any]
    alike: bool
    shared: frozenset[str]
    grouped: frozenset[str]
    spent: frozenset[str]

    @property
    def program(self) -> ScoreMod:
        return self.problem.program

    @property
    def fast(self) -> bool:
        narrow = self.problem.dtype in _FAST_DTYPES
        return self.options.fast_math and narrow and nvidia(self.problem.device)

    def longest(self, side: str) -> Size:
        return self.problem.rows if side == "q" else self.problem.cols

    def total(self, side: str) -> Size:
        return self.problem.total_rows if side == "q" else self.problem.total_cols

    def extent(self, side: str) -> tuple[list[Any], list[Any]]:
        """(offsets, total rows, longest) of a jagged side, for formulas: as IR, and as fakes."""
        sizes = (self.total(side), self.longest(side))
        node, fake = (
            x.cu_seqlens_q if side == "q" else x.cu_seqlens_k for x in (self.nodes, self.fakes)
        )
        return [node, *map(shapes.size_expr, sizes)], [fake, *sizes]

    @property
    def extents(self) -> tuple[list[Any], list[Any]]:
        """The same for all jagged sides, one after the other."""
        each = [self.extent(side) for side in self.offsets]
        return [x for nodes, _ in each for x in nodes], [x for _, fakes in each for x in fakes]


def inputs_of(call: Call) -> Inputs:
    """The inputs of a call. Symbolic head dims become constants, as they are compiled in."""
    operands, fakes, problem = call.operands, call.fakes.operands, call.problem
    problem = replace(problem, head_dim=int(problem.head_dim), value_dim=int(problem.value_dim))
    narrowed = rounds(problem)
    matrices = {"Q": operands.query, "K": operands.key, "V": operands.value}
    if call.backward:
        matrices["DO"] = call.nodes.grad_out
    offsets = {"q": operands.cu_seqlens_q, "k": operands.cu_seqlens_k}
    same_offsets = problem.jagged and fakes.cu_seqlens_q is fakes.cu_seqlens_k
    return Inputs(
        nodes=operands,
        fakes=fakes,
        problem=problem,
        options=call.options,
        matrices={
            name: lowering.realized(lowering.rounded_to_tf32(x) if narrowed else x, problem.device)
            for name, x in matrices.items()
        },
        aux=tuple(lowering.realized(x, problem.device) for x in operands.aux),
        scalars=tuple(operands.scalars),
        offsets={
            side: lowering.realized(x, problem.device)
            for side, x in offsets.items()
            if x is not None
        },
        alike=same_offsets and shapes.statically_known_true(problem.rows == problem.cols),
        shared=_smaller(fakes, problem, 0, problem.batch),
        grouped=_smaller(fakes, problem, 1, problem.heads),
        spent=_spent(call) if call.backward else frozenset(),
    )


def _spent(call: Call) -> frozenset[str]:
    operands = call.fx_operands
    spent = lowering.spent((operands.query, operands.key, operands.value), views=True)
    return frozenset(name for name, is_spent in zip("QKV", spent, strict=True) if is_spent)


def _smaller(fakes: Operands[Any], problem: Problem, dim: int, size: Size) -> frozenset[str]:
    """The matrices whose dim is not known to have this size. Jagged ones have no batch dim."""
    sides = {
        "Q": (fakes.query, problem.jagged_query),
        "K": (fakes.key, problem.jagged_key),
        "V": (fakes.value, problem.jagged_key),
    }
    return frozenset(
        name
        for name, (tensor, jagged) in sides.items()
        if not (jagged and dim == 0) and not shapes.statically_known_true(tensor.shape[dim] == size)
    )


def rounds(problem: Problem) -> bool:
    """Whether operands are rounded to TF32 before the kernel.

    The tensor core truncates fp32 to TF32, which makes every product smaller. So operands are
    rounded to nearest first.
    """
    return problem.dtype == torch.float32 and gpu.float32_precision() == "tf32"


def block_dim(dim: Size) -> int:
    """The padded head dim of a tile: a power of two, at least 16."""
    return max(16, 1 << (int(dim) - 1).bit_length())


def empty(problem: Problem) -> bool:
    """Whether there are no scores, so that every result is zero."""
    sizes = [problem.batch, problem.heads, problem.rows, problem.cols]
    sizes += [problem.total_rows] if problem.jagged_query else []
    sizes += [problem.total_cols] if problem.jagged_key else []
    return any(shapes.statically_known_true(size == 0) for size in sizes)
