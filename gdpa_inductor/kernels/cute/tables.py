"""Sum the gradient of a look-up in a learned table, in a fixed order: `sums`.

Each thread adds to a table of its own in shared memory, so no addition waits for another one. Then
the CTA sums the tables of its threads, and torch sums those of the CTAs. The time is that of
reading the gradients and the index once, wherever the index points.
"""

import functools
from collections.abc import Hashable

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty
from ...operands import dtype_name
from . import precompile
from .architectures import config_of
from .config import SHARED_MEMORY, VECTOR
from .form import off_alignment
from .launch import multiprocessors
from .launcher import WordLauncher, word_launcher

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ROWS = 2048  # that a CTA loads at once
THREADS = (128, 64)  # of a CTA; the most whose tables fit
WORDS = SHARED_MEMORY // 4
RESERVED = 1024  # bytes of shared memory that the hardware keeps for each CTA
MOST_THREADS = 1024  # of all CTAs on a multiprocessor; more gain nothing
MOST_COLUMNS = 65535  # the most CTAs along the second dim of a grid
MOST = WORDS // THREADS[-1] - 1  # elements of a table; one more place takes what is left out


def sums(
    grad: Tensor, index: Tensor, size: int, *, parts: int = 0, stream: int | None = None
) -> Tensor:
    """The sums [W, size] in fp32 of gradients [W, R]: result[w, i] is that of index[r] = i.

    Both operands are contiguous, on the current device. The index is int32 or int64, and negative
    places count from the end. Terms of places past an end are left out.

    Args:
        parts: Among how many CTAs the rows are divided. By default `parts_for` says.
        stream: A handle of the current CUDA stream, if the caller has it.
    """
    columns, rows = grad.shape
    if not (rows and columns):
        return grad.new_zeros((columns, size), dtype=torch.float32)
    parts = parts or parts_for(size, columns, rows, grad.device)
    partial = empty((parts, columns, size), torch.float32, grad.device)
    addresses = (grad.data_ptr(), index.data_ptr())
    width = VECTOR if rows % VECTOR == 0 and not off_alignment(addresses) else 1
    height = -(-rows // (parts * width)) * width
    run = _launcher(grad.dtype, index.dtype, size, width, grad.device)
    stream = current_stream(grad.device.index) if stream is None else stream
    run(*addresses, partial.data_ptr(), rows, height, parts, columns, stream)
    return partial.sum(0)


def parts_for(size: int, columns: int, rows: int, device: torch.device) -> int:
    """Among how many CTAs to divide the rows, so that with all columns they fill the GPU once."""
    threads = threads_for(size)
    each = (size + 1) * threads * 4 + RESERVED
    resident = max(1, min(SHARED_MEMORY // each, MOST_THREADS // threads))
    filled = multiprocessors(device) * resident // max(columns, 1)
    return max(1, min(filled, -(-rows // ROWS)))


def threads_for(size: int) -> int:
    return next(count for count in THREADS if (size + 1) * count <= WORDS)


def _kernel(
    grad: torch.dtype, index: torch.dtype, size: int, width: int, device: torch.device
) -> tuple[Hashable, ...]:
    config = config_of(device)
    assert config  # else the lowering has not chosen the kernel
    return dtype_name(grad), dtype_name(index), size, threads_for(size), ROWS, width, config.arch


@functools.cache
def _launcher(
    grad: torch.dtype, index: torch.dtype, size: int, width: int, device: torch.device
) -> WordLauncher:
    return word_launcher("table_sums", 8, *_kernel(grad, index, size, width, device))


def precompile_sums(grad: torch.dtype, index: torch.dtype, size: int, device: torch.device) -> None:
    """Have a worker compile the kernel for operands that lie as most do."""
    precompile.table(*_kernel(grad, index, size, VECTOR, device))
