"""A training step on two devices under DistributedDataParallel and under fully_shard, against the
same step on one: `python -m tests.gpu.distributed_program cuda`. With `cpu` it runs anywhere.

Each rank has half of the batch. One device takes both halves one after the other. So the gradients
of the ranks, half of their sum, have to be its own bit for bit. The last line of the output is one
JSON object, what rank 0 found.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gdpa_inductor import gdpa_backend

RANKS = 2
KERNELS = {"cuda": "cute", "cpu": "cpu"}
HEADS = 4
SIZES = {"cuda": (2, 700, 512), "cpu": (2, 70, 128)}  # batch of a rank, rows, width
WRAPPERS = {
    "ddp": lambda model, mesh: DistributedDataParallel(model),
    # Its own choice would be the GPUs, also for a model on the CPU.
    "fsdp": lambda model, mesh: fully_shard(model, mesh=mesh),
}


def attention(q, k, v):
    return F.silu(q @ k.mT * 0.125) @ v


class Layer(torch.nn.Module):
    """compiled: of `attention`."""

    def __init__(self, width: int, compiled: Callable) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.compiled = compiled

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)
        return self.out(self.compiled(q, k, v).transpose(1, 2).flatten(2))


def made(device: str, compiled: Callable) -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return Layer(SIZES[device][2], compiled).to(device, torch.bfloat16)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    results = [p.grad for p in model.parameters()]
    return [x.full_tensor() if isinstance(x, DTensor) else x for x in results]


def rank(number: int, device: str, folder: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(number)
    store = dist.FileStore(f"{folder}/store", RANKS)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=RANKS)
    options = {"gdpa.kernel": KERNELS[device], "gdpa.profit": False, "gdpa.expect": 1}
    compiled = torch.compile(attention, backend=gdpa_backend, options=options, dynamic=False)
    batch, rows, width = SIZES[device]
    halves = torch.randn(RANKS, batch, rows, width, generator=torch.Generator().manual_seed(1))
    halves = halves.to(device, torch.bfloat16)

    alone = [made(device, compiled) for _ in range(RANKS)]
    for model, x in zip(alone, halves, strict=True):
        model(x).square().mean().backward()
    one = [(x + y) / 2 for x, y in zip(*map(gradients, alone), strict=True)]

    results, mesh = {}, init_device_mesh(device, (RANKS,))
    for name, wrapper in WRAPPERS.items():
        shared = wrapper(made(device, compiled), mesh)
        shared(halves[number]).square().mean().backward()
        results[name] = [torch.equal(x, y) for x, y in zip(gradients(shared), one, strict=True)]
    results["nonzero"] = all(x.any().item() for x in one)
    results["gdpa"] = dict(torch._dynamo.utils.counters["gdpa"])
    if number == 0:
        Path(folder, "found.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may wait for the GIL (tests/integration/programs.py)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(rank, (sys.argv[1], place), nprocs=RANKS)
        print(Path(place, "found.json").read_text())
