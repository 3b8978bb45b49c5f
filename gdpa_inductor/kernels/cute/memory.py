"""Memory for results, with zeros where a kernel adds to it.

The CUDA driver writes the zeros. A launch of torch's own kernel takes the CPU several times as
long.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..._compat.shapes import dense_strides
from .runtime import driver


def for_gradient(operand: Tensor, empty: Callable[..., Tensor]) -> Tensor:
    """Memory for the gradient of query, key or value, with its dims in the operand's order."""
    size, dims = _memory_order(tuple(operand.shape), operand.stride())
    return empty(size, operand.dtype, operand.device).permute(dims)


@functools.lru_cache(1024)
def _memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    dense = dense_strides(torch.empty_strided(shape, strides, device="meta"))
    order = sorted(range(len(shape)), key=lambda d: (-dense[d], d))
    return tuple(shape[d] for d in order), tuple(map(order.index, range(len(order))))


def is_dense(room: Tensor) -> bool:
    """The tensor owns all bytes from its first element to its last."""
    steps = sum((size - 1) * step for size, step in zip(room.shape, room.stride(), strict=True))
    return room.numel() == 0 or steps + 1 == room.numel()


def cleared(room: Tensor, stream: int) -> Tensor:
    if room.device.type != "cuda" or not is_dense(room):
        return room.zero_()
    clear(room.data_ptr(), room.numel(), stream)
    return room


def clear(address: int, words: int, stream: int) -> None:
    """Set `words` words of 32 bits to zero, from an address on, in stream order."""
    if error := driver().cuMemsetD32Async(address, 0, words, stream):
        raise RuntimeError(f"cuMemsetD32Async: CUDA error {error}")
