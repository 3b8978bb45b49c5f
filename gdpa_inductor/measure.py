"""Time and extra memory of a call, on a GPU or a CPU, by the same two functions.

In: callables without arguments and a device string. Out: milliseconds, bytes (peak above
what was held before the call). Nothing here knows what is being measured.
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
# The smallest block that gets a mapping of its own: while memory is measured, and otherwise. The
# latter is what glibc's own adaptation arrives at; it cannot be switched on again once it has been
# set by hand.
_MEASURING, _USUAL = 256 * 1024, 32 * 1024 * 1024


def times_ms(
    calls: Mapping[str, Call], device: str, seconds: float = 0.5
) -> dict[str, list[float]]:
    """Milliseconds of each run of each call, from about `seconds` of running it.

    On a GPU by do_bench, which flushes L2 in between. On a CPU the calls take turns, so that
    whatever else the machine does meets all of them alike.
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
    # The first two turns warm the caches up.
    return {name: taken[2:] for name, taken in times.items()}


def medians_ms(calls: Mapping[str, Call], device: str, seconds: float = 0.5) -> dict[str, float]:
    """The median of the `times_ms` of each call."""
    taken = times_ms(calls, device, seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


def spread(times: Sequence[float]) -> float:
    """The slow end of the runs over the fast one, without the tenth at each end: 1 is steady."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    return ordered[len(ordered) - 1 - cut] / ordered[cut]


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
    _return_freed_memory(_MEASURING)
    try:
        call()
        gc.collect()
        _return_freed_memory(_MEASURING)
        # Sets the high-water mark back to what is resident now (proc(5)).
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        call()
        return max(_status_bytes("VmHWM") - before, 0)
    except OSError:
        return None
    finally:
        _return_freed_memory(_USUAL)


def _return_freed_memory(mapped_from: int) -> None:
    """Makes glibc give freed blocks back, or a second call would seem to need none."""
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
