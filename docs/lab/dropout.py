"""`python docs/lab/dropout.py`: causal silu attention whose weights are dropped out.

Training steps in bf16: a JSON line for each shape and rate (none: no dropout in the model) with
medians in milliseconds (the L2 cache is cleared), stock Inductor's, and the error of output and
gradients against eager in fp32 under the drawn mask (relative L2). They are checked first.
"""

import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

import gdpa_inductor  # noqa: F401 (the backend)
from gdpa_inductor.program.ops.random import random16, threshold

SHAPES = (
    (8, 8, 1024, 64),
    (4, 8, 2048, 64),
    (1, 8, 8192, 64),
    (8, 4, 1024, 128),
    (4, 4, 2048, 128),
)
RATES = (None, 0.0, 0.1)


def attention(p: float | None) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[-2], device=q.device)
        weights = F.silu(q @ k.mT * q.shape[-1] ** -0.5) * (places[:, None] >= places)
        weights = weights.to(v.dtype) / q.shape[-2]
        return (weights if p is None else F.dropout(weights, p)) @ v

    return attend


def mask(seed: Tensor, p: float, rows: int) -> Tensor:
    """Of the first batch and head."""
    places = torch.arange(rows, device=seed.device)
    zero = torch.zeros_like(seed)
    kept = random16(seed, zero, zero, places[:, None], places) >= threshold(p)
    return kept / (1.0 - p)


def exact(leaves: list[Tensor], grad: Tensor, p: float | None, seed: Tensor) -> list[Tensor]:
    q, k, v = (x[0, 0].detach().float().requires_grad_() for x in leaves)
    rows = q.shape[0]
    places = torch.arange(rows, device=q.device)
    weights = F.silu(q @ k.mT * q.shape[-1] ** -0.5) * (places[:, None] >= places) / rows
    out = (weights * mask(seed, p, rows) if p else weights) @ v
    return [out, *torch.autograd.grad(out, (q, k, v), grad[0, 0].float())]


def seed_of(state: int) -> Tensor:
    """What compiled code draws first of all."""
    torch.manual_seed(state)
    ends = -(1 << 63), (1 << 63) - 1
    drawn = torch.ops.aten.randint.low(*ends, [1], dtype=torch.int64, device="cuda")
    return drawn[0]


def errors(compiled: Callable, leaves: list[Tensor], grad: Tensor, p: float | None) -> list[float]:
    expected = exact(leaves, grad, p, seed_of(7))
    torch.manual_seed(7)
    out = compiled(*leaves)
    mine = [x[0, 0].float() for x in (out, *torch.autograd.grad(out, leaves, grad))]
    return [float((x - y).norm() / y.norm()) for x, y in zip(mine, expected, strict=True)]


def measure(shape: tuple[int, ...], p: float | None) -> dict:
    torch.manual_seed(1)
    make = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    leaves, attend = [make() for _ in range(3)], attention(p)
    grad = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    found: dict = {"shape": shape, "p": p}
    for backend in ("gdpa", "inductor"):
        torch._dynamo.reset()
        options = {"gdpa.expect": 1} if backend == "gdpa" else None
        compiled = torch.compile(attend, backend=backend, options=options)
        if backend == "gdpa":
            apart = errors(compiled, leaves, grad, p)
            assert max(apart) < 0.02, f"{shape}, p={p}: {apart}"
            found["apart"] = [round(x, 5) for x in apart]
        with torch.no_grad():
            forward = do_bench(lambda run=compiled: run(*leaves), return_mode="median")
        step = lambda run=compiled: run(*leaves).backward(grad)
        whole = do_bench(step, return_mode="median", grad_to_none=leaves)
        found |= {f"{backend} forward": round(forward, 4), f"{backend} step": round(whole, 4)}
    found["times"] = round(found["inductor step"] / found["gdpa step"], 2)
    return found


if __name__ == "__main__":
    for shape in SHAPES:
        for p in RATES:
            print(json.dumps(measure(shape, p)), flush=True)
