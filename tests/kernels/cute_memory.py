"""Memory that calls ask for, on the emulator."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.cute import bounds
from gdpa_inductor.kernels.cute.launcher import word_launcher


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


# Of kernels that were compiled while they were recorded; those of elsewhere were not.
_recorded_launcher = functools.cache(word_launcher.__wrapped__)


@contextmanager
def tables() -> Iterator[Memory]:
    """All tables of bounds lie in one tensor. For calls that are recorded."""
    room = Memory(1 << 18)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "empty", room.empty)
        patch.setattr(bounds, "word_launcher", _recorded_launcher)
        yield room
