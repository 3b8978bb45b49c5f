"""What the tests of caches, logs and entry points run in processes of their own.

    python programs.py entry [VERSION]  compile and train once by the entry point, as if our sources
                                        were of VERSION
    python programs.py distributed      one step of DistributedDataParallel on two ranks over gloo,
                                        and one of fully_shard, without any import of ours

The last line of the output is one JSON object.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

RANKS = 2
SMALL = {"gdpa.profit": False}


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
    if version:
        import gdpa_inductor.backend

        gdpa_inductor.backend.source_hash = lambda: f"gdpa-{version}"
    difference = train(torch.compile(function, backend="gdpa", fullgraph=True, options=SMALL))
    counters = torch._dynamo.utils.counters
    return {
        "difference": difference,
        "gdpa": dict(counters["gdpa"]),
        "aot": dict(counters["aot_autograd"]),
        "fx": {k: v for k, v in counters["inductor"].items() if "fxgraph" in k},
    }


def distributed() -> dict:
    """Train one step on two ranks under each wrapper; what rank 0 found."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (folder,), nprocs=RANKS)
        return json.loads((Path(folder) / "found.json").read_text())


def _rank(rank: int, folder: str) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    assert "gdpa_inductor" not in sys.modules
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS
    )
    wrappers = {"ddp": DistributedDataParallel, "fsdp": fully_shard}
    found = {name: _step(rank, wrapper) for name, wrapper in wrappers.items()}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    # DDP's reducer is what frees the group. Its destructor then joins gloo's thread while it holds
    # the GIL, and that thread may be waiting for the GIL (torch 2.13): the process would hang.
    os._exit(0)


def _step(rank: int, wrapper) -> dict:
    """A step on the rank's share of the batch, against eager on the whole batch."""
    from torch.distributed.tensor import DTensor

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model, alone = Attention(), Attention()
    alone.load_state_dict(model.state_dict())
    shared = wrapper(model)
    x = torch.randn(2 * RANKS, 32, 32)
    torch.compile(shared, backend="gdpa", options=SMALL)(
        x.chunk(RANKS)[rank]
    ).square().sum().backward()
    alone(x).square().sum().div(RANKS).backward()
    found = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
             for p in model.parameters()]  # fmt: skip
    difference = max((a - b.grad).abs().max().item() for a, b in zip(found, alone.parameters()))
    return {"difference": difference, "gdpa": dict(torch._dynamo.utils.counters["gdpa"])}


class Attention(torch.nn.Module):
    """Two heads, a learned bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.bias = torch.nn.Parameter(torch.randn(2, 32, 32) * 0.1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return (F.silu(q @ k.mT * 0.25 + self.bias) @ v).transpose(1, 2).flatten(2)


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    print(json.dumps({"entry": entry, "distributed": distributed}[name](*rest)))
