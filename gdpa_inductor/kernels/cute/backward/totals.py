"""Sum the stored gradients of scores over batches, heads or both, in a fixed order.

The sum is bound by memory bandwidth, of which torch.sum uses about half. Each thread computes 8
neighbouring columns.
"""

import torch
from torch import Tensor

from ..config import VECTOR
from ..form import off_alignment
from ..launcher import word_launcher
from ..plan import name
from ..replay import Record

MOST_OUTER = 65535  # the most CTAs along the second dim of a grid
MOST_APART = 1 << 31  # vectors; `Summation` with `apart` counts them in 32 bits


def total(
    scores: Tensor, own: Tensor, factor: float, arch: str, stream: int, record: Record | None = None
) -> bool:
    """own = factor · the sum of scores [B, H, M, N] over the dims in which `own` has size 1.

    Returns False, and does nothing, if torch has to sum: rows or columns are summed too, or the
    layout does not fit. The rows of `own` may have gaps between them, all of the same size.

    record: Gets the launch, so that the call can be replayed.
    """
    outer, count, inner = _divided(scores.shape, own.shape)
    step, width = _step(own), own.shape[-1]
    lies = scores.is_contiguous() and step % VECTOR == 0 < step
    lies = lies and not off_alignment((scores.data_ptr(), own.data_ptr()))
    if not (count and inner and lies) or width % VECTOR or outer > MOST_OUTER:
        return False
    apart = step != width
    if apart and (outer > 1 or inner // VECTOR >= MOST_APART):
        return False
    dtypes = (name(scores.dtype), name(own.dtype))
    launcher = word_launcher("backward.summation", 8, *dtypes, factor, arch, apart)
    addresses = (scores.data_ptr(), own.data_ptr())
    rows = (width // VECTOR, step // VECTOR) if apart else (1, 1)
    numbers = (inner // VECTOR, count, outer, *rows)
    launcher(*addresses, *numbers, stream)
    if record is not None:
        record.add_sum(launcher, addresses, *numbers)
    return True


def _step(own: Tensor) -> int:
    # The stride from row to row, if it is the same for all rows; else 0.
    if own.is_contiguous():
        return own.shape[-1]
    rows, step = 1, own.stride(-2)
    for size, stride in zip(own.shape[-2::-1], own.stride()[-2::-1], strict=True):
        if size > 1 and stride != rows * step:
            return 0
        rows *= size
    return step if own.stride(-1) == 1 else 0


def _divided(whole: torch.Size, own: torch.Size) -> tuple[int, int, int]:
    # The sizes (outer, summed, inner), or (0, 0, 0) if rows or columns are summed.
    batch, heads, rows, cols = whole
    inner = rows * cols
    if own[2:] != whole[2:]:
        return 0, 0, 0
    if own[:2] == whole[:2]:
        return 1, 1, batch * heads * inner
    if own[1] == heads:
        return 1, batch, heads * inner
    return (batch, heads, inner) if own[0] == batch else (1, batch * heads, inner)
