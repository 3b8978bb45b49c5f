"""The CUDA driver, without a package that binds it."""

import ctypes
import functools


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
    version = ctypes.c_int()
    try:
        driver().cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return version.value // 1000
