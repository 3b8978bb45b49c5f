"""A learned table's gradient against its traffic: `python docs/lab/table_gradient.py`, on a GPU.

The gradient's time is that of a backward with the table, less that of one with the bias itself. The
bound reads the bias's gradient and the index once, at the rate of a copy. Milliseconds; with
`cpu` behind the command small sizes are run, to try the script.
"""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa_inductor import gdpa_backend
from gdpa_inductor.measure import medians_ms

DEVICE = "cpu" if "cpu" in sys.argv else "cuda"
SIZES = ((2, 2, 64, 16),) if DEVICE == "cpu" else ((16, 4, 1024, 128), (16, 4, 2048, 128))
BUCKETS = 129
# The index's dims, the table's shape behind its buckets, and the bias that they make. b, h, n are
# the samples, heads and tokens.
FORMS: dict[str, tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = {
    "table[i], a sample each": ("bnn", "", lambda t, i: t[i][:, None]),
    "table[i], all alike": ("nn", "", lambda t, i: t[i]),
    "F.embedding, a head each": ("nn", "h", lambda t, i: F.embedding(i, t).permute(2, 0, 1)),
    "index_select, a sample each": (
        "bnn", "", lambda t, i: t.index_select(0, i.view(-1)).view(i.shape)[:, None]
    ),
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


def row(size: tuple[int, ...], name: str) -> str:
    dims, behind, look_up = FORMS[name]
    sizes = dict(zip("bhnd", size))
    given = [torch.randn(size, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
    index = torch.randint(BUCKETS, [sizes[x] for x in dims], device=DEVICE)
    table = torch.randn([BUCKETS, *(sizes[x] for x in behind)], device=DEVICE)
    bias = look_up(table, index).detach().clone()

    def looked_up(query, key, value, table, index):
        return attention(query, key, value, look_up(table, index))

    spent = backward(looked_up, [*given, table, index], table)
    spent -= backward(attention, [*given, bias], bias)
    # A copy moves twice what it copies.
    held = torch.empty(1 << (20 if DEVICE == "cpu" else 30), device=DEVICE, dtype=torch.int8)
    rate = 2 * held.nbytes / medians_ms({"copy": held.clone}, DEVICE)["copy"]
    bound = (bias.nbytes + index.nbytes) / rate
    return f"| {size} | {name} | {spent:.3f} | {bound:.3f} | {spent / bound:.2f} |"


def main() -> None:
    print("| size | look-up | gradient | bound | ratio |\n|---|---|---:|---:|---:|")
    for size in SIZES:
        for name in FORMS:
            print(row(size, name), flush=True)


if __name__ == "__main__":
    main()
