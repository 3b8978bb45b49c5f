"""The order in which sequences are dealt to the CTAs: the longest first. Made on the device.

Each sequence counts those that come before it, by a warp. That was faster than a sort on an
H200, on the device and on the CPU.
"""

import functools
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import Int32, Int64, cute
from torch import Tensor

from ...operands import Operands
from . import disk
from .config import KernelConfig
from .launcher import WordLauncher, pointer
from .plan import name, offsets_of
from .ranges import LANES
from .values import smaller

MOST = 8192  # sequences; for more, a sort is faster
WARPS = 8  # of a CTA


def longest_first(operands: Operands[Tensor], config: KernelConfig, stream: int) -> Tensor | None:
    """int64 [B]; None where both sides are dense."""
    offsets = offsets_of(operands)
    if offsets is None:
        return None
    batch = offsets.shape[0] - 1
    if offsets.device.type != "cuda" or not 0 < batch <= MOST:
        return torch.argsort(offsets[1:] - offsets[:-1], descending=True, stable=True)
    order = offsets.new_empty(batch, dtype=torch.int64)
    ranking = _ranking(name(offsets.dtype), config.arch)
    ranking(offsets.data_ptr(), order.data_ptr(), batch, stream)
    return order


class Ranking:
    """order[rank of i] = i, where rank counts the sequences that are longer, or as long and before
    i."""

    @cute.jit
    def __call__(self, offsets, order, batch: Int32, stream):
        ctas = (batch + (WARPS - 1)) // WARPS
        self.kernel(offsets, order, batch).launch(
            grid=(ctas, 1, 1), block=(LANES * WARPS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, offsets, order, batch):
        own = Int32(cute.arch.block_idx()[0]) * WARPS + cute.arch.warp_idx()
        if own < batch:
            length, rank = self.length(offsets, own), Int32(0)
            for base in cutlass.range(0, batch, LANES, unroll=4):
                other = base + cute.arch.lane_idx()
                found = self.length(offsets, smaller(other, batch - 1))
                earlier = (found > length) | ((found == length) & (other < own))
                rank += Int32((other < batch) & earlier)
            rank = cute.arch.warp_redux_sync(rank, "add")
            with cute.arch.elect_one():
                order[rank] = Int64(own)

    def length(self, offsets: Any, number: Any) -> Any:
        return offsets[number + 1] - offsets[number]


def compiled(dtype: str, arch: str) -> Any:
    """For offsets of this dtype. Needs no GPU."""
    given = (pointer(dtype), pointer("int64"), Int32(1), cuda.CUstream(0))
    return cute.compile(Ranking(), *given, options=f"--gpu-arch={arch}")


@functools.cache
def _ranking(dtype: str, arch: str) -> WordLauncher:
    return WordLauncher(disk.kept(lambda: compiled(dtype, arch), "order", dtype, arch), 4)
