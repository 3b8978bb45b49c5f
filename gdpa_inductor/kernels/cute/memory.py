"""Memory for results. What begins as zeros is cleared by the driver: to launch a kernel of torch's
takes the CPU several times as long."""

from collections.abc import Callable

from torch import Tensor

from ..._compat.shapes import dense_strides
from .driver import driver


def for_gradient(operand: Tensor, empty: Callable[..., Tensor]) -> Tensor:
    """Of query, key or value: it lies as the operand does. empty: makes contiguous memory."""
    strides, shape = dense_strides(operand), operand.shape
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))
    room = empty([shape[d] for d in order], operand.dtype, operand.device)
    return room.permute([order.index(d) for d in range(len(order))])


def is_dense(room: Tensor) -> bool:
    """It has all bytes from its first element to its last."""
    steps = sum((size - 1) * step for size, step in zip(room.shape, room.stride(), strict=True))
    return room.numel() == 0 or steps + 1 == room.numel()


def cleared(room: Tensor, stream: int) -> Tensor:
    """The tensor, of 32-bit numbers, with zeros."""
    if room.device.type != "cuda" or not is_dense(room):
        return room.zero_()
    clear(room.data_ptr(), room.numel(), stream)
    return room


def clear(address: int, words: int, stream: int) -> None:
    """Words of 32 bits, from an address on, in the order of the stream."""
    if error := driver().cuMemsetD32Async(address, 0, words, stream):
        raise RuntimeError(f"cuMemsetD32Async: CUDA error {error}")
