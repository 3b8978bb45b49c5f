"""Values wider than a kernel takes, in slices: `python docs/lab/slices.py [I N]`, on a Hopper with
CuTe DSL. I N: every N-th case from the I-th on. Processes side by side measure in turn.

Gated attention has one head, keys of 128 channels and values of 512 to 1536; batch · N = 32768, in
bf16. A line is a case: milliseconds of a forward by do_bench, ours in slices and Inductor's, their
ratio, and the errors of both against fp64. Causal is a program; so is the division by N after a
bias, which all batches share.
"""

import fcntl
import json
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from triton.testing import do_bench

from benchmarks.contenders import CONTENDERS, gdpa

TOKENS, DIM, LOCK = 32768, 128, "/tmp/slices.lock"
SIZES = ((1024, 1024), (2048, 1024), (4096, 1024), (2048, 1536), (4096, 1536), (2048, 512))
MU, SIGMA = math.sqrt(0.5), math.sqrt(1 / (4 * math.pi))  # of laplace
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu2": lambda x: torch.relu(x) ** 2,
    "laplace": lambda x: (1 + torch.special.erf((x - MU) / (SIGMA * math.sqrt(2)))) * 0.5,
}
BIASES = {"": None, "bias": torch.bfloat16, "fp32 bias": torch.float32}


def formula(activation: str, causal: bool) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        scores = q @ k.mT
        length = scores.shape[-1]
        scores = scores * DIM**-0.5 if bias is None else (scores + bias) / length
        weights = ACTIVATIONS[activation](scores)
        if causal:
            hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            weights = weights.masked_fill(hidden, 0.0)
        return weights.to(v.dtype) @ v

    return attend


def measure(activation: str, causal: bool, bias: str, length: int, width: int) -> dict:
    torch.manual_seed(0)
    torch.compiler.reset()
    batch = TOKENS // length
    given = [
        torch.randn(batch, 1, length, dim, device="cuda", dtype=torch.bfloat16)
        for dim in (DIM, DIM, width)
    ]
    if dtype := BIASES[bias]:
        given.append(torch.randn(length, length, device="cuda", dtype=dtype))
    plain = formula(activation, causal)
    calls = {
        "slices": gdpa(kernel="cute", profit=False)(plain),
        "Inductor": CONTENDERS["inductor"](plain),
    }
    exact = plain(*(x[:1].double() if x.dim() == 4 else x.double() for x in given))
    errors = {
        name: float(f"{(call(*given)[:1].double() - exact).norm() / exact.norm():.1e}")
        for name, call in calls.items()
    }
    with open(LOCK, "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        times = {name: median_ms(call, given) for name, call in calls.items()}
    return {
        "case": " ".join(filter(None, [activation, "causal" if causal else "", bias])),
        "N": length, "values": width, **times,
        "ratio": round(times["Inductor"] / times["slices"], 2),
        "errors": errors,
    }  # fmt: skip


def median_ms(call: Callable[..., Tensor], given: list[Tensor]) -> float:
    return round(do_bench(lambda: call(*given), rep=60, return_mode="median"), 4)


def main() -> None:
    masks = ("", True), ("", False), ("fp32 bias", True), ("bias", True)
    cases = [(a, causal, b, *size) for b, causal in masks for a in ACTIVATIONS for size in SIZES]
    first, step = map(int, sys.argv[1:] or (0, 1))
    with torch.no_grad():
        for case in cases[first::step]:
            print(json.dumps(measure(*case)), flush=True)


if __name__ == "__main__":
    main()
