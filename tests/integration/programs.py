"""What the tests of caches, logs and entry points run in processes of their own.

    python programs.py entry [VERSION]  compile and train once by the entry point, and once more as
                                        if our sources were of VERSION
    python programs.py distributed      one step of DistributedDataParallel on two ranks over gloo,
                                        and one of fully_shard, without any import of ours

    python programs.py save FOLDER      a package of AOTInductor and a saved function
    python programs.py load FOLDER      both in a process that imports the package, and no more

The last line of the output is one JSON object.
"""

import functools
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

RANKS = 2
SMALL = {"gdpa.profit": False}
MAYBE_UNNEEDED = ("judge.interpret", "lowerings.triton.lower", "lowerings.triton.launch")


def function(q, k, v):
    return F.silu(q @ k.transpose(-1, -2) * 0.25) @ v


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 2, 32, 16, requires_grad=True) for _ in range(3)]


def train(compiled) -> float:
    """The largest difference to eager, in the output and in all gradients."""
    inputs = operands()
    results = []
    for run in (compiled, function):
        out = run(*inputs)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    return max((a - b).abs().max().item() for a, b in zip(*results))


def entry(version: str = "") -> dict:
    result = entered()
    result |= {
        "loaded": [name for name in MAYBE_UNNEEDED if f"gdpa_inductor.{name}" in sys.modules],
        "direct": direct(),
    }
    if version:
        import gdpa_inductor.lowerings

        gdpa_inductor.lowerings.source_hash = lambda: f"gdpa-{version}"
        torch._dynamo.reset()
        result["upgraded"] = entered()
    return result


def entered() -> dict:
    """Train once by the entry point; what was counted."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    difference = train(torch.compile(function, backend="gdpa", fullgraph=True, options=SMALL))
    return {
        "difference": difference,
        "gdpa": dict(counters["gdpa"]),
        "aot": dict(counters["aot_autograd"]),
        "fx": {k: v for k, v in counters["inductor"].items() if "fxgraph" in k},
    }


def direct() -> dict:
    """The operator outside of `torch.compile`, and what the caches had for it."""
    import gdpa_inductor

    counters = torch._dynamo.utils.counters
    counters.clear()
    q = torch.ones(2, 4, 9, 8)
    out = gdpa_inductor.attention(q, q, q, score_mod=lambda s, *_: torch.sigmoid(s))
    return {
        "difference": (out - torch.sigmoid(q @ q.mT) @ q).abs().max().item(),
        "hits": counters["inductor"]["fxgraph_cache_hit"]
        + counters["aot_autograd"]["autograd_cache_hit"],
    }


def distributed() -> dict:
    """Train one step on two ranks under each wrapper; what rank 0 found."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (folder,), nprocs=RANKS)
        return json.loads((Path(folder) / "results.json").read_text())


def _rank(rank: int, folder: str) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    assert "gdpa_inductor" not in sys.modules
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS
    )
    # The mesh of its own choice would be of GPUs, where there are any.
    shard = functools.partial(fully_shard, mesh=init_device_mesh("cpu", (RANKS,)))
    batch = torch.randn(2 * RANKS, 32, 32, generator=torch.Generator().manual_seed(1))
    own = batch.chunk(RANKS)[rank]
    results = {
        "ddp": _step(own, batch, lambda model: _compiled(DistributedDataParallel(model))),
        "fsdp": _step(own, batch, lambda model: _compiled(shard(model))),
        "fsdp, checkpointed": _step(own, batch, lambda model: shard(Checkpoint(model))),
        "heads split": _step(batch, batch, lambda model: _compiled(_split(model))),
    }
    if rank == 0:
        Path(folder, "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    # DDP's reducer is what frees the group. Its destructor then joins gloo's thread while it holds
    # the GIL, and that thread may be waiting for the GIL (torch 2.13): the process would hang.
    os._exit(0)


def _compiled(model):
    return torch.compile(model, backend="gdpa", options=SMALL)


def _split(model):
    """The heads by DTensor: each rank projects to one of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    columns = {name: ColwiseParallel() for name in "qkv"}
    rows = RowwiseParallel(output_layouts=Replicate())
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)), {**columns, "out": rows})


def _step(own, batch, wrapped) -> dict:
    """A step on what the rank takes of the batch, against eager on the whole batch."""
    from torch.distributed.tensor import DTensor

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model, alone = Attention(), Attention()
    alone.load_state_dict(model.state_dict())
    shared = wrapped(model)  # DDP's hooks live as long as it does
    shared(own).square().sum().backward()
    alone(batch).square().sum().mul(len(own) / len(batch)).backward()
    gradients = [p.grad for p in model.parameters()]
    gradients = [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]
    difference = max((a - b.grad).abs().max().item() for a, b in zip(gradients, alone.parameters()))
    return {"difference": difference, "gdpa": dict(torch._dynamo.utils.counters["gdpa"])}


class Attention(torch.nn.Module):
    """Two heads of 16 channels, or those of them that are here."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(function(q, k, v).transpose(1, 2).flatten(2))


class Checkpoint(torch.nn.Module):
    """Around a compiled layer, as a trainer puts it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        inner.compile(backend="gdpa", options=SMALL)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return function(q, k, v)


def save(folder: str) -> dict:
    import gdpa_inductor

    inputs = tuple(x.detach() for x in operands())
    program, report = gdpa_inductor.rewrite(torch.export.export(Model(), inputs), profit=False)
    torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/package.pt2")
    compiled = torch.compile(function, backend="gdpa", fullgraph=True, options=SMALL)
    compiled.aot_compile((inputs, {})).save_compiled_function(f"{folder}/function.bin")
    return {"regions": len(report.matches)}


def load(folder: str) -> dict:
    import gdpa_inductor  # noqa: F401 (nothing else is needed)

    inputs = tuple(x.detach() for x in operands())
    package = torch._inductor.aoti_load_package(f"{folder}/package.pt2")
    with open(f"{folder}/function.bin", "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    off = lambda run: (run(*inputs) - function(*inputs)).abs().max().item()
    return {"package": off(package), "function": off(loaded)}


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    tasks = {"entry": entry, "distributed": distributed, "save": save, "load": load}
    print(json.dumps(tasks[name](*rest)))
