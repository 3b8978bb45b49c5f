"""Gradients: None, zeros and numbers are three things. Modes, hooks, modules with state."""

import torch
import torch.nn.functional as F

from .rows import (
    D64,
    Programs,
    after,
    fp64,
    ikv,
    leaves,
    normal,
    nothing,
    of_scores,
    qkv32,
    scored,
    square,
    weighted,
)

CASES, MORE = Programs(), Programs()


def qkvb():
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (6, 7))


@CASES.case(lambda: (*qkv32(), torch.tensor(1.5, requires_grad=True)), of=of_scores)
def learned_threshold_straight_through(s, c):
    hard = (s > c).float()
    soft = torch.sigmoid(s - c)
    return hard - soft.detach() + soft


CASES.table(
    nothing,
    of=of_scores,
    mask_from_learned=(
        lambda s, b, t: torch.where(b[None, :] > t[:, None], torch.relu(s), 0.0),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,), (6,)),
    ),
    long_of_learned=(
        lambda s, b: torch.relu(s) * (torch.arange(7)[None] < b.long()[:, None]).any(0),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,)),
    ),
)


CASES.table(
    qkvb,
    of=of_scores,
    data_of_expand_as=lambda s, b: torch.relu(s + b.expand_as(s).data),
    detached_sum_with_zeros=lambda s, b: torch.relu(s + (torch.zeros_like(s) + b).detach()),
    detached_where=lambda s, b: torch.relu(
        torch.where(s.detach() > 0, s, (b * torch.ones_like(s)).detach())
    ),
    learned_bounds=lambda s, b: torch.clamp(s, min=b, max=b + 1),
)


@CASES.case(qkvb, of=of_scores)
def bias_fill_by_score_item(s, b):
    w = s.clone()
    w.fill_(b.sum())
    return torch.relu(s * w)


@CASES.case(qkvb, of=of_scores)
def fill_of_scores_then_threshold(s, b):
    w = s.clone()
    w.fill_(1.0)
    return w * (s > 0)


@CASES.case(qkvb, of=of_scores)
def bias_only_in_a_fill(s, b):
    w = (s + b).fill_(2.0)
    return torch.relu(s) * w


@CASES.case(qkvb, of=of_scores)
def bias_zeroed(s, b):
    w = s + b
    w.zero_()
    w += s
    return torch.relu(w)


CASES.table(
    qkv32,
    detached_twin=lambda q, k, v: torch.relu(q @ k.mT) * torch.sigmoid((q @ k.mT).detach()) @ v,
    twin_of_detached_query=lambda q, k, v: (
        torch.relu(q @ k.mT) * torch.sigmoid(q.detach() @ k.mT) @ v
    ),
)


@CASES.case(qkv32)
def twin_under_no_grad(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        g = q @ k.mT
    return torch.relu(s) * torch.sigmoid(g) @ v


# Modes, hooks and functions of autograd

CASES.table(
    fp64,
    of=of_scores,
    custom_scale_grad=lambda s: torch.tanh(Scale.apply(s)),
    bool_activation_int=lambda s: (s > 0).int().double(),
    ones_like_activation=lambda s: torch.ones_like(s).tril(),
)


@CASES.case(fp64)
def inference_island(q, k, v):
    with torch.inference_mode():
        m = q @ k.mT > 0
    return (F.silu(q @ k.mT) * m.clone()) @ v


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 3


CASES.table(
    fp64,
    bias_from_key_mean=lambda q, k, v: torch.relu(q @ k.mT - k.mean(-1).unsqueeze(-2)) @ v,
    row_normalised_after=weighted(torch.sigmoid)(lambda w, v: (w @ v) / w.sum(-1, keepdim=True)),
    hook_on_scores=scored(
        after(
            lambda w, v: w.register_hook(lambda g: g.clamp(-0.1, 0.1)),
            lambda w, v: torch.tanh(w) @ v,
        )
    ),
)


class Stateful(torch.nn.Module):
    """Calls a function with itself and the operands."""

    def __init__(s, function):
        super().__init__()
        torch.manual_seed(3)
        s.function, s.__name__ = function, function.__name__
        s.linear = torch.nn.Linear(4, 4).double()
        s.scale = torch.nn.Parameter(torch.tensor(0.5, dtype=D64))
        s.bias = torch.nn.Parameter(torch.randn(5, 5, dtype=D64))
        s.key = torch.nn.Parameter(torch.randn(5, 4, dtype=D64))
        s.calls = 0
        s.register_buffer("count", torch.zeros((), dtype=torch.int64))
        s.register_buffer("running", torch.ones(5, 5, dtype=D64))
        s.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(s, q, k, v):
        return s.function(s, q, k, v)


def module(f):
    CASES.append((Stateful(f), fp64))


@module
def mod_running_stats(s, q, k, v):
    w = torch.sigmoid(q @ k.mT)
    with torch.no_grad():
        s.running.copy_(w.mean((0, 1)))
    return w @ v


# A step as an optimizer's, between output and backward.


# More of them

MORE.table(
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


@MORE.case(ikv())
def saved_tensor_hooks_around(q, k, v):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x):
        return F.relu(q @ k.mT) @ v


MORE.table(
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


MORE.append((_Running(), square()))
MORE += [
    (stack, normal((2, 6, 4)))
    for stack in (
        _Stack(Layer(), 3),
        _Stack(Layer(tied=True), 2),
        _Stack(Layer(tied=True), 1).eval(),
    )
]
