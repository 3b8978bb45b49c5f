"""Time and peak memory of calls, with the same functions for a GPU and a CPU.

In: callables without arguments, and the type of a device. Out: milliseconds, and the bytes of the
peak above the memory held before the call. This module does not depend on what is measured.
"""

import ctypes
import ctypes.util
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

Call = Callable[[], object]

# glibc's mallopt parameter numbers (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The bytes from which a block has a mapping of its own: while memory is measured, and afterwards.
# glibc adapts this threshold itself, up to the second value. Once it is set by hand, glibc does not
# adapt it again. So the second value is set at the end.
_MEASURING, _USUAL = 256 * 1024, 32 * 1024 * 1024


def times_ms(
    calls: Mapping[str, Call], device: str, seconds: float = 0.5
) -> dict[str, list[float]]:
    """The milliseconds of each run of each call. A call runs for about `seconds`.

    On a GPU, Triton's do_bench measures. It flushes the L2 cache before each run. On a CPU the
    calls take turns, so that other work on the machine slows all of them equally.
    """
    if device == "cuda":
        from triton.testing import do_bench

        rep = int(seconds * 1000)
        options = {"warmup": rep // 4, "rep": rep, "return_mode": "all"}
        return {
            name: [float(ms) for ms in do_bench(call, **options)] for name, call in calls.items()
        }
    times: dict[str, list[float]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds * len(calls)
    for turn in itertools.count():
        if turn >= 7 and time.perf_counter() >= until:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    # The first two turns warm up caches, and do not count.
    return {name: runs[2:] for name, runs in times.items()}


def medians_ms(calls: Mapping[str, Call], device: str, seconds: float = 0.5) -> dict[str, float]:
    """The median milliseconds of each call, from `times_ms`."""
    runs = times_ms(calls, device, seconds)
    return {name: statistics.median(times) for name, times in runs.items()}


def spread(times: Sequence[float]) -> float:
    """The slowest time over the fastest one, without a tenth of the times at each end.

    It is 1 if all runs are equally fast.
    """
    ordered = sorted(times)
    cut = len(ordered) // 10
    return ordered[len(ordered) - 1 - cut] / ordered[cut]


def peak_extra_bytes(call: Call, device: str) -> int | None:
    """The peak memory of one call in bytes, above the memory held before it. None if unknown.

    On a GPU it is measured by torch's allocator. On a CPU it is the growth of the resident set,
    which only Linux reports. The call should have run before, so that compiling does not count.
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
    _return_freed_memory(_MEASURING)
    try:
        call()
        gc.collect()
        _return_freed_memory(_MEASURING)
        # This resets the peak of the resident set to its present size (proc(5)).
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        call()
        return max(_status_bytes("VmHWM") - before, 0)
    except OSError:
        return None
    finally:
        _return_freed_memory(_USUAL)


def _return_freed_memory(mapped_from: int) -> None:
    """Make glibc return freed blocks to the system.

    Otherwise a second call would reuse them, and seem to need no memory. mapped_from: The bytes
    from which a block has a mapping of its own.
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, mapped_from)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * mapped_from)
        libc.malloc_trim(0)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
