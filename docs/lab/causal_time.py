"""Rate of dense causal attention on Hopper: `python docs/lab/causal_time.py`, with CuTe DSL.

The mask is written in the formula, so tiles that it hides are left out. bf16, D = 128, silu,
batch · N = 32768, 4 heads, deterministic. TFLOP/s of the scores that exist, N · (N + 1) / 2, of two
products in the forward and five in the backward. Medians of seven medians, in turn.
"""

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from triton.testing import do_bench

from benchmarks.contenders import gdpa

LENGTHS, TOKENS, HEADS, DIM, TURNS = (1024, 2048, 8192), 32768, 4, 128, 7


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    place = torch.arange(query.shape[-2], device=query.device)
    weights = F.silu(query @ key.mT * DIM**-0.5)
    return torch.where(place[:, None] >= place, weights, 0.0) @ value


def measures(length: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """By name: how many products, and the call."""
    torch.manual_seed(0)
    shape = (TOKENS // length, HEADS, length, DIM)
    *leaves, direction = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    function = gdpa(strict=True, expect=1)(causal)
    out = function(*(leaf.requires_grad_() for leaf in leaves))

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return function(*leaves)

    forward()
    return {
        "forward": (2, forward),
        "backward": (
            5, lambda: torch.autograd.grad(out, leaves, direction, retain_graph=True),
        ),
    }  # fmt: skip


def main() -> None:
    print(torch.cuda.get_device_name())
    for length in LENGTHS:
        for name, (products, call) in measures(length).items():
            turns = [do_bench(call, warmup=10, rep=50, return_mode="median") for _ in range(TURNS)]
            pairs = TOKENS * HEADS * (length + 1) / 2
            rate = 2 * products * pairs * DIM / statistics.median(turns) / 1e9
            print(f"{name}, N = {length}: {rate:.0f} ({max(turns) / min(turns):.2f})", flush=True)


if __name__ == "__main__":
    main()
