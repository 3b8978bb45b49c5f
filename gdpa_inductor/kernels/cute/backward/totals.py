"""Sums of the stored gradients of scores over batches, heads or both, in one order.

This is bound by memory, of which torch.sum uses about half. Each thread adds up 8 neighbouring
scores.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from .. import disk
from ..config import VECTOR
from ..launcher import WordLauncher
from ..plan import name, off_alignment
from ..replay import Record
from ..runtime import Kernel

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


@functools.cache
def _summation(source: str, target: str, factor: float, arch: str, apart: bool) -> WordLauncher:
    given = (source, target, factor, arch, apart)

    def compiled() -> Any:
        from . import summation

        return summation.compiled(*given)

    return WordLauncher(Kernel(disk.kept(compiled, "total", *given)), 8)
