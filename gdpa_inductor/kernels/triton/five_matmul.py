"""The five-matmul backward: when it is faster, and the order in which CTAs take sequences.

It is one kernel. A CTA owns a whole head of a sequence, and computes S and dP once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 128  # how many rows of dQ are converted from fp32 sums to the output at once


@dataclass(frozen=True)
class FiveMatmul:
    """A case in which one CTA for a (sequence, head) is faster than CTAs for its tiles."""

    # capability, itemsize: the GPU, and the bytes of an element, for which it was measured
    capability: int
    itemsize: int
    head_dim: int  # the same, rounded up to a power of two
    # rows, keys: the most queries and keys of a sequence
    rows: int
    keys: int
    # The fewest (sequence, head) of greatest length for each multiprocessor. With fewer, the last
    # ones leave too many multiprocessors idle.
    units: int


# Measured on an H200 (torch 2.11, Triton 3.6), tanh-gelu, 1152 sequences of 4 heads, beside "rows"
# and "keys" with one configuration each. 18% more FLOP/s at 256 rows and keys, 7% at lengths up to
# 512, none up to 1024, 3 to 4% less at 1024; 8 and 9% more at 1024 and 2048 rows over 256 keys.
# Where masks leave tiles out it loses 8 to 16%.
FIVE_MATMUL = (FiveMatmul(capability=90, itemsize=2, head_dim=128, rows=2048, keys=512, units=3),)


def turns(work: Tensor, few: bool) -> Tensor:
    """The numbers of the sequences, int32 [B], those with most work first. The order is stable.

    work: Integers, [B]. few: Sort by counting, with B² comparisons in two small kernels. Otherwise
    the order is unchanged.
    """
    number = torch.arange(work.shape[0], device=work.device)
    if not few:
        return number.to(torch.int32)
    more = work > work[:, None]
    rank = (more | ((work == work[:, None]) & (number < number[:, None]))).sum(1)
    return torch.where(rank == number[:, None], number, -1).amax(1).to(torch.int32)
