"""The sequential recommender of the HSTU paper, as its research code writes it, padded.

One projection to u, v, q, k with silu on all of them; products by einsum on strided views; a
learned bias of positions and of time buckets, with its gradient; silu, a division by the length,
and a causal mask of floats after it; the norm and the gate; the residual.
"""

import copy

import torch
import torch.nn.functional as F


class RelativeBias(torch.nn.Module):
    """Bias [B, N, N] of positions and log-bucketed times: both tables learn."""

    def __init__(self, longest: int, buckets: int = 16) -> None:
        super().__init__()
        self.longest, self.buckets = longest, buckets
        self.times = torch.nn.Parameter(torch.randn(buckets + 1) * 0.1)
        self.positions = torch.nn.Parameter(torch.randn(2 * longest - 1) * 0.1)

    def forward(self, timestamps: torch.Tensor) -> torch.Tensor:
        b, n = timestamps.shape
        padded = F.pad(self.positions[: 2 * n - 1], [0, n]).repeat(n)
        padded = padded[..., :-n].reshape(1, n, 3 * n - 2)
        r = (2 * n - 1) // 2
        positions = padded[..., r:-r]
        following = torch.cat([timestamps, timestamps[:, n - 1 : n]], dim=1)
        apart = following[:, 1:].unsqueeze(2) - following[:, :-1].unsqueeze(1)
        bucket = (torch.log(torch.abs(apart).clamp(min=1)) / 0.301).long().clamp(0, self.buckets)
        times = torch.index_select(self.times, dim=0, index=bucket.detach().view(-1))
        return positions + times.view(b, n, n)


class Layer(torch.nn.Module):
    """One block: x [B, N, width] -> the same."""

    def __init__(self, width: int, heads: int, qk: int, hidden: int, longest: int) -> None:
        super().__init__()
        self.width, self.heads, self.qk, self.hidden = width, heads, qk, hidden
        self.uvqk = torch.nn.Parameter(torch.randn(width, 2 * heads * (qk + hidden)) * 0.2)
        self.bias = RelativeBias(longest)
        self.out = torch.nn.Linear(heads * hidden, width)

    def forward(self, x: torch.Tensor, times: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        mixed = F.silu(torch.mm(F.layer_norm(x, [self.width]).view(b * n, -1), self.uvqk))
        sizes = [self.hidden * self.heads] * 2 + [self.qk * self.heads] * 2
        u, v, q, k = torch.split(mixed, sizes, dim=1)
        scores = torch.einsum(
            "bnhd,bmhd->bhnm",
            q.view(b, n, self.heads, self.qk),
            k.view(b, n, self.heads, self.qk),
        )
        scores = scores + self.bias(times).unsqueeze(1)
        weights = F.silu(scores) / n
        weights = weights * mask.unsqueeze(0).unsqueeze(0)
        output = torch.einsum(
            "bhnm,bmhd->bnhd", weights, v.reshape(b, n, self.heads, self.hidden)
        ).reshape(b * n, self.heads * self.hidden)
        gated = u * F.layer_norm(output, [self.hidden * self.heads])
        return self.out(F.dropout(gated, p=0.0, training=self.training)).view(b, n, -1) + x


class Recommender(torch.nn.Module):
    """Items [B, N] and their times -> logits [B, N, items]."""

    def __init__(self, items: int = 40, width: int = 24, longest: int = 40) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(items, width)
        self.layers = torch.nn.ModuleList(
            [Layer(width, heads=2, qk=8, hidden=12, longest=longest) for _ in range(2)]
        )
        self.register_buffer(
            "mask", torch.triu(torch.ones(longest, longest), 1).logical_not().float()
        )

    def forward(self, items: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        n = items.shape[1]
        x = self.items(items)
        for layer in self.layers:
            x = layer(x, times, self.mask[:n, :n])
        return x @ self.items.weight.t()


def batch(b: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 40, (b, n)), torch.randint(0, 5000, (b, n)).cumsum(1)


def gradients(model: torch.nn.Module, call, items, times) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits = call(items, times)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), items[:, 1:].flatten())
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters()}}


def exactly(model: torch.nn.Module, items, times) -> dict[str, torch.Tensor]:
    """The same in fp64."""
    exact = copy.deepcopy(model).double()
    return gradients(exact, exact, items, times)
