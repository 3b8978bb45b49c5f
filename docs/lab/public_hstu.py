"""A training step of public HSTU layers with learned tables: `python docs/lab/public_hstu.py`.

It needs a GPU, and `pip install torch-rechub==0.9.0` for the first row. The second takes the file
of generative-recommenders as `bench models` does. Arguments: backends, by default both.

First: two layers of torch-rechub, whose heads have a table of positions and one of times each.
Second: one layer of the research code, whose heads share both.
"""

import json
import sys
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

import gdpa_inductor  # noqa: F401 (the backend)
from benchmarks.cases import Case
from benchmarks.models import hstu
from docs.lab.tables_in_kernels import costs
from docs.tools.timing import graph_times

BATCH, LENGTH, HEADS, DIM = 16, 1024, 8, 64


def first() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from torch_rechub.basic.layers import HSTUBlock

    layers = HSTUBlock(HEADS * DIM, HEADS, 2, DIM, DIM, dropout=0.0, max_seq_len=LENGTH)
    times = torch.randint(0, 10**6, (BATCH, LENGTH)).sort(1, descending=True).values
    rows = torch.randn(BATCH, LENGTH, HEADS * DIM, requires_grad=True)
    return layers, (rows, torch.arange(LENGTH) < torch.full((BATCH, 1), LENGTH), times)


def second() -> tuple[nn.Module, tuple[Tensor, ...]]:
    hstu.DEPTH = 1
    built = hstu.research(
        Case("silu", "none", BATCH, HEADS, LENGTH, DIM, "autocast", "cuda", fill=0.5)
    )
    assert isinstance(built.function, nn.Module)
    return built.function, built.inputs


def step_of(backend: str, layers: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    compiled = torch.compile(layers, backend=backend)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = compiled(*inputs)
        out.float().square().mean().backward()

    return step


def measure(row: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], backend: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers, inputs = row()
    layers = layers.cuda()
    inputs = tuple(x.detach().cuda().requires_grad_(x.requires_grad) for x in inputs)
    leaves = [*layers.parameters(), *(x for x in inputs if x.requires_grad)]
    step = step_of(backend, layers, inputs)
    step()
    norms = [round(float(x.grad.norm()), 7) for x in leaves if x.grad is not None]
    whole, peak, rows = costs(step, leaves)
    total, count = sum(ms for ms, *_ in rows), sum(n for _, n, _ in rows)
    figures = {"ms": round(whole, 3), "kernels ms": round(total, 3), "kernels": count}
    if row is first:  # the graph of the second breaks, at sizes that depend on data
        for leaf in leaves:
            leaf.grad = None
        (times,) = graph_times([step])
        figures["CUDA graph ms"] = round(median(times), 3)
    print(json.dumps({"row": row.__name__, "backend": backend, **figures, "peak MiB": peak}))
    print(json.dumps({"norms": norms}))
    for ms, n, name in rows[:16]:
        print(f"  {ms:.4f} in {n}: {name[:110]}", flush=True)


if __name__ == "__main__":
    for backend in sys.argv[1:] or ("gdpa", "inductor"):
        for row in (first, second):
            measure(row, backend)
