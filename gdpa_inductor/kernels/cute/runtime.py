"""Load and launch compiled kernels, by the runtime library of CuTe DSL.

A compiled kernel is an object file. The library has a C interface (CuteDSLRuntime.h), so a process
that compiles nothing does not import cutlass. That import takes about a second.

Where a kernel adds to memory, the CUDA driver writes the zeros. A launch of torch's own kernel
takes the CPU several times as long.
"""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._compat.shapes import dense_strides

NAME = "libcute_dsl_runtime.so"
SETTING = "CUTE_DSL_LIBS"  # environment variable: paths that replace the package's library
PREFIX = "gdpa"  # the prefix of the symbols in an object file


def exported(compiled: Any) -> bytes:
    """Host code calls functions of the library. The compiler finds them only if it is loaded."""
    library()
    content: bytes = compiled.dump_to_object(PREFIX)
    return content


class Kernel:
    """A kernel from the content of an object file. It stays loaded, for all devices."""

    def __init__(self, content: bytes) -> None:
        self.library, self.function, module = library(), ctypes.c_void_p(), ctypes.c_void_p()
        size, none = ctypes.c_size_t(len(content)), ctypes.c_size_t(0)
        create, find = (
            self.library.CuteDSLRT_Module_Create_From_Bytes,
            self.library.CuteDSLRT_Module_Get_Function,
        )
        self._check(create(ctypes.byref(module), content, size, None, none))
        self._check(find(ctypes.byref(self.function), module, PREFIX.encode()))

    def _check(self, error: int) -> None:
        if error:
            text = self.library.CuteDSLRT_GetErrorString(error).decode()
            raise RuntimeError(f"a CuTe kernel cannot be loaded: {text}")

    def at(self, places: Sequence[int]) -> Callable[[], None]:
        """A function that launches the kernel. It reads each argument at one of `places`."""
        result, count = ctypes.c_int32(), len(places) + 1
        addresses = (ctypes.c_void_p * count)(*places, ctypes.addressof(result))
        run = functools.partial(
            self.library.CuteDSLRT_Function_Run, self.function, addresses, ctypes.c_size_t(count)
        )

        def launch() -> None:
            if run():
                raise RuntimeError(f"the launch of a CuTe kernel failed: CUDA error {result.value}")

        return launch


def library() -> ctypes.CDLL:
    """The runtime library. Its symbols are visible to all other libraries (RTLD_GLOBAL)."""
    return _loaded(_path())


@functools.cache
def _loaded(path: str) -> ctypes.CDLL:
    runtime = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    runtime.CuteDSLRT_GetErrorString.restype = ctypes.c_char_p
    return runtime


def _path() -> str:
    """The path of the library, chosen as CuTe DSL does: for the newest CUDA of the driver."""
    for path in os.environ.get(SETTING, "").split(os.pathsep):
        if path.endswith(NAME):
            return path
    spec = importlib.util.find_spec("cutlass")
    if spec is None or spec.origin is None:
        raise RuntimeError("CuTe DSL is not installed")
    package, newest = Path(spec.origin).resolve().parents[2], newest_cuda()
    by_cuda = {int(x.parts[-3][2:]): x for x in package.glob(f"cu*/lib/{NAME}")}
    usable = [major for major in by_cuda if newest is None or major <= newest]
    if not usable:
        raise RuntimeError(f"no {NAME} in {package} is for CUDA {newest}")
    return str(by_cuda[max(usable)])


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver's library. Raises OSError if there is no driver."""
    loaded = ctypes.CDLL("libcuda.so.1")
    # Address, 32-bit word, number of words, stream.
    types = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p)
    loaded.cuMemsetD32Async.argtypes = types
    return loaded


def newest_cuda() -> int | None:
    """The major version of the newest CUDA that the driver supports, or None without a driver."""
    version = driver_version()
    return version // 1000 if version else None


def driver_version() -> int:
    """The newest CUDA that the driver supports, such as 13010, or 0 without a driver."""
    version = ctypes.c_int()
    try:
        driver().cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value


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
