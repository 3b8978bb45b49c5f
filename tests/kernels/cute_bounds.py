"""Memory for tables of bounds, on the emulator."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gdpa_inductor.kernels.cute import bounds
from gdpa_inductor.kernels.cute.launcher import word_launcher

from .cute_memory import Memory

BYTES = 1 << 18


@contextmanager
def tables() -> Iterator[Memory]:
    """All tables lie in one tensor. Their kernels are compiled anew, to be recorded."""
    room = Memory(BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "empty", room.empty)
        word_launcher.cache_clear()
        yield room
        word_launcher.cache_clear()
