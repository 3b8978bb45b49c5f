"""Compile a configuration, check arguments, launch. Host side only; tensors are torch tensors.

Kernels take raw pointers, sizes and strides, so that compiling needs no tensors and no GPU, and a
launch no DLPack.
"""

import functools
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64, cute

from .config import Config
from .forward import Forward
from .program import DTYPES, LETTERS

SIZES, MATRICES = 8, 4


def pointer(dtype: str, address: int, align: int = 16) -> Any:
    return cute.runtime.make_ptr(
        DTYPES[dtype], address, cute.AddressSpace.gmem, assumed_align=align
    )


def example(config: Config) -> tuple[Any, ...]:
    """Arguments of the right types for tracing; nothing is read from them."""
    of, offsets = config.dtype, config.offsets
    element = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bool": 1, "uint8": 1, "int8": 1}
    return (
        tuple(pointer(of, 16) for _ in range(MATRICES)),
        tuple(Int32(1) for _ in range(SIZES)),
        tuple(tuple(Int64(8) for _ in range(3)) for _ in range(MATRICES)),
        pointer(offsets, 16, 4) if config.jagged_q else None,
        pointer(offsets, 16, 4) if config.jagged_k else None,
        pointer("int32", 16, 4) if config.jagged_q or config.jagged_k else None,
        tuple(
            (pointer(name, 16, element.get(name, 2)), tuple(Int64(0) for _ in LETTERS))
            for name in config.aux
        )
        or None,
        tuple(Int64(0) for _ in range(config.mod.num_scalars)) or None,
        Int32(1),
        cuda.CUstream(0),
    )


@functools.cache
def compile(config: Config, options: str = "--gpu-arch=sm_100a") -> Any:
    return cute.compile(Forward(config), *example(config), options=options)


def launch(
    compiled: Any,
    config: Config,
    tensors: tuple[Any, ...],
    out: Any,
    aux: tuple[Any, ...] = (),
    scalars: tuple[int, ...] = (),
    cu_q: Any = None,
    cu_k: Any = None,
    order: Any = None,
    most: tuple[int, int] = (0, 0),
    ctas: int = 148,
    stream: int = 0,
) -> None:
    """Run the forward into `out`. tensors: query, key, value, dense [B|1, H, N, D] or packed [L, H, D].
    aux: one view per operand over (b, h, n, m, q, k), strides 0 where it does not vary. most: upper
    bounds of the lengths of packed sides."""
    query, key, value = tensors
    matrices = (query, key, value, out)
    batch = max(
        [cu.numel() - 1 for cu in (cu_q, cu_k) if cu is not None] or [t.shape[0] for t in tensors]
    )
    rows = most[0] if config.jagged_q else query.shape[2]
    cols = most[1] if config.jagged_k else key.shape[2]
    heads = [t.shape[1] for t in tensors]
    sizes = (batch, *heads, rows, cols, query.shape[-3] if config.jagged_q else rows,
             key.shape[-3] if config.jagged_k else cols)  # fmt: skip
    compiled(
        tuple(pointer(config.dtype, t.data_ptr()) for t in matrices),
        tuple(Int32(int(x)) for x in sizes),
        tuple(tuple(Int64(s) for s in matrix_strides(t)) for t in matrices),
        *(
            None if x is None else pointer(str(x.dtype).removeprefix("torch."), x.data_ptr(), 4)
            for x in (cu_q, cu_k, order)
        ),
        tuple(
            (pointer(name, t.data_ptr(), t.element_size()), tuple(Int64(s) for s in t.stride()))
            for name, t in zip(config.aux, aux)
        )
        or None,
        tuple(Int64(x) for x in scalars) or None,
        Int32(ctas),
        cuda.CUstream(stream),
    )


def matrix_strides(tensor: Any) -> tuple[int, int, int]:
    """(batch, head, row). The stride of an extent of one may be anything, and TMA wants multiples of 16
    bytes."""
    strides = [8 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride())]
    if tensor.dim() == 3:
        return 8, strides[1], strides[0]
    return strides[0], strides[1], strides[2]
