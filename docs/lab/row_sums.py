"""`python docs/lab/row_sums.py`: weights divided by the sums of their rows, and others.

Causal attention of relu and of sigmoid in bf16: a JSON line for each with medians in milliseconds
(the L2 cache is cleared), stock Inductor's, and the error of each gradient against eager in fp32
(relative L2). A forward is timed as a CUDA graph, a step as it is called.
"""

import json
from collections.abc import Callable

import torch
from torch import Tensor
from triton.testing import do_bench

import gdpa_inductor  # noqa: F401 (the backend)
from docs.tools.timing import graph_times

SHAPES = ((8, 8, 1024, 64), (4, 8, 2048, 64), (8, 4, 2048, 128))
ACTIVATIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid}


def attention(activation: Callable, divided: bool) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[-2], device=q.device)
        weights = activation(q @ k.mT * q.shape[-1] ** -0.5) * (places[:, None] >= places)
        weights = weights.to(v.dtype)
        out = weights @ v
        if divided:
            return out / (weights.sum(-1, keepdim=True) + 1e-6)
        return out / q.shape[-2]

    return attend


def gradients(function: Callable, leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(function(*leaves), leaves, grad))


def measure(shape: tuple[int, ...], name: str, divided: bool) -> dict:
    torch.manual_seed(1)
    make = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    leaves, attend = [make() for _ in range(3)], attention(ACTIVATIONS[name], divided)
    grad = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    found = {"shape": shape, "activation": name, "divided": divided}
    wide = [x[:1].detach().float().requires_grad_() for x in leaves]
    exact = gradients(attend, wide, grad[:1].float())
    for backend in ("gdpa", "inductor"):
        torch._dynamo.reset()
        compiled = torch.compile(attend, backend=backend)
        mine = [x[:1].float() for x in gradients(compiled, leaves, grad)]
        apart = [float((x - y).norm() / y.norm()) for x, y in zip(mine, exact, strict=True)]
        with torch.no_grad():
            compiled(*leaves)
            ((forward,),) = graph_times([lambda run=compiled: run(*leaves)], turns=1, count=60)
        step = lambda run=compiled: run(*leaves).backward(grad)
        whole = do_bench(step, return_mode="median", grad_to_none=leaves)
        found |= {f"{backend} forward": round(forward, 4), f"{backend} step": round(whole, 4)}
        found |= {f"{backend} apart": [round(x, 5) for x in apart]}
    return found


if __name__ == "__main__":
    for shape in SHAPES:
        for name in ACTIVATIONS:
            for divided in (False, True):
                print(json.dumps(measure(shape, name, divided)), flush=True)
