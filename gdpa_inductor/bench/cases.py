"""What is measured: one formula, its operands, and how many operations it counts as.

In: `Case`, a plain value that travels between processes as JSON. Out: the function as a user would
write it, and its operands.

Notation: B batch, H heads, N query and key rows, D head dim of queries, keys and values.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem. `variant`: "none", "causal" (a mask tensor [N, N]) or "bias" (a learned bias
    [H, N, N] with its gradient). `precision`: torch's float32 matmul precision."""

    activation: str
    variant: str
    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: str
    device: str
    precision: str = "highest"

    @property
    def flops(self) -> int:
        """Of the forward: two products. Masked places count, as in the published figures."""
        return 4 * self.batch * self.heads * self.length**2 * self.head_dim

    def label(self) -> str:
        shape = f"{self.batch}x{self.heads}x{self.length}x{self.head_dim}"
        precision = "" if self.dtype != "float32" else f"/{self.precision}"
        return f"{self.activation} {self.variant} {shape} {self.dtype}{precision}"

    @staticmethod
    def parse(fields: dict[str, Any]) -> "Case":
        return Case(**fields)


def formula(case: Case) -> Function:
    """The case in plain torch, with as many operands as `operands` gives."""
    activation = ACTIVATIONS[case.activation]
    scale = case.head_dim**-0.5

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return activation(q @ k.transpose(-2, -1) * scale) @ v

    def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return activation(q @ k.transpose(-2, -1) * scale).masked_fill(~mask, 0.0) @ v

    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return activation(q @ k.transpose(-2, -1) * scale + bias) @ v

    variants: dict[str, Function] = {"none": plain, "causal": causal, "bias": biased}
    return variants[case.variant]


def operands(case: Case) -> list[Tensor]:
    """Random data, the same for the same case; what is a float tensor wants its gradient."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    shape = (case.batch, case.heads, case.length, case.head_dim)
    square = (case.length, case.length)
    found = [torch.randn(shape, device=case.device, dtype=dtype) for _ in range(3)]
    if case.variant == "causal":
        found.append(torch.ones(square, device=case.device, dtype=torch.bool).tril())
    if case.variant == "bias":
        found.append(torch.randn(case.heads, *square, device=case.device, dtype=dtype))
    return [t.requires_grad_(t.is_floating_point()) for t in found]
