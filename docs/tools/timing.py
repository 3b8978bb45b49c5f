"""Times without the CPU's, `graph_times`, of the CPU alone, `issue_seconds`, and of each kernel."""

import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.worker import synchronize

Call = Callable[[], object]


def graph_times(calls: Iterable[Call], turns: int = 5, count: int = 8) -> list[list[float]]:
    """Milliseconds of each call as a CUDA graph, the L2 cache flushed: a median for each turn.

    The calls take turns, and have run before. A call of less than a millisecond would be timed with
    its launches otherwise.
    """
    graphs = [_captured(call) for call in calls]
    flushed = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(turns):
        for graph, medians in zip(graphs, times, strict=True):
            medians.append(statistics.median(_time(graph, flushed) for _ in range(count)))
    return times


def issue_seconds(call: Call, count: int, turns: int, device: str = "cuda") -> float:
    """Seconds for which the CPU issues a call: the least mean of `count` calls without a pause.

    Each turn begins and ends with nothing under way on the device.
    """

    def turn() -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - start
        synchronize(device)
        return seconds / count

    return min(turn() for _ in range(turns))


def kernels(call: Call, count: int = 1) -> list[tuple[float, float, str]]:
    """(milliseconds, launches, name) of each kernel of a call, the longest first.

    count: Calls of the profile, of which these are the means.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    events = seen.key_averages()
    each = [(e.device_time_total / 1e3 / count, e.count / count, e.key) for e in events]
    return sorted(each, reverse=True)


def _captured(call: Call) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def _time(graph: torch.cuda.CUDAGraph, flushed: torch.Tensor) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flushed.zero_()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
