"""The operands of a call in chunks, and the tensors that its score program reads.

Notation: as in `cpu.dense`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...program.expr import AXES, Expr
from ...program.score_mod import ScoreMod
from ..cpu.block_pass import Pass, storable
from .chunks import MatrixSpec
from .fused import fuses


@dataclass(frozen=True)
class ChunkedOperands:
    """query [B|1,H,M,D], key [B|1,Hk,N,D], value [B|1,Hv,N,Dv], and aux operands on four axes.

    only:          A condition. Scores exist only where it holds.
    wide:          Scores are stored in fp32, whatever the operands are.
    lengths_vary:  Many sizes will come, so nothing is compiled for a single one.
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
    def device(self) -> torch.device:
        return self.query.device

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def score_dtype(self) -> torch.dtype:
        return self.compute if self.wide else self.query.dtype

    @property
    def in_place(self) -> bool:
        """P may overwrite S, and dS may overwrite dP."""
        return self.score_dtype == self.query.dtype == self.value.dtype

    def fused(self, sums: bool) -> bool:
        """Whether one kernel computes S and the program. sums: Aux gradients are wanted."""
        return not sums and not self.lengths_vary and fuses(self.query, self.value)

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
        """The spec of the output, and of its gradient."""
        return MatrixSpec("out", "rows", self.value.shape[-1], exact=self.value.dtype.itemsize >= 4)


def leaves_of(given: ChunkedOperands, work: Pass) -> list[Tensor]:
    """The tensors that the program reads beside scores, for the whole problem."""
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
