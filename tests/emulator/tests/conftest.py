"""`emulate`: runs compiled CuTe kernels on the emulator; skips where CuTe DSL is not installed."""

from collections.abc import Callable

import pytest


@pytest.fixture
def emulate() -> Callable[..., object]:
    pytest.importorskip("cutlass")
    from tests.emulator import run

    return run
