"""The current CUDA stream, as the code that Inductor generates asks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable


@functools.cache
def _asks() -> Callable[[int], int]:
    # Also on builds without CUDA, unlike the function of torch._C that it is.
    from torch._dynamo.device_interface import CudaInterface

    return CudaInterface.get_raw_stream


def current_stream(device: int) -> int:
    """The handle of the current stream of a CUDA device. `torch.cuda.current_stream` makes an
    object for it, which takes microseconds.
    """
    return _asks()(device)
