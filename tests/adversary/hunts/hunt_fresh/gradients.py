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
    detach_weights=lambda s: torch.sigmoid(s).detach(),
    detach_scores_in_gate=lambda s: s * torch.sigmoid(s.detach()),
    custom_scale_grad=lambda s: torch.tanh(Scale.apply(s)),
    arg_unused_grad=lambda s: torch.sigmoid(s * 0),
    const_activation=lambda s: (torch.sigmoid(s) > 0).to(D64),
    floor_activation=torch.floor,
    bool_activation_int=lambda s: (s > 0).int().double(),
    ones_like_activation=lambda s: torch.ones_like(s).tril(),
    detach_where=lambda s: torch.where(s > 0, s, s.detach()),
    detach_add=lambda s: s + s.detach(),
)


@case(fp64, of=of_scores)
def straight_through(s):
    h = (s > 0).to(s.dtype)
    soft = torch.sigmoid(s)
    return h + soft - soft.detach()


@case(fp64)
def no_grad_scores_only(q, k, v):
    with torch.no_grad():
        s = q @ T(k)
    return torch.tanh(s) @ v


@case(fp64, of=weighted(torch.tanh))
def no_grad_value(w, v):
    with torch.no_grad():
        u = v * 2
    return w @ u


@case(fp64, of=weighted(torch.tanh))
def no_grad_last_product(w, v):
    with torch.no_grad():
        o = w @ v
    return o, w.sum()


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
    bias_from_query=lambda q, k, v: torch.relu(q @ T(k) + q[..., :1]) @ v,
    bias_from_key_mean=lambda q, k, v: torch.relu(q @ T(k) - k.mean(-1).unsqueeze(-2)) @ v,
    mul_detached_mask_param=lambda q, k, v: (
        (torch.relu(q @ T(k)) * torch.sigmoid(v[..., 0]).unsqueeze(-2)) @ v
    ),
    weights_detached_returned=weighted(torch.sigmoid)(lambda w, v: (w @ v, w.detach().mean())),
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
def mod_counter(s, q, k, v):
    s.count += 1
    return F.silu(s.linear(q) @ T(s.linear(k)) * s.scale) @ s.linear(v) * s.count


@module
def mod_running_stats(s, q, k, v):
    w = torch.sigmoid(q @ T(k))
    with torch.no_grad():
        s.running.copy_(w.mean((0, 1)))
    return w @ v


@module
def mod_param_inplace_between(s, q, k, v):
    x = F.silu(q @ T(k) + s.scale.detach())
    with torch.no_grad():
        s.scale.mul_(2)
    return x @ v + s.scale


@module
def mod_python_state(s, q, k, v):
    s.calls += 1
    return F.silu(q @ T(k) * s.calls) @ v


@module
def mod_hook(s, q, k, v):
    h = s.linear.register_forward_hook(lambda m, i, o: o * 2)
    o = F.silu(q @ T(s.linear(k))) @ v
    h.remove()
    return o


# A step as an optimizer's, between output and backward.


@module
def StepInside(s, q, k, v):
    o = torch.sigmoid(q @ T(k) + s.bias) @ v
    s.bias.data.mul_(3)
    return o
