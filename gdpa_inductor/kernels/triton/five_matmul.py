"""The backward in one kernel of five matmuls, whose CTAs own whole heads of a sequence.

When it is the faster one, and in which order the sequences are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 128  # of dQ that are brought from fp32 sums to the output at once


@dataclass(frozen=True)
class FiveMatmul:
    """Where one CTA for a (sequence, head) is faster than CTAs for its tiles.

    capability, itemsize (bytes), head_dim (rounded up to a power of two): what it was measured on.
    rows, keys: of a sequence, at most. units: (sequence, head)s of the greatest length for each
    multiprocessor, at least; with fewer the last ones leave too many of them idle.
    """

    capability: int
    itemsize: int
    head_dim: int
    rows: int
    keys: int
    units: int


# Measured on an H200 (torch 2.11, Triton 3.6), tanh-gelu, 1152 sequences of 4 heads, beside "rows"
# and "keys" with one configuration each. 18% more FLOP/s at 256 rows and keys, 7% at lengths up to
# 512, none up to 1024, 3 to 4% less at 1024; 8 and 9% more at 1024 and 2048 rows over 256 keys.
# Where masks leave tiles out it loses 8 to 16%.
FIVE_MATMUL = (FiveMatmul(capability=90, itemsize=2, head_dim=128, rows=2048, keys=512, units=3),)


def turns(work: Tensor, few: bool) -> Tensor:
    """[B] int32: the sequences, those with most work first; of equal ones the first comes first.

    work [B]: integers. few: place them by counting, B² comparisons in two small kernels; else they
    stay as they are.
    """
    number = torch.arange(work.shape[0], device=work.device)
    if not few:
        return number.to(torch.int32)
    more = work > work[:, None]
    rank = (more | ((work == work[:, None]) & (number < number[:, None]))).sum(1)
    return torch.where(rank == number[:, None], number, -1).amax(1).to(torch.int32)
