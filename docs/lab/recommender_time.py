"""A step of the recommender: `python docs/lab/recommender_time.py [LAYERS] [CONTENDER...]`.

A JSON line for each contender and turn, medians over batches that differ in their rows:

    wall     milliseconds of a step with its optimizer, until the loss is known
    step     milliseconds until the CPU has issued it, when nothing is under way before
    forward, backward, optimizer    what that is made of
    kernels, kernel_ms, launches    of a step, by the profiler
    compiled, refused               graphs of Dynamo; graphs that CUDA could not record

cpp: ours, launched by C++ code (Inductor's `cpp_wrapper`).
padded: ours, with rows padded to a multiple of STEP. graphs: the same under CUDA graphs.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import Case
from benchmarks.models import training
from benchmarks.worker import synchronize
from gdpa_inductor import gdpa_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (128, 4, 1024, 64) if DEVICE == "cuda" else (4, 2, 64, 16)
STEP, BATCHES, WARM, TURNS = (1024, 48, 3, 2) if DEVICE == "cuda" else (32, 6, 1, 1)
CONTENDERS = ("inductor", "gdpa", "cpp", "padded", "graphs")


class Recommender(training.JaggedRecommender):
    """Rows past the last offset have no loss."""

    def forward(self, *batch: Tensor) -> Tensor:
        items, _, ends, *_ = batch
        real = torch.arange(len(items), device=items.device) < ends[-1]
        return torch.where(real, self.losses(*batch), 0.0).sum() / ends[-1]


def padded(rows: Tensor) -> Tensor:
    rows = F.pad(rows, (0, -rows.shape[0] % STEP))
    torch._dynamo.maybe_mark_dynamic(rows, 0)
    return rows


def compiled(name: str, model: torch.nn.Module) -> Callable[..., Tensor]:
    if name == "inductor":
        return torch.compile(model)
    options = {} if DEVICE == "cuda" else {"gdpa.profit": False}
    options |= {"cpp_wrapper": True} if name == "cpp" else {}
    mode = "reduce-overhead" if name == "graphs" else None

    def backend(gm, inputs):
        return gdpa_backend(gm, inputs, mode=mode, options=options)

    return torch.compile(model, backend=backend)


class Contender:
    """One that trains. Each batch was seen WARM times before it is measured."""

    def __init__(self, name: str) -> None:
        self.name, case = name, Case("recommender", "model", *SIZES, "autocast", DEVICE)
        torch.manual_seed(0)
        model = Recommender(case).to(DEVICE)
        self.call = compiled(name, model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=training.LEARNING_RATE)
        self.feed = list(training.batches(case, BATCHES))
        rows = sum(len(items) for items, *_ in self.feed)
        if name in ("padded", "graphs"):
            self.feed = [(padded(i), padded(p), e, padded(t), n) for i, p, e, t, n in self.feed]
        self.share = sum(len(items) for items, *_ in self.feed) / rows - 1
        counters = torch._dynamo.utils.counters
        counters.clear()
        for batch in self.feed * WARM:
            self.step(batch)[0].item()
        self.graphs = counters["stats"]["unique_graphs"], counters["inductor"]["cudagraph_skips"]

    def step(self, batch: tuple) -> tuple[Tensor, list[float]]:
        """The loss, and the seconds of its parts."""
        torch.compiler.cudagraph_mark_step_begin()
        times = [time.perf_counter()]
        self.optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.call(*batch)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        self.optimizer.step()
        times.append(time.perf_counter())
        return loss, [end - start for start, end in itertools.pairwise(times)]

    def measured(self) -> dict[str, object]:
        walls, parts = [], []
        for batch in self.feed:
            synchronize(DEVICE)
            start = time.perf_counter()
            loss, times = self.step(batch)
            parts.append([*times, sum(times)])
            loss.item()
            walls.append(time.perf_counter() - start)
        names = ("forward", "backward", "optimizer", "step")
        medians = [median(column) for column in zip(*parts, strict=True)]
        found = {"wall": median(walls), **dict(zip(names, medians, strict=True))}
        return {name: round(1e3 * seconds, 3) for name, seconds in found.items()}

    def profiled(self) -> dict[str, float]:
        some = self.feed[:16]
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for batch in some:
                self.step(batch)
            synchronize(DEVICE)
        events = [e for e in seen.events() if e.device_type.name == "CUDA"]
        launches = [e for e in seen.key_averages() if "LaunchKernel" in e.key]
        found = {
            "kernels": len(events),
            "kernel_ms": sum(e.time_range.elapsed_us() for e in events) / 1e3,
            "launches": sum(e.count for e in launches),
        }
        return {name: round(total / len(some), 2) for name, total in found.items()}

    def line(self) -> str:
        compiles, refused = self.graphs
        known = {"contender": self.name, "padded_share": round(self.share, 4)}
        counts = {"compiled": compiles, "refused": refused}
        return json.dumps(known | self.measured() | self.profiled() | counts)


def main(layers: str = "8", *names: str) -> None:
    training.LAYERS = int(layers)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(device, torch.__version__, f"{layers} layers", flush=True)
    contenders = [Contender(name) for name in names or CONTENDERS]
    for _ in range(TURNS):
        for contender in contenders:
            print(contender.line(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
