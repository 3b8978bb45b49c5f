"""Compile kernels of CuTe DSL. Importing this module imports cutlass, which takes seconds."""

from collections.abc import Sequence
from typing import Any

import cuda.bindings.driver as cuda
import torch
from cutlass import Int32, Int64, cute

from .backward.roots import table_keys
from .config import LETTERS, KernelConfig, TableKey, table_dtype
from .form import ALIGNMENT
from .launcher import SIZES, TOTALS
from .values import DTYPES


def compile_kernel(kernel, arguments: Sequence[Any], arch: str, more: str = ""):
    """The compiled kernel.

    Compiling needs no GPU, and reads nothing of the arguments but their types. more: Further
    options of the compiler.
    """
    return cute.compile(kernel, *arguments, options=f"--gpu-arch={arch} {more}".rstrip())


def pointer(dtype: str, align: int = 0, address: int = 16):
    """A pointer to global memory, for tracing. align: In bytes, by default that of the dtype."""
    align, gmem = align or getattr(torch, dtype).itemsize, cute.AddressSpace.gmem
    return cute.runtime.make_ptr(DTYPES[dtype], address, gmem, assumed_align=align)


def stream():
    return cuda.CUstream(0)


def example(config: KernelConfig) -> tuple[Any, ...]:
    """The arguments of `AttentionKernel` for tracing: the right types, but no data."""
    dtypes = [config.dtype] * 3 + config.matrices
    jagged = (config.jagged_q, config.jagged_k)
    keys = config.page_dtype if config.page else config.offsets
    return (
        tuple(pointer(dtype, ALIGNMENT) for dtype in dtypes),
        tuple(Int32(1) for _ in range(SIZES + TOTALS + 1)),
        tuple(tuple(Int64(8) for _ in range(3)) for _ in dtypes),
        pointer(config.offsets) if config.jagged_q else None,
        pointer(keys) if config.jagged_k or config.page else None,
        pointer("int64") if any(jagged) else None,
        aux_operands(config, table_keys(config)) or None,
        tuple(Int64(0) for _ in range(config.mod.num_scalars)) or None,
        Int32(1),
        stream(),
    )


def aux_operands(config: KernelConfig, tables: Sequence[TableKey] = ()) -> tuple[Any, ...]:
    """Aux operands and tables of bounds for tracing, as in `KernelArguments`."""
    bounds = [table_dtype(config.mod.aux[x].kind, config.aux[x]) for x, _ in tables]
    return tuple(
        (pointer(dtype), tuple(Int64(0) for _ in LETTERS)) for dtype in (*config.aux, *bounds)
    )
