"""A recommender of two layers like HSTU's, written in plain PyTorch as users write it.

In: item histories as ids [B, N], 0 after the end. Out: the sampled-softmax loss of predicting each
next item, or a hidden state of each place. This file does not use gdpa_inductor: models need no
change.

Notation: B users, N places, D channels, H heads, K sampled negatives.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelativeBias(nn.Module):
    """A learned bias for each head and each distance of a query and a key. Returns [H, N, N]."""

    distance: Tensor

    def __init__(self, heads: int, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 2 * length - 1) * 0.02)
        place = torch.arange(length)
        distance = place[:, None] - place[None, :] + length - 1
        self.register_buffer("distance", distance, persistent=False)

    def forward(self) -> Tensor:
        return self.table[:, self.distance]


class Layer(nn.Module):
    """A sequential transduction unit: pointwise attention, gated by u. [B, N, D] to [B, N, D]."""

    mask: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in = nn.LayerNorm(width)
        self.norm_out = nn.LayerNorm(width)
        self.uvqk = nn.Linear(width, 4 * width)
        self.out = nn.Linear(width, width)
        self.bias = RelativeBias(heads, length)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        self.register_buffer("mask", causal, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.size(1)
        u, v, q, k = F.silu(self.uvqk(self.norm_in(x))).chunk(4, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) + self.bias()
        weights = (F.silu(scores) / n).masked_fill(~self.mask, 0.0)
        y = (weights @ v).transpose(1, 2).flatten(-2)
        return x + self.out(self.norm_out(y) * u)


class Recommender(nn.Module):
    """The model: embeddings, layers, and scores of items by dot products with their embeddings."""

    def __init__(
        self, items: int, length: int, width: int = 64, heads: int = 2, layers: int = 2
    ) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, length) for _ in range(layers))
        self.temperature = 0.1
        nn.init.normal_(self.items.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def encode(self, history: Tensor) -> Tensor:
        """The hidden states [B, N, D] of ids [B, N].

        The state of a place is a unit vector. It depends only on this place and those before it.
        """
        x = self.items(history) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x, dim=-1)

    def forward(self, history: Tensor, target: Tensor, negatives: Tensor) -> Tensor:
        """The mean loss over the places whose target is not 0.

        history, target: The ids [B, N]. negatives: The ids of sampled items, [K].
        """
        hidden = self.encode(history)
        wanted = F.normalize(self.items(target), dim=-1)
        others = F.normalize(self.items(negatives), dim=-1)
        positive = (hidden * wanted).sum(-1, keepdim=True)
        negative = hidden @ others.T
        collides = target[..., None] == negatives
        negative = negative.masked_fill(collides, -1e4)
        logits = torch.cat([positive, negative], dim=-1) / self.temperature
        loss = logits.logsumexp(-1) - logits[..., 0]
        valid = (target != 0).to(loss.dtype)
        return (loss * valid).sum() / valid.sum()

    def rank(self, history: Tensor, last: Tensor) -> Tensor:
        """The scores [B, items + 1] of all items as the next one after the place `last` [B]."""
        hidden = self.encode(history)
        state = hidden[torch.arange(len(history), device=history.device), last]
        return state @ F.normalize(self.items.weight, dim=-1).T
