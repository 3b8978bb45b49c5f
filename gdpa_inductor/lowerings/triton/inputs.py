"""The operands of one op as Inductor IR, and facts about them that decide on kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..._compat import lowering, shapes
from ...kernels import devices
from ...operands import Operands, Size
from ...problem import Problem
from ...program.score_mod import ScoreMod
from ..call import Call
from .rules import rounds

_FAST_DTYPES = (torch.float16, torch.bfloat16)


class Inputs:
    """The operands of a call as realised Inductor IR, and facts about them.

    Symbolic head dims and pages become constants, as they are compiled in.
    """

    def __init__(self, call: Call) -> None:
        p = call.problem
        self.problem = replace(
            p,
            head_dim=int(p.head_dim),
            value_dim=int(p.value_dim),
            page=None if p.page is None else int(p.page),
        )
        self.nodes, self.fakes, self.options = call.operands, call.fakes.operands, call.options
        o, fakes, device = self.nodes, self.fakes, p.device
        matrices = {"Q": o.query, "K": o.key, "V": o.value}
        if call.backward:
            matrices["DO"] = call.nodes.grad_out
        if rounds(p):
            matrices = {name: lowering.rounded_to_tf32(x) for name, x in matrices.items()}
        self.matrices = {name: lowering.realized(x, device) for name, x in matrices.items()}
        self.aux = tuple(lowering.realized(x, device) for x in o.aux)
        self.pages = None if p.page is None else lowering.realized(o.page_table, device)
        self.scalars = tuple(o.scalars)  # the integers that the program reads
        sides = {"q": o.cu_seqlens_q, "k": o.cu_seqlens_k}
        self.offsets = {  # `cu_seqlens` of the jagged sides
            x: lowering.realized(cu, device) for x, cu in sides.items() if cu is not None
        }
        # Both sides have the same `cu_seqlens` and `max_seqlen`.
        same_offsets = p.jagged and fakes.cu_seqlens_q is fakes.cu_seqlens_k
        self.alike = same_offsets and shapes.statically_known_true(p.rows == p.cols)
        self.shared = _smaller(fakes, p, 0, p.batch)  # see `Plan`
        self.grouped = _smaller(fakes, p, 1, p.heads)
        self.spent = frozenset[str]()  # matrices whose memory nobody needs after the backward
        if call.backward:
            owners = call.fx_operands
            spent = lowering.spent((owners.query, owners.key, owners.value), views=True)
            self.spent = frozenset(name for name, last in zip("QKV", spent, strict=True) if last)

    @property
    def program(self) -> ScoreMod:
        return self.problem.program

    @property
    def fast(self) -> bool:
        narrow = self.problem.dtype in _FAST_DTYPES
        return self.options.fast_math and narrow and devices.nvidia(self.problem.device)

    def longest(self, side: str) -> Size:
        return self.problem.rows if side == "q" else self.problem.cols

    def total(self, side: str) -> Size:
        return self.problem.total_rows if side == "q" else self.problem.total_cols

    def extent(self, side: str) -> tuple[list[Any], list[Any]]:
        """(offsets, total rows, longest) of a jagged side, for formulas: as IR, and as fakes."""
        node = self.nodes.cu_seqlens_q if side == "q" else self.nodes.cu_seqlens_k
        fake, *sizes = self.fakes.sides[side]
        return [node, *map(shapes.size_expr, sizes)], [fake, *sizes]

    @property
    def extents(self) -> tuple[list[Any], list[Any]]:
        """The same for all jagged sides, one after the other."""
        each = [self.extent(side) for side in self.offsets]
        return [x for nodes, _ in each for x in nodes], [x for _, fakes in each for x in fakes]


def _smaller(fakes: Operands[Any], problem: Problem, dim: int, size: Size) -> frozenset[str]:
    """The matrices whose dim is not known to have this size. Jagged ones have no batch dim. Pages
    have none either: all batches share them, and the table has their batch.
    """
    sides: dict[str, tuple[Any, bool]] = {
        "Q": (fakes.query, problem.jagged_query),
        "K": (fakes.key, problem.jagged_key),
        "V": (fakes.value, problem.jagged_key),
    }
    pools = frozenset[str]()
    if problem.page is not None and dim == 0:
        pools = frozenset("KV")
        sides = {"Q": sides["Q"], "PAGES": (fakes.page_table, False)}
    return pools | {
        name
        for name, (tensor, jagged) in sides.items()
        if not (jagged and dim == 0) and not shapes.statically_known_true(tensor.shape[dim] == size)
    }


def block_dim(dim: Size) -> int:
    """The padded head dim of a tile: a power of two, at least 16."""
    return max(16, 1 << (int(dim) - 1).bit_length())


def empty(problem: Problem) -> bool:
    """Whether there are no scores, so that every result is zero."""
    sizes = [*problem.sizes.values(), *(side.total for side in problem.sides.values())]
    return any(shapes.statically_known_true(size == 0) for size in sizes)
