"""A learned table's gradient against its traffic: `python docs/lab/table_gradient.py`, on a GPU.

The gradient's time is that of a backward with the table, less that of one with the bias itself: by
the kernel with tables in shared memory, and by additions to copies of the table. The bound reads
the bias's gradient, in fp32, and the index once, at the rate of a copy. All in milliseconds. With
`cpu` behind the command small sizes are run, to try the script.
"""

import sys
from collections.abc import Callable
from unittest import mock

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import medians_ms
from gdpa_inductor import gdpa_backend
from gdpa_inductor.lowerings import tables

DEVICE = "cpu" if "cpu" in sys.argv else "cuda"
SIZES = ((2, 2, 64, 16),) if DEVICE == "cpu" else ((16, 4, 1024, 128), (16, 4, 2048, 128))
BUCKETS = 129


def drawn(samples: int, tokens: int) -> Tensor:
    """Buckets at random."""
    return torch.randint(BUCKETS, (samples, tokens, tokens), device=DEVICE)


def times(samples: int, tokens: int) -> Tensor:
    """HSTU's buckets of the time between two tokens: its logarithm. Gaps are log-normal."""
    gaps = torch.exp(torch.randn(samples, tokens, device=DEVICE) * 2 + 6)
    stamps = gaps.cumsum(1).long()
    apart = (stamps[:, :, None] - stamps[:, None, :]).abs().clamp(min=1)
    return (torch.log(apart.float()) / 0.301).long().clamp(0, BUCKETS - 1)


def distances(samples: int, tokens: int) -> Tensor:
    """How far two tokens are apart. The table has twice as many elements as there are tokens."""
    at = torch.arange(tokens, device=DEVICE)
    return (at[:, None] - at + tokens - 1).expand(samples, -1, -1).contiguous()


# What makes the index, and the bias that is looked up. All samples may read one index.
FORMS: dict[str, tuple[Callable[[int, int], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "at random": (drawn, lambda t, i: t[i][:, None]),
    "times": (times, lambda t, i: t[i][:, None]),
    "distances": (distances, lambda t, i: t[i][:, None]),
    "times of one sample": (times, lambda t, i: t[i[0]]),
}  # fmt: skip


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5 + bias
    return F.silu(scores).to(value.dtype) @ value


def backward(function: Callable[..., Tensor], operands: list[Tensor], learns: Tensor) -> float:
    """Milliseconds of the gradients of query, key, value and `learns`."""
    leaves = [*operands[:3], learns]
    for leaf in leaves:
        leaf.requires_grad_()
    torch._dynamo.reset()
    options = {"gdpa.expect": 1, "gdpa.profit": False}
    compiled = torch.compile(function, backend=gdpa_backend, options=options, dynamic=False)
    direction = torch.randn_like(operands[0])

    def forward() -> Tensor:
        return compiled(*operands)

    def step() -> object:
        return torch.autograd.grad(compiled(*operands), leaves, direction)

    step()
    times = medians_ms({"forward": forward, "step": step}, DEVICE)
    return times["step"] - times["forward"]


def row(size: tuple[int, int, int, int], name: str) -> str:
    samples, _, tokens, _ = size
    make, look_up = FORMS[name]
    given = [torch.randn(size, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
    index = make(samples, tokens)
    table = torch.randn(int(index.max()) + 1, device=DEVICE)
    bias = look_up(table, index).detach().clone()

    def looked_up(query, key, value, table, index):
        return attention(query, key, value, look_up(table, index))

    bare = backward(attention, [*given, bias], bias)
    spent = []
    for many in (0, 1 << 62):
        with mock.patch.object(tables, "MANY", many):
            spent.append(backward(looked_up, [*given, table, index], table) - bare)
    # A copy moves twice what it copies.
    held = torch.empty(1 << (20 if DEVICE == "cpu" else 30), device=DEVICE, dtype=torch.int8)
    rate = 2 * held.nbytes / medians_ms({"copy": held.clone}, DEVICE)["copy"]
    read = index if bias.dim() == 4 else index[0]
    bound = (bias.nbytes + read.nbytes) / rate
    found = " | ".join(f"{x:.3f} | {x / bound:.2f}" for x in spent)
    return f"| {size} | {name} | {bound:.3f} | {found} |"


@torch._inductor.config.patch(force_disable_caches=True)
def main() -> None:
    print("| size | places | bound | kernel | ratio | copies | ratio |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for size in SIZES:
        for name in FORMS:
            print(row(size, name), flush=True)


if __name__ == "__main__":
    main()
