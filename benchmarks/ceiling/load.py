"""Times of calls that take turns, and their rate, clock and power under steady load, on one GPU.

In: calls without arguments. Out: milliseconds of every turn, and clock and power from nvidia-smi.
This module does not depend on what is measured.
"""

import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], object]
BATCH = 16
LEAD = 64  # flushes before a batch, which keep the GPU busy for about 5 ms
FLUSH = 1 << 28  # bytes: more than the L2 cache holds
# FLOP in bf16 of the tensor cores of one multiprocessor in one clock (Hopper).
TENSOR = 4096


def turns_ms(calls: Mapping[str, Call], turns: int, seconds: float) -> dict[str, list[float]]:
    """The median milliseconds of each turn of each call.

    The order rotates from turn to turn. A GPU at its power limit has a clock that depends on the
    call before. seconds: The approximate length of a turn.
    """
    cache = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in rotated(list(calls), turn):
            times[name].append(turn_ms(calls[name], cache, seconds))
    return times


def rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names)
    return names[first:] + names[:first]


def turn_ms(call: Call, cache: Tensor, seconds: float) -> float:
    """The median milliseconds of at most 64 runs. The L2 cache is flushed before each run."""
    expected = statistics.median(runs_ms(call, cache))
    batches = min(4, 1 + int(seconds * 1e3 / expected / BATCH))
    return statistics.median(ms for _ in range(batches) for ms in runs_ms(call, cache))


def runs_ms(call: Call, cache: Tensor) -> list[float]:
    """The milliseconds of each run of a batch.

    The GPU is kept busy before the batch, so that the CPU gets ahead of it. So the time to launch
    is not measured.
    """
    for _ in range(LEAD):
        cache.zero_()
    call()
    marks = []
    for _ in range(BATCH):
        cache.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]


class Sampler:
    """A context that samples the GPU every 20 ms.

    A sample has the clock, the power, the temperature, and the reasons for a lower clock.
    """

    FIELDS = "clocks.sm,power.draw.instant,temperature.gpu,clocks_event_reasons.active"

    def __enter__(self) -> "Sampler":
        self.lines: list[tuple[float, str]] = []
        query = ["nvidia-smi", "-i", "0", f"--query-gpu={self.FIELDS}", "-lms", "20"]
        self.process = subprocess.Popen(
            [*query, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.perf_counter(), line))

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def since(self, start: float) -> dict[str, Any]:
        return summary([line for when, line in list(self.lines) if when >= start])


def summary(lines: list[str]) -> dict[str, Any]:
    """The medians over nvidia-smi's lines, and all reasons for a lower clock that they name."""
    parts = [line.split(",") for line in lines if line.count(",") == 3]
    if not parts:
        return {}
    mhz, watt, celsius = (statistics.median(float(p[i]) for p in parts) for i in range(3))
    reasons = sorted({p[3].strip() for p in parts})
    return {"mhz": mhz, "watt": watt, "celsius": celsius, "reasons": reasons}


def under_load(call: Call, flops: float, sampler: Sampler, seconds: float) -> dict[str, Any]:
    """The rate, clock and power of a call that runs without a pause.

    The call runs for `seconds` first, and for `seconds` again to measure. The field of_peak is the
    share of the tensor cores' peak rate at the measured clock.
    """
    busy(call, seconds)
    began = time.perf_counter()
    readings = {"tflops": flops / busy(call, seconds) / 1e9, **sampler.since(began)}
    if "mhz" in readings:
        count = torch.cuda.get_device_properties(0).multi_processor_count
        readings["of_peak"] = of_peak(readings["tflops"], readings["mhz"], count)
    return readings


def of_peak(tflops: float, mhz: float, multiprocessors: int) -> float:
    """A rate as a share of the peak rate of all tensor cores at a clock."""
    return tflops * 1e6 / (mhz * TENSOR * multiprocessors)


def busy(call: Call, seconds: float) -> float:
    """The mean milliseconds of a call, from calls without a pause for so many seconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began, done = time.perf_counter(), 0
    start.record()
    while time.perf_counter() - began < seconds:
        for _ in range(16):
            call()
        done += 16
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / done
