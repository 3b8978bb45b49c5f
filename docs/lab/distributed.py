"""`python docs/lab/distributed.py`: a training step of four layers on two GPUs, ours beside stock.

Each layer is compiled, then the model is wrapped: DistributedDataParallel, fully_shard with and
without resharding after the forward, fully_shard under activation checkpointing, and heads split by
DTensor. Out: a JSON line for each wrapper: milliseconds of a step of the slower rank, MiB at the
peak, and how far gradients are from those of one device in fp32. With `cpu` it runs small, on gloo.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gdpa_inductor import gdpa_backend

RANKS, LAYERS, HEADS = 2, 4, 4
SIZES = {"cuda": (8, 2048, 128), "cpu": (1, 64, 16)}  # batch of a rank, rows, head dim
STEPS = {"cuda": 20, "cpu": 2}
CONTENDERS = {"gdpa": gdpa_backend, "inductor": "inductor"}
# On a CPU the layers are too small to pay.
OPTIONS = {
    "gdpa": {"cuda": {}, "cpu": {"gdpa.profit": False}},
    "inductor": {"cuda": {}, "cpu": {}},
}


class Layer(nn.Module):
    """Attention as HSTU has it: silu, causal, divided by the length; gated."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        width, self.head_dim = HEADS * head_dim, head_dim
        self.norm = nn.LayerNorm(width)
        self.u, self.q, self.k, self.v, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (self.heads(part(y)) for part in (self.q, self.k, self.v))
        weights = F.silu(q @ k.mT * self.head_dim**-0.5) / x.shape[1]
        places = torch.arange(x.shape[1], device=x.device)
        weights = torch.where(places[:, None] >= places, weights, 0.0)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        return x + self.out(mixed * F.silu(self.u(y)))


class Model(nn.Module):
    def __init__(self, head_dim: int, kept: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(head_dim) for _ in range(LAYERS))
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.kept else checkpoint(layer, x, use_reentrant=False)
        return x


def sharded(model: Model, device: str, reshard: bool) -> nn.Module:
    mesh = init_device_mesh(device, (RANKS,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)


def split(model: Model, device: str) -> nn.Module:
    mesh = init_device_mesh(device, (RANKS,))
    for layer in model.layers:
        columns = {name: ColwiseParallel() for name in "uqkv"}
        parallelize_module(layer, mesh, {**columns, "out": RowwiseParallel()})
    return model


# Name: (activations are kept, the wrapper).
WRAPPERS: dict[str, tuple[bool, Callable[[Model, str], nn.Module]]] = {
    "ddp": (True, lambda model, device: DistributedDataParallel(model)),
    "fsdp": (True, lambda model, device: sharded(model, device, True)),
    "fsdp, no resharding": (True, lambda model, device: sharded(model, device, False)),
    "fsdp, checkpointed": (False, lambda model, device: sharded(model, device, True)),
    "heads split": (True, split),
}


def made(device: str, dtype: torch.dtype, kept: bool = True) -> Model:
    """The same on every rank."""
    torch.manual_seed(0)
    return Model(SIZES[device][2], kept).to(device, dtype)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).float().square().mean().backward()
    found = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
    return {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in found.items()}


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Relative L2, the worst of the parameters."""
    pairs = [(found[name].double(), want.double()) for name, want in wanted.items()]
    return max(float((got - want).norm() / want.norm()) for got, want in pairs)


def timed(model: nn.Module, x: Tensor, steps: int) -> list[float]:
    """Milliseconds of each step, of the slower rank."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    found = []
    for _ in range(steps):
        dist.barrier()
        wait()
        start = time.perf_counter()
        model.zero_grad()
        model(x).float().square().mean().backward()
        wait()
        taken = torch.tensor([time.perf_counter() - start], device=x.device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        found.append(1e3 * taken.item())
    return found


def measured(name: str, device: str, halves: Tensor, wanted: dict[str, Tensor]) -> dict:
    """Contenders take turns."""
    kept, wrap = WRAPPERS[name]
    # Split heads share the batch; all others share it out.
    x = halves.flatten(0, 1) if name == "heads split" else halves[dist.get_rank()]
    row: dict = {"wrapper": name}
    models: dict[str, nn.Module] = {}
    for who, backend in CONTENDERS.items():
        torch.compiler.reset()
        model = made(device, torch.bfloat16, kept)
        for layer in model.layers:
            layer.compile(backend=backend, dynamic=False, options=OPTIONS[who][device])
        models[who] = wrap(model, device)
        row[f"{who} off"] = distance(gradients(models[who], x), wanted)
    times: dict[str, list[float]] = {who: [] for who in models}
    for _ in range(3):
        for who, model in models.items():
            times[who] += timed(model, x, STEPS[device])
    for who, model in models.items():
        row[f"{who} ms"] = statistics.median(times[who])
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            timed(model, x, 1)
            row[f"{who} MiB"] = (torch.cuda.max_memory_allocated() - held) / 2**20
    row["matched"] = torch._dynamo.utils.counters["gdpa"]["matched"]
    return row


def rank(number: int, device: str, folder: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(number)
    store = dist.FileStore(f"{folder}/store", RANKS)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=RANKS)
    batch, rows, head_dim = SIZES[device]
    shape = (RANKS, batch, rows, HEADS * head_dim)
    halves = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    whole = gradients(made(device, torch.float32), halves.flatten(0, 1))
    halves = halves.bfloat16()
    for name in WRAPPERS:
        torch._dynamo.utils.counters.clear()
        row = measured(name, device, halves, whole)
        if number == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(rank, (sys.argv[1] if len(sys.argv) > 1 else "cuda", str(Path(place))), RANKS)
