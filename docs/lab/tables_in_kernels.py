"""`python docs/lab/tables_in_kernels.py`: causal silu attention with learned tables, and without.

Forward, step and peak memory of a step; the longest kernels; whether ten steps have equal bits.
"""

import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

import gdpa_inductor  # noqa: F401 (the backend)
from benchmarks.measure import peak_extra_bytes
from docs.tools.timing import kernels

SHAPES = ((16, 8, 1024, 64), (16, 4, 1024, 128), (8, 4, 2048, 128))


def attend(q: Tensor, k: Tensor, v: Tensor, times: Tensor, tables: tuple | None) -> Tensor:
    """Causal silu attention [B, H, N, D], with tables of positions and of times or without."""
    n = q.shape[-2]
    i = torch.arange(n, device=q.device)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if tables:
        by_position, by_time = tables
        s = s + by_position[:, i[:, None] - i + n - 1].to(s.dtype)
        apart = (times[:, :, None] - times[:, None]).abs().clamp(min=1)
        bucket = (torch.log(apart.float()) / 0.301).long().clamp(0, 128)
        s = s + by_time[bucket].permute(0, 3, 1, 2).to(s.dtype)
    return (F.silu(s) / n * (i[:, None] >= i)).to(v.dtype) @ v


class Layer(torch.nn.Module):
    """A table of positions for each head, and one of 129 times by a logarithm."""

    def __init__(self, heads: int, length: int, tables: bool) -> None:
        super().__init__()
        self.tables = tables
        self.positions = torch.nn.Parameter(torch.randn(heads, 2 * length - 1) * 0.1)
        self.times = torch.nn.Parameter(torch.randn(129, heads) * 0.1)

    def forward(self, q, k, v, times):
        tables = (self.positions, self.times) if self.tables else None
        return attend(q, k, v, times, tables)


def costs(step: Callable[[], None], leaves: list[Tensor]) -> tuple[float, int, list]:
    """Of a step: its milliseconds, MiB at the peak, and (ms, count, name) of each kernel."""
    whole = do_bench(step, return_mode="median", grad_to_none=leaves)
    return whole, (peak_extra_bytes(step, "cuda") or 0) >> 20, kernels(step)


def measure(shape: tuple[int, ...], tables: bool) -> dict:
    b, h, n, _ = shape
    torch._dynamo.reset()
    torch.manual_seed(1)
    times = torch.randint(0, 10**6, (b, n), device="cuda").sort(1).values
    make = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = make(), make(), make()
    grad = torch.randn_like(q)
    layer = Layer(h, n, tables).cuda()
    leaves = [q, k, v, *layer.parameters()]
    compiled = torch.compile(layer, backend="gdpa")

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
        for tables in (False, True):
            print(json.dumps(measure(shape, tables)), flush=True)
