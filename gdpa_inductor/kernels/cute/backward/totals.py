"""Sums of the stored gradients of scores over batches, heads or both, in one order.

This is bound by memory, of which torch.sum uses about half. Each thread adds up 8 neighbouring
scores.
"""

import functools
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import Float32, Int32, Int64, cute
from torch import Tensor

from .. import disk
from ..launcher import WordLauncher, pointer
from ..operands import VECTOR, vector
from ..plan import ALIGNMENT, name

THREADS = 256
MOST_OUTER = 65535  # CTAs along the second dimension of a grid


def total(scores: Tensor, own: Tensor, factor: float, arch: str, stream: int) -> bool:
    """own = factor · the sum of scores [B, H, M, N] over batches or heads of which `own` has one.
    False where it is left to torch: rows or columns are summed too, or something lies apart."""
    outer, count, inner = _divided(scores.shape, own.shape)
    tensors = (scores, own)
    lies = all(x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0 for x in tensors)
    if not (count and inner and lies) or inner % VECTOR or outer > MOST_OUTER:
        return False
    made = _summation(name(scores.dtype), name(own.dtype), factor, arch)
    words = (scores.data_ptr(), own.data_ptr(), inner // VECTOR, count, outer, stream)
    made(*words)
    return True


def _divided(whole: torch.Size, own: torch.Size) -> tuple[int, int, int]:
    """(outer, summed, inner) extents; (0, 0, 0) where rows or columns are summed."""
    batch, heads, rows, cols = whole
    inner = rows * cols
    if own[2:] != whole[2:]:
        return 0, 0, 0
    if own[:2] == whole[:2]:
        return 1, 1, batch * heads * inner
    if own[1] == heads:
        return 1, batch, heads * inner
    return (batch, heads, inner) if own[0] == batch else (1, batch * heads, inner)


class Summation:
    """target[o, i] = factor · sum of source[o, :, i], i counted in vectors."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @cute.jit
    def __call__(self, source, target, inner: Int64, count: Int32, outer: Int32, stream):
        ctas = Int32((inner + (THREADS - 1)) // THREADS)
        self.kernel(source, target, inner, count).launch(
            grid=(ctas, outer, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, inner, count):
        cta, outer, _ = cute.arch.block_idx()
        own = Int64(cta) * THREADS + cute.arch.thread_idx()[0]
        if own < inner:
            first = source + (Int64(outer) * count * inner + own) * VECTOR
            sums = cute.make_rmem_tensor(VECTOR, Float32)
            sums.fill(0.0)
            for i in cutlass.range(count, unroll=4):
                found = cute.make_rmem_tensor(VECTOR, source.dtype)
                cute.autovec_copy(vector(first + i * inner * VECTOR), found)
                sums.store(sums.load() + found.load().to(Float32))
            narrow = cute.make_rmem_tensor(VECTOR, target.dtype)
            narrow.store((sums.load() * self.factor).to(target.dtype))
            cute.autovec_copy(narrow, vector(target + (Int64(outer) * inner + own) * VECTOR))


def compiled(source: str, target: str, factor: float, arch: str) -> Any:
    """For scores and sums of these dtypes. Needs no GPU."""
    pointers = (pointer(source, ALIGNMENT), pointer(target, ALIGNMENT))
    counts = (Int64(1), Int32(1), Int32(1), cuda.CUstream(0))
    return cute.compile(Summation(factor), *pointers, *counts, options=f"--gpu-arch={arch}")


@functools.cache
def _summation(source: str, target: str, factor: float, arch: str) -> WordLauncher:
    given = (source, target, factor, arch)
    return WordLauncher(disk.kept(lambda: compiled(*given), "total", *given), 6)
