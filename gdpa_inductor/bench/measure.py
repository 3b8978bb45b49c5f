"""Time and extra memory of a call, on a GPU or a CPU, by the same two functions.

In: a callable without arguments and a device string. Out: milliseconds (median), bytes (peak above
what was held before the call). Nothing here knows what is being measured.
"""

import ctypes
import ctypes.util
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

Call = Callable[[], object]

# glibc's mallopt parameter numbers (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED_FROM = 256 * 1024


def median_ms(call: Call, device: str, seconds: float = 0.5, warmup: int = 2) -> float:
    """Median milliseconds of one call. On a GPU by do_bench, which flushes L2 in between."""
    if device == "cuda":
        from triton.testing import do_bench

        rep = int(seconds * 1000)
        return float(do_bench(call, warmup=rep // 4, rep=rep, return_mode="median"))
    for _ in range(warmup):
        call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def peak_extra_bytes(call: Call, device: str) -> int | None:
    """The most memory held during one call beyond that held before it; None where it is unknown.

    On a GPU what torch's allocator says; on a CPU the growth of the resident set, which is only to
    be had on Linux. The call should have run before, so that compiling is not counted.
    """
    if device == "cuda":
        return _cuda_peak(call)
    if not Path("/proc/self/clear_refs").exists():
        return None
    return _resident_peak(call)


def _cuda_peak(call: Call) -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _resident_peak(call: Call) -> int | None:
    _return_freed_memory()
    call()
    gc.collect()
    _return_freed_memory()
    try:
        # Sets the high-water mark back to what is resident now (proc(5)).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _status_bytes("VmRSS")
    call()
    return max(_status_bytes("VmHWM") - before, 0)


def _return_freed_memory() -> None:
    """Makes glibc give freed blocks back, or a second call would seem to need none."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
        libc.mallopt(_M_TRIM_THRESHOLD, _MAPPED_FROM)
        libc.malloc_trim(0)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
