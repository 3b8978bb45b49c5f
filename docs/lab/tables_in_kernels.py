"""`python docs/lab/tables_in_kernels.py`: causal silu attention with learned tables, and without.

Forward, step and peak memory of a step; the longest kernels; whether ten steps have equal bits.
With the argument "graphs", milliseconds of forwards and steps as CUDA graphs, in turns.
"""

import json
import sys
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

import gdpa_inductor  # noqa: F401 (the backend)
from benchmarks.measure import peak_extra_bytes
from docs.tools.timing import graph_times, kernels

SHAPES = ((16, 8, 1024, 64), (16, 4, 1024, 128), (8, 4, 2048, 128))
TABLES = {"none": "", "positions": "p", "times": "t", "both": "pt"}


def attend(
    q: Tensor, k: Tensor, v: Tensor, times: Tensor, positions: Tensor | None, buckets: Tensor | None
) -> Tensor:
    """Causal silu attention [B, H, N, D], with tables [H, 2N - 1] and [129, H] or without."""
    n = q.shape[-2]
    i = torch.arange(n, device=q.device)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if positions is not None:
        s = s + positions[:, i[:, None] - i + n - 1].to(s.dtype)
    if buckets is not None:
        apart = (times[:, :, None] - times[:, None]).abs().clamp(min=1)
        bucket = (torch.log(apart.float()) / 0.301).long().clamp(0, 128)
        s = s + buckets[bucket].permute(0, 3, 1, 2).to(s.dtype)
    return (F.silu(s) / n * (i[:, None] >= i)).to(v.dtype) @ v


class Layer(torch.nn.Module):
    """tables: "p" if it has one of positions for each head, "t" if it has one of 129 times."""

    def __init__(self, heads: int, length: int, tables: str) -> None:
        super().__init__()
        shapes = {"p": (heads, 2 * length - 1), "t": (129, heads)}
        self.tables = torch.nn.ParameterDict(
            {x: torch.nn.Parameter(torch.randn(shapes[x]) * 0.1) for x in tables}
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        return attend(q, k, v, times, self.tables.get("p"), self.tables.get("t"))


def costs(step: Callable[[], None], leaves: list[Tensor]) -> tuple[float, int, list]:
    """Of a step: its milliseconds, MiB at the peak, and (ms, count, name) of each kernel."""
    whole = do_bench(step, return_mode="median", grad_to_none=leaves)
    return whole, (peak_extra_bytes(step, "cuda") or 0) >> 20, kernels(step)


def compiled_layer(shape: tuple[int, ...], tables: str) -> tuple[Callable, list[Tensor], Tensor]:
    """(the layer, q, k, v and the tables, the times)."""
    b, h, n, _ = shape
    torch._dynamo.reset()
    torch.manual_seed(1)
    times = torch.randint(0, 10**6, (b, n), device="cuda").sort(1).values
    make = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer = Layer(h, n, tables).cuda()
    return (
        torch.compile(layer, backend="gdpa"),
        [make(), make(), make(), *layer.parameters()],
        times,
    )


def graphs(shape: tuple[int, ...]) -> dict:
    calls: dict[str, Callable[[], object]] = {}
    for name, tables in TABLES.items():
        compiled, leaves, times = compiled_layer(shape, tables)
        grad = torch.randn_like(leaves[0])

        def forward(compiled=compiled, leaves=leaves, times=times) -> Tensor:
            with torch.no_grad():
                return compiled(*leaves[:3], times)

        def step(compiled=compiled, leaves=leaves, times=times, grad=grad) -> tuple[Tensor, ...]:
            return torch.autograd.grad(compiled(*leaves[:3], times), leaves, grad)

        for kind, call in {"forward": forward, "step": step}.items():
            call(), call()
            calls[f"{kind}, {name}"] = call
    medians = map(median, graph_times(calls.values()))
    return {"shape": shape, **{x: round(ms, 4) for x, ms in zip(calls, medians, strict=True)}}


def measure(shape: tuple[int, ...], tables: str) -> dict:
    compiled, leaves, times = compiled_layer(shape, tables)
    q, k, v = leaves[:3]
    grad = torch.randn_like(q)

    def step() -> None:
        compiled(q, k, v, times).backward(grad)

    with torch.no_grad():
        forward = do_bench(lambda: compiled(q, k, v, times), return_mode="median")
    step()
    whole, peak, rows = costs(step, leaves)
    bits = []
    for _ in range(10):
        for x in leaves:
            x.grad = None
        step()
        bits.append([x.grad for x in leaves if x.grad is not None])
    return {
        "shape": shape,
        "tables": tables,
        "forward ms": round(forward, 4),
        "step ms": round(whole, 4),
        "peak MiB": peak,
        "equal bits": all(all(map(torch.equal, bits[0], other)) for other in bits),
        "kernels": [(ms, count, name[:80]) for ms, count, name in rows[:8]],
    }


if __name__ == "__main__":
    for shape in SHAPES:
        if sys.argv[1:] == ["graphs"]:
            print(json.dumps(graphs(shape)), flush=True)
            continue
        for tables in ("", "pt"):
            print(json.dumps(measure(shape, tables)), flush=True)
