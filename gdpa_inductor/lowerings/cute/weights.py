"""The CuTe kernel of P and dS, as chunks of a backward call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...kernels.blocked.fused import StoredPass
from ...kernels.cute.replay import Record
from ...kernels.cute.weights import weights
from ...operands import Operands
from ...options import KernelOptions


@dataclass(eq=False)
class Filling:
    """P and dS of chunks whose sizes and strides are the same.

    The first run records its launches, and later runs replay them (kernels/cute/replay.py). A run
    whose addresses are not aligned is none of these: it may have to copy.
    """

    chunk: StoredPass
    replay: Any = None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        grad_out: Tensor,
        weight: Tensor,
        slope: Tensor,
        *operands: Tensor,
    ) -> None:
        """Fill P and dS, contiguous [b,h,rows,cols]; the other matrices are [units,·,width]."""
        matrices = (query, key, value, grad_out, weight, slope)
        if self.replay is not None and self.replay(matrices, operands, ()) is not None:
            return
        options, record = KernelOptions.parse(self.chunk.options), Record()
        q, k, v, grad = self.chunk.by_head(matrices[:4])
        o = Operands(q, k, v, operands, (), self.chunk.program)
        fast, skip, out = options.fast_math, options.skip, (weight, slope)
        weights(grad, o, fast=fast, skip=skip, out=out, record=record)
        self.replay = record.replay
