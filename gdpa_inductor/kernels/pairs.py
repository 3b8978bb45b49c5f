"""What belongs to the backward in one kernel, whose programs own whole (sequence, head) pairs: when
it is the faster one, and in which order the pairs are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 128  # of dQ that are brought from fp32 sums to the output at once


@dataclass(frozen=True)
class Alone:
    """Where one program for a pair is faster than programs for its tiles.

    capability, itemsize (bytes), head_dim (rounded up to a power of two): what it was measured on.
    longest: rows of a sequence, at most. pairs: of the greatest length, for each multiprocessor, at
    least; with fewer the last ones leave too many of them idle. skips: for programs whose masks
    leave tiles of rows out.
    """

    capability: int
    itemsize: int
    head_dim: int
    longest: int
    pairs: int
    skips: bool = False


# Measured on an H200 (torch 2.11, Triton 3.6), tanh-gelu, 1152 sequences of 4 heads, the loop as a
# kernel of its own against "rows" and "keys": 19% more FLOP/s at 256 rows and keys, 9% at lengths
# up to 512 and up to 1024, 4% at 1024, none up to 2048. Where masks leave tiles out it gains
# nothing.
ALONE = (Alone(capability=90, itemsize=2, head_dim=128, longest=1024, pairs=3),)


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
