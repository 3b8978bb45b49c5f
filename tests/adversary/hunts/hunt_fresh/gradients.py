"""Gradient modes, hooks, functions of autograd's; modules with state that is written."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, after
from .operands import T, fp64, of_scores, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

table(
    fp64,
    of=of_scores,
    custom_scale_grad=lambda s: torch.tanh(Scale.apply(s)),
    bool_activation_int=lambda s: (s > 0).int().double(),
    ones_like_activation=lambda s: torch.ones_like(s).tril(),
)


@case(fp64)
def inference_island(q, k, v):
    with torch.inference_mode():
        m = q @ T(k) > 0
    return (F.silu(q @ T(k)) * m.clone()) @ v


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 3


table(
    fp64,
    bias_from_key_mean=lambda q, k, v: torch.relu(q @ T(k) - k.mean(-1).unsqueeze(-2)) @ v,
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
    PROGRAMS.append((Stateful(f), fp64))


@module
def mod_running_stats(s, q, k, v):
    w = torch.sigmoid(q @ T(k))
    with torch.no_grad():
        s.running.copy_(w.mean((0, 1)))
    return w @ v


# A step as an optimizer's, between output and backward.
