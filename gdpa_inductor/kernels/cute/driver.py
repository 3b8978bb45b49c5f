"""The CUDA driver, without a package that binds it."""

import ctypes
import functools


@functools.cache
def driver() -> ctypes.CDLL:
    """OSError where there is none."""
    loaded = ctypes.CDLL("libcuda.so.1")
    # Address, word, how many, stream.
    given = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p)
    loaded.cuMemsetD32Async.argtypes = given
    return loaded


def newest_cuda() -> int | None:
    """The major number of the newest CUDA that the driver runs; None without a driver."""
    version = ctypes.c_int()
    try:
        driver().cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return version.value // 1000
