"""Forward and step with a bias: `python docs/lab/bias_steps.py`, on a Hopper with CuTe DSL.

Medians in milliseconds, and the peak of a step in MiB beyond its operands. bf16, silu, D = 128.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

from benchmarks.contenders import gdpa
from benchmarks.measure import peak_extra_bytes

SIZES = ((32, 4, 1024, 128), (16, 4, 2048, 128), (4, 4, 8192, 128))
FORMS = {"none": "", "mask": "mn", "[H, N, N]": "hmn", "[B, H, N, N]": "bhmn", "[N, N]": "mn"}
KERNELS = ("stock", "triton", "cute")


def attention(query: Tensor, key: Tensor, value: Tensor, *more: Tensor) -> Tensor:
    """more: biases, and masks of truth values."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    for bias in (x for x in more if x.is_floating_point()):
        scores = scores + bias
    weights = F.silu(scores)
    for mask in (x for x in more if not x.is_floating_point()):
        weights = weights.masked_fill(~mask, 0.0)
    return weights.to(query.dtype) @ value


def compiled(kernel: str) -> Callable:
    torch._dynamo.reset()
    if kernel == "stock":
        return torch.compile(attention, dynamic=False)
    return gdpa(dynamic=False, kernel=kernel, profit=False)(attention)


def operands(size: Sequence[int], form: str, dtype: torch.dtype) -> list[Tensor]:
    sizes = dict(zip("bhm", size)) | {"n": size[2]}
    given = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    if form == "mask":
        return [*given, torch.ones(size[2], size[2], device="cuda").tril().bool()]
    shape = [sizes[x] for x in FORMS[form]]
    return given + ([torch.randn(shape, device="cuda", dtype=dtype)] if shape else [])


def row(kernel: str, size: Sequence[int], form: str, dtype: torch.dtype) -> str:
    given = [x.requires_grad_(x.is_floating_point()) for x in operands(size, form, dtype)]
    leaves, direction = [x for x in given if x.requires_grad], torch.randn_like(given[0])
    function = compiled(kernel)

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*given)

    def step() -> Sequence[Tensor]:
        return torch.autograd.grad(function(*given), leaves, direction)

    peak = peak_extra_bytes(step, "cuda") if step() else None
    times = [do_bench(call, return_mode="median") for call in (forward, step)]
    figures = [f"{times[0]:.3f}", f"{times[1]:.3f}", f"{(peak or 0) / 2**20:.0f}"]
    return f"| {size} {form} {dtype} | {kernel} | {' | '.join(figures)} |"


def main() -> None:
    for size in SIZES:
        for form in FORMS:
            dtypes = (torch.bfloat16, torch.float32) if FORMS[form] and form != "mask" else ()
            for dtype in dtypes or (torch.bfloat16,):
                for kernel in KERNELS:
                    print(row(kernel, size, form, dtype), flush=True)


if __name__ == "__main__":
    main()
