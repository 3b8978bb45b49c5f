"""The order in which CTAs take jagged sequences: the longest first. The device computes it.

For each sequence a warp counts the sequences that come before it (`ranking`). On an H200 that was
faster than a sort, both on the device and on the CPU.
"""

import torch
from torch import Tensor

from ..._compat.device import empty
from ...operands import Operands
from .config import KernelConfig
from .launcher import word_launcher
from .plan import name, offsets_of
from .replay import Record

MOST = 8192  # sequences; for more, a sort is faster


def longest_first(
    operands: Operands[Tensor], config: KernelConfig, stream: int, record: Record
) -> Tensor | None:
    """The numbers of the sequences, longest first, as int64 [B + 1]. None if both sides are dense.

    The last element is 0. It is the counter of the tiles that CTAs have taken (`forward/queue.py`).
    """
    offsets = offsets_of(operands)
    if offsets is None:
        return None
    batch = offsets.shape[0] - 1
    if not _is_ranked(offsets.device, batch):
        order = torch.argsort(offsets[1:] - offsets[:-1], descending=True, stable=True)
        return torch.nn.functional.pad(order, (0, 1))
    order = record.add_buffer(empty((batch + 1,), torch.int64, offsets.device))
    ranking = word_launcher("ranking", 4, name(offsets.dtype), config.arch)
    ranking(offsets.data_ptr(), order.data_ptr(), batch, stream)
    record.add_ranking(ranking, order, batch)
    return order


def _is_ranked(device: torch.device, batch: int) -> bool:
    # Whether the kernel of `ranking` computes the order, not a sort.
    return device.type == "cuda" and 0 < batch <= MOST
