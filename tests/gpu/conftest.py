"""What every test on a card leaves behind: no memory, as several processes share one card."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def no_cached_memory() -> Iterator[None]:
    """A test of offsets beyond 2³¹ takes 48 GiB, which torch's allocator would keep."""
    yield
    torch.cuda.empty_cache()  # does nothing before CUDA is in use
