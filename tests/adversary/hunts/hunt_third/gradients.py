"""Gradient modes, hooks, gradients that are zero; modules with state."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, ikv, normal, of_scores, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    ikv(),
    of=of_scores,
    function_reverses_scores=lambda s: F.silu(Reverse.apply(s)),
)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


@case(ikv())
def saved_tensor_hooks_around(q, k, v):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x):
        return F.relu(q @ k.mT) @ v


table(
    ikv(),
    function_reverses_output=lambda q, k, v: Reverse.apply(F.silu(q @ k.mT) @ v),
)


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


PROGRAMS.append((_Running(), square()))
PROGRAMS += [
    (stack, normal((2, 6, 4)))
    for stack in (
        _Stack(Layer(), 3),
        _Stack(Layer(tied=True), 2),
        _Stack(Layer(tied=True), 1).eval(),
    )
]
