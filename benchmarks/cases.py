"""The problems that are measured: a formula or a model, its operands and its number of FLOP.

In: `Case`, a plain value that is sent between processes as JSON. Out: `Subject`, the function as a
user would write it, and its arguments.

Notation: B batch, H heads, N queries and keys, D head dim of queries, keys and values.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Tensor]


def laplace(x: Tensor) -> Tensor:
    """The Laplace activation of Mega (arXiv 2209.10655)."""
    mean, deviation = math.sqrt(0.5), math.sqrt(0.25 / math.pi)
    return 0.5 * (1 + torch.erf((x - mean) / (deviation * math.sqrt(2))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "laplace": laplace,
    "square": torch.square,
    "identity": lambda x: x,
}
BUCKETS = 128


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem to measure. The variants are:

        "none"     The activation of the scores alone.
        "causal"   A mask tensor [N, N].
        "bias"     A learned bias [H, N, N], with its gradient.
        "scores"   A bias [B, H, N, N], with its gradient.
        "buckets"  A bias [B, N, N] by the distance of two time stamps, from a learned table.
        "cache"    A few queries over the keys of a cache, dense or jagged, without gradients.
        "layer"    A whole layer of HSTU, causal and jagged.
        "model"    One of models.MODELS, which `activation` names. The dtype "autocast" has
                   parameters in fp32 and products in bf16.

    Some fields:

    precision:  torch's float32 matmul precision.
    fill:       Above 0, queries are jagged. Their lengths are at most `length`, and `fill` times
                that on average.
    keys:       The keys of each sequence. By default as many as queries. In the variant "cache"
                keys are jagged, with at most so many.
    value_dim:  The head dim of values. By default `head_dim`.
    seed:       The seed of the data, and of the parameters of a model.
    """

    activation: str
    variant: str
    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: str
    device: str
    precision: str = "highest"
    fill: float = 0.0
    keys: int = 0
    value_dim: int = 0
    seed: int = 0

    @property
    def flops(self) -> int:
        """The FLOP of the two products of a forward.

        Masked scores count, as in published figures. The exception is a causal mask over jagged
        sequences.
        """
        return 2 * self.scores * self.heads * (self.head_dim + (self.value_dim or self.head_dim))

    @property
    def padded_scores(self) -> int:
        """The scores of all heads with padding, which an unfused form stores."""
        return self.batch * self.heads * self.length * (self.keys or self.length)

    @property
    def scores(self) -> int:
        """The scores of one head."""
        if not self.fill:
            return self.batch * self.length * (self.keys or self.length)
        rows = self.lengths().long()
        others = self.length if self.variant == "cache" else self.keys or rows
        count = int((rows * others).sum())
        return count // 2 if self.variant == "causal" else count

    @property
    def cache_bytes(self) -> int:
        """The bytes of the existing keys and values."""
        each = self.heads * (self.head_dim + (self.value_dim or self.head_dim))
        size: int = getattr(torch, self.dtype).itemsize
        return self.scores // self.length * each * size

    def lengths(self) -> Tensor:
        """The lengths of the jagged side, int32 [B], the same at every call.

        With a fill of 1 all have the greatest length. Otherwise they are drawn uniformly.
        """
        most = self.keys if self.variant == "cache" else self.length
        if self.fill == 1.0:
            return torch.full((self.batch,), most, dtype=torch.int32)
        low = max(int((2 * self.fill - 1) * most), 1)
        high = most if self.fill >= 0.5 else max(int(2 * self.fill * most), 2)
        drawn = torch.Generator().manual_seed(2025)
        return torch.randint(low, high, (self.batch,), generator=drawn, dtype=torch.int32)

    def label(self) -> str:
        shape = f"{self.batch}x{self.heads}x{self.length}x{self.head_dim}"
        shape += f" fill {self.fill}" if self.fill else ""
        shape += f" keys {self.keys}" if self.keys else ""
        shape += f" values {self.value_dim}" if self.value_dim else ""
        shape += f" seed {self.seed}" if self.seed else ""
        precision = "" if self.dtype != "float32" else f"/{self.precision}"
        return f"{self.activation} {self.variant} {shape} {self.dtype}{precision}"

    @staticmethod
    def parse(fields: dict[str, Any]) -> "Case":
        return Case(**fields)


@dataclasses.dataclass(frozen=True)
class Subject:
    """The call that is measured: `function(*inputs)`.

    A training step also computes the gradients of `leaves`. `direction` is the gradient of the
    output. autocast: The dtype of products under autocast, or None.
    """

    function: Function
    inputs: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]
    direction: Tensor
    autocast: torch.dtype | None = None

    def running(self, function: Function) -> Tensor:
        """The output of `function`, which runs in place of `self.function`, on the arguments."""
        if self.autocast is None:
            return function(*self.inputs)
        with torch.autocast(self.direction.device.type, dtype=self.autocast):
            return function(*self.inputs)


def formula(case: Case) -> Function:
    """The formula of a case in plain torch. Its arguments are those that `operands` returns."""
    activation = ACTIVATIONS[case.activation]
    scale = case.head_dim**-0.5

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return activation(q @ k.transpose(-2, -1) * scale) @ v

    def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return activation(q @ k.transpose(-2, -1) * scale).masked_fill(~mask, 0.0) @ v

    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return activation(q @ k.transpose(-2, -1) * scale + bias) @ v

    def bucketed(q: Tensor, k: Tensor, v: Tensor, table: Tensor, times: Tensor) -> Tensor:
        apart = (times[:, 1:, None] - times[:, None, :-1]).abs().clamp(min=1)
        bucket = (torch.log(apart) / 0.301).long().clamp(max=BUCKETS)
        return biased(q, k, v, table[bucket].unsqueeze(1).to(q.dtype))

    variants: dict[str, Function] = {
        "none": plain, "causal": causal, "bias": biased, "scores": biased,
        "buckets": bucketed,
    }  # fmt: skip
    return variants[case.variant]


def operands(case: Case) -> list[Tensor]:
    """Random q [B, H, N, D], k and v, and then the tensors that the variant adds.

    All floating-point tensors require gradients.
    """
    dtype = getattr(torch, case.dtype)
    queries, keys = case.length, case.keys or case.length
    square = (queries, keys)
    sizes = (
        (queries, case.head_dim),
        (keys, case.head_dim),
        (keys, case.value_dim or case.head_dim),
    )
    tensors = [
        torch.randn(case.batch, case.heads, *size, device=case.device, dtype=dtype)
        for size in sizes
    ]
    if case.variant == "causal":
        tensors.append(torch.ones(square, device=case.device, dtype=torch.bool).tril())
    if case.variant in ("bias", "scores"):
        own = () if case.variant == "bias" else (case.batch,)
        tensors.append(torch.randn(*own, case.heads, *square, device=case.device, dtype=dtype))
    if case.variant == "buckets":  # time stamps in seconds, as in HSTU's research model
        tensors.append(torch.randn(BUCKETS + 1, device=case.device))
        gaps = torch.randn(case.batch, case.length + 1, device=case.device).mul(2.0).add(6.0).exp()
        tensors.append(gaps.long().cumsum(1))
    return [t.requires_grad_(t.is_floating_point()) for t in tensors]
