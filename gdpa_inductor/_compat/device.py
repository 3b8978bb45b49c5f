"""The current CUDA stream, and allocation of memory, by the functions that generated code uses.

torch's public functions for these take microseconds more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .shapes import contiguous_strides


@functools.cache
def _asks() -> Callable[[int], int]:
    # Also on builds without CUDA, unlike the function of torch._C that it is.
    from torch._dynamo.device_interface import CudaInterface

    return CudaInterface.get_raw_stream


def current_stream(device: int) -> int:
    """The handle of the current stream of a CUDA device."""
    return _asks()(device)


def empty(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Contiguous. A CUDA device has to be the current one."""
    if device.type != "cuda":
        return torch.empty(size, dtype=dtype, device=device)
    size = tuple(size)  # no torch.Size
    return empty_strided(size, _contiguous(size), dtype)


def empty_strided(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """On the current CUDA device."""
    guards: Any = torch._C._dynamo.guards
    tensor: Tensor = guards._empty_strided_cuda(size, strides, dtype)
    return tensor


_contiguous = functools.lru_cache(1024)(contiguous_strides)
