"""Sums of the stored gradients of scores over batches, heads or both, in one order.

This is bound by memory, of which torch.sum uses about half. Each thread adds up 8 neighbouring
scores.
"""

import functools
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import torch
from cutlass import Float32, Int32, Int64, const_expr, cute
from torch import Tensor

from .. import disk
from ..launcher import WordLauncher, pointer
from ..operands import VECTOR, vector
from ..plan import ALIGNMENT, name, off_alignment
from ..replay import Record

THREADS = 256
MOST_OUTER = 65535  # CTAs along the second dimension of a grid
MOST_APART = 1 << 31  # vectors, where rows of them are counted in 32 bits


def total(
    scores: Tensor, own: Tensor, factor: float, arch: str, stream: int, record: Record | None = None
) -> bool:
    """own = factor · the sum of scores [B, H, M, N] over batches or heads of which `own` has one.
    Its rows may lie apart, all alike. False where it is left to torch: rows or columns are summed
    too, or something lies otherwise."""
    outer, count, inner = _divided(scores.shape, own.shape)
    step, width = _step(own), own.shape[-1]
    lies = scores.is_contiguous() and step % VECTOR == 0 < step
    lies = lies and not off_alignment((scores.data_ptr(), own.data_ptr()))
    if not (count and inner and lies) or width % VECTOR or outer > MOST_OUTER:
        return False
    apart = step != width
    if apart and (outer > 1 or inner // VECTOR >= MOST_APART):
        return False
    made = _summation(name(scores.dtype), name(own.dtype), factor, arch, apart)
    addresses = (scores.data_ptr(), own.data_ptr())
    rows = (width // VECTOR, step // VECTOR) if apart else (1, 1)
    numbers = (inner // VECTOR, count, outer, *rows)
    made(*addresses, *numbers, stream)
    if record is not None:
        record.summed(made, addresses, *numbers)
    return True


def _step(own: Tensor) -> int:
    """From row to row, the same for all of them; 0 if it is not."""
    if own.is_contiguous():
        return own.shape[-1]
    rows, step = 1, own.stride(-2)
    for size, stride in zip(own.shape[-2::-1], own.stride()[-2::-1], strict=True):
        if size > 1 and stride != rows * step:
            return 0
        rows *= size
    return step if own.stride(-1) == 1 else 0


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
    """target[o, i] = factor · sum of source[o, :, i], i counted in vectors. apart: o is 0, and rows
    of the target, of `width` vectors, begin `step` vectors apart."""

    def __init__(self, factor: float, apart: bool = False) -> None:
        self.factor, self.apart = factor, apart

    @cute.jit
    def __call__(
        self, source, target, inner: Int64, count: Int32, outer: Int32, width: Int32, step: Int64,
        stream,
    ):  # fmt: skip
        ctas = Int32((inner + (THREADS - 1)) // THREADS)
        self.kernel(source, target, inner, count, width, step).launch(
            grid=(ctas, outer, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, inner, count, width, step):
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
            place = Int64(outer) * inner + own
            if const_expr(self.apart):
                row = Int32(own) // width
                place = row * step + (Int32(own) - row * width)
            cute.autovec_copy(narrow, vector(target + place * VECTOR))


def compiled(source: str, target: str, factor: float, arch: str, apart: bool = False) -> Any:
    """For scores and sums of these dtypes. Needs no GPU."""
    pointers = (pointer(source, ALIGNMENT), pointer(target, ALIGNMENT))
    counts = (Int64(1), Int32(1), Int32(1), Int32(1), Int64(1), cuda.CUstream(0))
    return cute.compile(Summation(factor, apart), *pointers, *counts, options=f"--gpu-arch={arch}")


@functools.cache
def _summation(source: str, target: str, factor: float, arch: str, apart: bool) -> WordLauncher:
    given = (source, target, factor, arch, apart)
    return WordLauncher(disk.kept(lambda: compiled(*given), "total", *given), 8)
