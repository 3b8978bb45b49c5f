"""`python docs/lab/context_parallel.py [cuda | cpu] [RANKS]`: a sequence on several devices.

Both ways of docs/recipes/context_parallel.md, beside one device that has the whole sequence. A JSON
line for each: regions that were fused, how far output and gradients are from those of one device
(relative L2), and on GPUs milliseconds of a step of the slowest rank, with those of one device.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from docs.tools.blocks import blocks
from gdpa_inductor import gdpa_backend

PAGE = Path(__file__).parents[1] / "recipes" / "context_parallel.md"
SIZES = {"cuda": (1, 8, 32768, 128), "cpu": (2, 2, 96, 16)}
DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float64}
STEPS = {"cuda": 20, "cpu": 0}


def recipe(sizes: tuple[int, ...]) -> Any:
    """What the page defines, for these sizes. Its examples are left out."""
    names: dict[str, Any] = {}
    for block in blocks(PAGE.read_text()):
        code = block.code.split("\n\n\ncompiled = ")[0]
        if "init_process_group" not in code:
            exec(compile(code, str(PAGE), "exec"), names)
    names |= zip("BHND", sizes)
    return SimpleNamespace(**names)


def step(function: Callable[..., Tensor], leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    for x in leaves:
        x.grad = None
    out = function(*leaves)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def milliseconds(run: Callable[[], object], steps: int, ranks: int) -> float:
    """The median step, of the slowest rank if there are several."""
    found = []
    for _ in range(steps):
        if ranks > 1:
            dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken = torch.tensor([time.perf_counter() - start], device="cuda")
        if ranks > 1:
            dist.all_reduce(taken, dist.ReduceOp.MAX)
        found.append(1e3 * taken.item())
    return statistics.median(found)


def compiled(function: Callable, expect: int, cuda: bool) -> Any:
    own = {"gdpa.expect": expect, "gdpa.strict": True}
    options = own if cuda else own | {"gdpa.profit": False}
    return torch.compile(function, backend=gdpa_backend, options=options)


def run(rank: int, ranks: int, device: str, folder: str) -> None:
    cuda = device == "cuda"
    torch.set_num_threads(1)
    if cuda:
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", ranks)
    kind = "nccl" if cuda else "gloo"
    dist.init_process_group(kind, store=store, rank=rank, world_size=ranks)
    mesh = init_device_mesh(device, (ranks,))
    shape, page = SIZES[device], recipe(SIZES[device])
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(shape).to(device, DTYPES[device]) for _ in range(4))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    alone = lambda *leaves: page.attend(*leaves, 0)
    alone = compiled(alone, 1, cuda) if cuda else alone
    exact = [page.rows_of(x, rank, ranks) for x in step(alone, whole, grad)]
    one = milliseconds(lambda: step(alone, whole, grad), STEPS[device], 1) if cuda else 0.0
    leaves = [page.rows_of(x, rank, ranks).requires_grad_() for x in (q, k, v)]
    own_grad = page.rows_of(grad, rank, ranks)
    part = compiled(page.part, 1, cuda)
    ways = {
        "gathered": compiled(lambda *leaves: page.gathered(*leaves, mesh), 2, cuda),
        "ring": lambda *leaves: page.ring(*leaves, part),
    }
    for name, way in ways.items():
        torch._dynamo.utils.counters["gdpa"].clear()
        found = step(way, leaves, own_grad)
        apart = [float((x - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True)]
        result = {"way": name, "rank": rank, "apart": apart}
        result |= {"fused": torch._dynamo.utils.counters["gdpa"]["matched"]}
        if cuda:
            again = lambda way=way: step(way, leaves, own_grad)
            ms = milliseconds(again, STEPS[device], ranks)
            result |= {"ms": round(ms, 3), "one device": round(one, 3)}
        results: list[Any] = [None] * ranks
        dist.all_gather_object(results, result)
        if rank == 0:
            print(*map(json.dumps, results), sep="\n", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may wait for the GIL


if __name__ == "__main__":
    DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as FOLDER:
        mp.spawn(run, (RANKS, DEVICE, FOLDER), nprocs=RANKS)
