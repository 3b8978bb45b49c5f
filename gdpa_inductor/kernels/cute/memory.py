"""Memory that begins as zeros. The driver clears it: to launch a kernel of torch's takes the CPU
several times as long."""

from collections.abc import Sequence

import cuda.bindings.driver as cuda
import torch
from torch import Tensor

from ..._compat.device import empty


def zeros(size: Sequence[int], device: torch.device, stream: int) -> Tensor:
    """int32, contiguous. A CUDA device has to be the current one."""
    made = empty(size, torch.int32, device)
    if device.type != "cuda":
        return made.zero_()
    clear(made.data_ptr(), made.numel(), stream)
    return made


def clear(address: int, words: int, stream: int) -> None:
    """Words of 32 bits, from an address on, in the order of the stream."""
    (error,) = cuda.cuMemsetD32Async(address, 0, words, stream)
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuMemsetD32Async: {error}")
