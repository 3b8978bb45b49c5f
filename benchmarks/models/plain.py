"""Models without a package, written in plain torch after their papers.

Notation: B samples, N places, H heads of D channels, width W = H·D, M queries. The keys of a layer
that pools a history are its N places.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cases import Case
from .model import DEPTH, Built
from .packages import sequence

SEEDS, TOKENS, CANDIDATES = 48, 256, 96


def seeds(case: Case) -> int:
    return min(SEEDS, case.length // 2)


def tokens(case: Case) -> int:
    """The number of keys and values that PFFN generates for a sample."""
    return min(TOKENS, case.length // 2)


def candidates(case: Case) -> int:
    return min(CANDIDATES, case.length // 4)


class AttentionBlock(nn.Module):
    """Set Transformer's multihead attention block, with gelu in place of softmax.

    Q [B, M, W] and K [B, N, W] to [B, M, W]. The heads are folded into the batch.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(width, width) for _ in range(4))
        self.ln0, self.ln1 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q, k, v = self.fc_q(query), self.fc_k(key), self.fc_v(key)
        split = self.width // self.heads
        q_, k_, v_ = (torch.cat(x.split(split, 2), 0) for x in (q, k, v))
        weights = F.gelu(q_.bmm(k_.transpose(1, 2)) / math.sqrt(self.width))
        attended = torch.cat((q_ + weights.bmm(v_)).split(query.size(0), 0), 2)
        attended = self.ln0(attended)
        return self.ln1(attended + F.relu(self.fc_o(attended)))


class Pool(nn.Module):
    """Pooling by multihead attention. Queries are learned seeds, keys a set [B, N, W]."""

    def __init__(self, width: int, heads: int, seeds: int) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, seeds, width))
        nn.init.xavier_uniform_(self.seeds)
        self.block = AttentionBlock(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.block(self.seeds.repeat(x.size(0), 1, 1), x)
        return output


class Personalized(nn.Module):
    """PFFN, a feed-forward layer with weights of its own for each sample.

    A linear layer generates the weights from the context [B, W] of a sample. The layer is
    gelu(x W1) W2 on each head of x [B, N, W].
    """

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads, self.tokens = heads, tokens
        self.norm = nn.LayerNorm(width)
        self.generate = nn.Linear(width, 2 * tokens * 16)
        self.up = nn.Linear(16, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        b, n, width = x.shape
        generated = self.up(self.generate(context).view(b, 2, self.tokens, 16))
        first, second = generated.view(b, 2, self.tokens, self.heads, -1).permute(1, 0, 3, 2, 4)
        split = self.norm(x).view(b, n, self.heads, -1).transpose(1, 2)
        hidden = F.gelu(torch.matmul(split, first.transpose(-2, -1)))
        return x + torch.matmul(hidden, second).transpose(1, 2).reshape(b, n, width)


class SelfAttention(nn.Module):
    """x [B, N, W] plus a projection of act(Q Kᵀ / sqrt(D)) V / N, with a norm before it."""

    def __init__(self, width: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        attended = (self.activation(scores) / n) @ v
        return x + self.out(attended.transpose(1, 2).reshape(b, n, width))


class InterFormer(nn.Module):
    """A block that exchanges summaries between a sequence [B, N, W] and features [B, W].

    The features generate weights for the sequence. Self-attention follows. The sequence is then
    pooled into the features.
    """

    def __init__(self, width: int, heads: int, tokens: int, seeds: int) -> None:
        super().__init__()
        self.personalized = Personalized(width, heads, tokens)
        self.attention = SelfAttention(width, heads, nn.SiLU())
        self.pool = Pool(width, heads, seeds)
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        x = self.attention(self.personalized(x, features))
        summary = self.pool(x).mean(1)
        return x, features + self.mix(torch.cat([features, summary], -1))


class InterFormers(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        sizes = (width, case.heads, tokens(case), seeds(case))
        self.blocks = nn.ModuleList(InterFormer(*sizes) for _ in range(DEPTH))

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        for block in self.blocks:
            x, features = block(x, features)
        return torch.cat([x.mean(1), features], -1)


class ViT(nn.Module):
    """A vision transformer with ReLU attention (arXiv 2309.08586): patches of 16 pixels."""

    def __init__(self, case: Case, classes: int = 1000) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.randn(1, case.length, width) * 0.02)
        self.blocks = nn.ModuleList(
            SelfAttention(width, case.heads, nn.ReLU()) for _ in range(DEPTH)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(DEPTH)
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for attention, mlp in zip(self.blocks, self.mlps, strict=True):
            x = attention(x)
            x = x + mlp(x)
        output: Tensor = self.head(x.mean(1))
        return output


class TargetAttention(nn.Module):
    """Candidates [B, M, W] attend to a history [B, N, W], and an MLP gives each a logit.

    The weights are not normalized, as in DIN (arXiv 1706.06978).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, width), nn.PReLU(), nn.Linear(width, 1))

    def forward(self, candidates: Tensor, history: Tensor, valid: Tensor) -> Tensor:
        q = self.query(candidates).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(history).chunk(2, -1)
        k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (key, value))
        weights = torch.sigmoid(torch.einsum("bhmd,bhnd->bhmn", q, k) / q.shape[-1] ** 0.5)
        weights = weights.masked_fill(~valid[:, None, None, :], 0.0)
        interest = torch.einsum("bhmn,bhnd->bhmd", weights, v).transpose(1, 2).flatten(2)
        output: Tensor = self.mlp(torch.cat([candidates, interest], -1)).squeeze(-1)
        return output


def pma(case: Case) -> Built:
    return Built(Pool(case.heads * case.head_dim, case.heads, seeds(case)), (sequence(case),))


def pffn(case: Case) -> Built:
    x = sequence(case)
    width = x.shape[-1]
    layer = Personalized(width, case.heads, tokens(case))
    return Built(layer, (x, torch.randn(case.batch, width)))


def interformer(case: Case) -> Built:
    x = sequence(case)
    return Built(InterFormers(case), (x, torch.randn(case.batch, x.shape[-1])))


def vit(case: Case) -> Built:
    side = math.isqrt(case.length)
    if side * side != case.length:
        raise ValueError(f"{case.length} patches are no square image")
    return Built(ViT(case), (torch.randn(case.batch, 3, 16 * side, 16 * side),))


def target(case: Case) -> Built:
    history = sequence(case)
    width = history.shape[-1]
    wanted = torch.randn(case.batch, candidates(case), width)
    lengths = torch.randint(case.length // 4, case.length, (case.batch, 1))
    valid = torch.arange(case.length) < lengths
    return Built(TargetAttention(width, case.heads), (wanted, history, valid))
