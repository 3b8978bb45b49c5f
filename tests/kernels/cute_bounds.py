"""Memory for tables of bounds, on the emulator."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gdpa_inductor.kernels.cute import bounds

from .cute_memory import Memory

BYTES = 1 << 18


@contextmanager
def tables() -> Iterator[Memory]:
    """All tables lie in one tensor. Their kernels are compiled anew, to be recorded."""
    room = Memory(BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "empty", room.empty)
        bounds._bounding.cache_clear()
        yield room
        bounds._bounding.cache_clear()
