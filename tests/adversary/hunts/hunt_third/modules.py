"""Modules with state; layers that are stacked, tied or normalised."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, square

PROGRAMS = Programs()
three = normal(*[(2, 6, 4)] * 3)


class _Running(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.5, dtype=D64))
        self.register_buffer("count", torch.tensor(1.0, dtype=D64))
        self.register_buffer("mean", torch.zeros(4, dtype=D64))

    def forward(self, q, k, v):
        self.count.add_(1)
        s = q @ k.mT * self.scale / self.count
        self.mean.lerp_(v.detach().mean((0, 1, 2)), 0.1)
        return F.silu(s) @ (v - self.mean)


class _Assigns(_Running):
    def forward(self, q, k, v):
        self.count = self.count + 1
        out = F.silu(q @ k.mT * self.scale / self.count) @ v
        self.mean = out.detach().mean((0, 1, 2))
        return out


class Layer(torch.nn.Module):
    def __init__(self, d=4, tied=False):
        super().__init__()
        self.q = torch.nn.Linear(d, d, dtype=D64)
        self.k = self.q if tied else torch.nn.Linear(d, d, dtype=D64)
        self.v = self.q if tied else torch.nn.Linear(d, d, dtype=D64)
        self.bias = torch.nn.Parameter(torch.zeros(6, 6, dtype=D64))
        self.drop = torch.nn.Dropout(0.0)

    def forward(self, x):
        s = self.q(x) @ self.k(x).mT + self.bias
        return x + self.drop(F.silu(s)) @ self.v(x)


class _Stack(torch.nn.Module):
    def __init__(self, layer, times):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        for _ in range(self.times):
            x = self.layer(x)
        return x


class _Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6, dtype=D64)

    def forward(self, q, k, v):
        return F.silu(self.norm(q @ k.mT)) @ v


class _NormOperands(_Norm):
    def forward(self, q, k, v):
        norm = self.norm
        return F.silu(norm(q) @ norm(k).mT) @ norm(v) + norm.running_mean[:, None]


class _MaskBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.bool).tril())
        self.slopes = torch.nn.Parameter(torch.randn(2, 1, 1, dtype=D64))

    def forward(self, q, k, v):
        n = q.shape[2]
        s = q @ k.mT + self.slopes * (torch.arange(n)[:, None] - torch.arange(n))
        s = s.masked_fill(~self.mask[:n, :n], 0)
        with torch.no_grad():
            self.mask.logical_not_()
        return F.silu(s) @ v


class _Depth(torch.nn.Module):
    def forward(self, q, k, v):
        if self.training and torch.rand(1).item() < -1:
            return v
        return F.silu(q @ k.mT) @ v


PROGRAMS += [(kind(), square()) for kind in (_Running, _Assigns, _MaskBuffer, _Depth)]
PROGRAMS += [(kind(), three) for kind in (_Norm, _NormOperands)]
PROGRAMS += [
    (stack, normal((2, 6, 4)))
    for stack in (
        _Stack(Layer(), 3),
        _Stack(Layer(tied=True), 2),
        _Stack(Layer(tied=True), 1).eval(),
    )
]
