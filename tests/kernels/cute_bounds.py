"""Memory for tables of bounds, on the emulator."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from gdpa_inductor.kernels.cute import bounds

BYTES = 1 << 16


class Room:
    """What calls ask for, from one tensor. A run that begins sets `used` to 0."""

    def __init__(self) -> None:
        self.bytes, self.used = torch.empty(BYTES, dtype=torch.uint8), 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        first, self.used = self.used, self.used + -(-size // 16) * 16
        assert self.used <= BYTES
        return self.bytes[first : first + size].fill_(255).view(dtype).view(tuple(shape))


@contextmanager
def tables() -> Iterator[Room]:
    """All tables lie in one tensor. Their kernels are compiled anew, to be recorded."""
    room = Room()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "empty", room.empty)
        bounds._bounding.cache_clear()
        yield room
        bounds._bounding.cache_clear()
