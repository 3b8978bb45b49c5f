"""Memory that begins as zeros. The driver clears it: to launch a kernel of torch's takes the CPU
several times as long."""

from torch import Tensor

from .driver import driver


def cleared(room: Tensor, stream: int) -> Tensor:
    """The tensor, of 32-bit numbers, with zeros."""
    if room.device.type != "cuda" or not room.is_contiguous():
        return room.zero_()
    clear(room.data_ptr(), room.numel(), stream)
    return room


def clear(address: int, words: int, stream: int) -> None:
    """Words of 32 bits, from an address on, in the order of the stream."""
    if error := driver().cuMemsetD32Async(address, 0, words, stream):
        raise RuntimeError(f"cuMemsetD32Async: CUDA error {error}")
