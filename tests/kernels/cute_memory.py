"""Memory that calls ask for, on the emulator."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Memory:
    """What calls ask for, from one tensor, the same again in each run; at multiples of 256 bytes,
    as on a device."""

    def __init__(self, size: int) -> None:
        room = torch.zeros(size + 256, dtype=torch.uint8)
        self.bytes = room[-room.data_ptr() % 256 :][:size]
        self.used = 0

    def empty(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        count = torch.Size(size).numel()
        first, self.used = self.used, self.used + -(-count * dtype.itemsize // 256) * 256 + 256
        assert self.used <= len(self.bytes)
        result = self.bytes[first : first + count * dtype.itemsize].view(dtype).view(tuple(size))
        return result.fill_(float("nan") if dtype.is_floating_point else 1 << 20)
