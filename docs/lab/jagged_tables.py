"""`python docs/lab/jagged_tables.py`: attention on jagged rows, with tables by position and time.

A training step where the kernels look the tables up, and where the biases are stored, in turns: a
JSON line for each with milliseconds, those of its kernels, and the peak memory of the step.
"""

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.models import fbgemm
from docs.lab.tables_in_kernels import attend, costs
from gdpa_inductor import gdpa_backend
from gdpa_inductor.patterns import profit

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
SHAPES = ((16, 8, 1024, 64), (16, 4, 1024, 128)) if CUDA else ((3, 2, 32, 16),)
FORMS = {"looked up": "", "stored": "for a measurement"}
TURNS = 1


class Layer(torch.nn.Module):
    """Rows [L, H * D] with offsets [B + 1], times [B, N]. times of heads, or of all."""

    def __init__(self, heads: int, length: int, by_head: bool) -> None:
        super().__init__()
        self.heads, self.length = heads, length
        own = heads if by_head else 1
        self.positions = torch.nn.Parameter(torch.randn(own, 2 * length - 1) * 0.1)
        self.times = torch.nn.Parameter(torch.randn(129, own) * 0.1)

    def padded(self, x: Tensor, offsets: Tensor) -> Tensor:
        dense = torch.ops.fbgemm.jagged_to_padded_dense(x, [offsets], [self.length], 0.0)
        return dense.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, times: Tensor) -> Tensor:
        dense = (self.padded(x, offsets) for x in (q, k, v))
        out = attend(*dense, times, self.positions, self.times).transpose(1, 2).flatten(2)
        rows: Tensor = torch.ops.fbgemm.dense_to_jagged(out, [offsets], q.shape[0])[0]
        return rows


def rows_of(shape: tuple[int, ...]) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """q, k and v; a gradient; offsets; times. Lengths are 1 to N."""
    b, h, n, d = shape
    lengths = torch.randint(1, n + 1, (b,), device=DEVICE)
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    width = int(offsets[-1]), h * d
    q, k, v, grad = (torch.randn(width, device=DEVICE, dtype=DTYPE) for _ in range(4))
    times = torch.randint(0, 10**6, (b, n), device=DEVICE).sort(1).values
    return [x.requires_grad_() for x in (q, k, v)], grad, offsets, times


def measure(shape: tuple[int, ...], by_head: bool, form: str) -> dict:
    torch._dynamo.reset()
    torch.manual_seed(1)
    inputs, grad, offsets, times = rows_of(shape)
    layer = Layer(shape[1], shape[2], by_head).to(DEVICE)
    profit.rather_stored = lambda *_: FORMS[form]
    compiled = torch.compile(layer, backend=gdpa_backend)

    def step() -> None:
        rows = compiled(*inputs, offsets, times)
        rows.backward(grad[: len(rows)])

    step()
    found = {"shape": shape, "by head": by_head, "form": form}
    norms = [round(x.grad.float().norm().item(), 5) for x in layer.parameters()]
    found["norms"] = norms
    if not CUDA:
        return found
    whole, peak, rows = costs(step, [*inputs, *layer.parameters()])
    longest = [(round(ms, 4), n, key[-60:]) for ms, n, key in rows[:8]]
    kernels = round(sum(ms for ms, *_ in rows), 3)
    measured = {"step ms": round(whole, 3), "kernels ms": kernels, "peak MiB": peak}
    return found | measured | {"longest": longest}


if __name__ == "__main__":
    fbgemm.provide()
    for shape in SHAPES:
        for by_head in (True, False):
            for _ in range(TURNS):
                for form in FORMS:
                    print(json.dumps(measure(shape, by_head, form)), flush=True)
