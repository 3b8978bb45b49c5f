"""A step of the recommender: `python docs/lab/recommender_time.py [LAYERS]`, on a GPU.

For stock Inductor and for ours: milliseconds of a step with its optimizer, and of the CPU for a
forward and a backward that nothing waits for, medians of 20. Batches differ in their rows.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.cases import Case
from benchmarks.contenders import CONTENDERS
from benchmarks.models import training

CASE = Case("recommender", "model", 128, 4, 1024, 64, "autocast", "cuda")
WARM, STEPS = 8, 20


def measured(name: str) -> Callable[[], str]:
    """What measures it, compiled."""
    step, optimizer = training.ready(CASE, CONTENDERS[name])
    feed = list(training.batches(CASE, WARM + 2 * STEPS))

    def stepped(batch: tuple) -> torch.Tensor:
        loss = step(batch)
        optimizer.step()
        return loss

    for batch in feed[:WARM]:
        stepped(batch).item()

    def measure() -> str:
        whole, host = [], []
        for batch in feed[WARM : WARM + STEPS]:
            start = time.perf_counter()
            stepped(batch).item()
            whole.append(time.perf_counter() - start)
        for batch in feed[WARM + STEPS :]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            step(batch)
            host.append(time.perf_counter() - start)
            optimizer.step()
        whole, host = (1e3 * median(seconds) for seconds in (whole, host))
        return f"{name}: {whole:.2f} ms a step; host of forward and backward {host:.2f} ms"

    return measure


if __name__ == "__main__":
    training.LAYERS = int(sys.argv[1]) if len(sys.argv) > 1 else training.LAYERS
    print(torch.cuda.get_device_name(), torch.__version__, f"{training.LAYERS} layers")
    for contender in ("inductor", "gdpa"):
        torch._dynamo.reset()
        measure = measured(contender)
        for _ in range(3):
            print(measure(), flush=True)
