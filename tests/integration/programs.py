"""What the tests of caches, logs and entry points run in processes of their own.

    python programs.py entry            compile and train once by the entry point
    python programs.py cached VERSION   compile and train once, as if our sources were of VERSION
    python programs.py ddp              one step of DistributedDataParallel over gloo, without any
                                        import of ours

The last line of the output is one JSON object.
"""

import json
import sys

import torch
import torch.nn.functional as F


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


def entry() -> dict:
    difference = train(torch.compile(function, backend="gdpa", fullgraph=True))
    return {"difference": difference, "gdpa": dict(torch._dynamo.utils.counters["gdpa"])}


def cached(version: str) -> dict:
    import gdpa_inductor.backend

    gdpa_inductor.backend.source_hash = lambda: f"gdpa-{version}"
    difference = train(torch.compile(function, backend="gdpa"))
    counters = torch._dynamo.utils.counters
    return {
        "difference": difference,
        "gdpa": dict(counters["gdpa"]),
        "aot": dict(counters["aot_autograd"]),
        "fx": {k: v for k, v in counters["inductor"].items() if "fxgraph" in k},
    }


def ddp() -> dict:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    assert "gdpa_inductor" not in sys.modules
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    model = Attention()
    wrapped = torch.compile(DistributedDataParallel(model), backend="gdpa")
    x = torch.randn(2, 32, 32)
    wrapped(x).square().sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model(x).square().sum().backward()
    difference = max((found[n] - p.grad).abs().max().item() for n, p in model.named_parameters())
    dist.destroy_process_group()
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
    print(json.dumps({"entry": entry, "cached": cached, "ddp": ddp}[name](*rest)))
