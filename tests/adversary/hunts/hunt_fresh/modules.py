"""Modules with state that is written."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs
from .given import T, fp64

PROGRAMS = Programs()


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
def mod_running_bias(s, q, k, v):
    o = torch.sigmoid(q @ T(k) + s.running) @ v
    s.running.mul_(0.9).add_(0.1)
    return o


@module
def mod_running_between(s, q, k, v):
    w = torch.sigmoid(q @ T(k)) * s.running
    with torch.no_grad():
        s.running = s.running * 0.5
    return w @ v


@module
def mod_running_stats(s, q, k, v):
    w = torch.sigmoid(q @ T(k))
    with torch.no_grad():
        s.running.copy_(w.mean((0, 1)))
    return w @ v


@module
def mod_mask_replaced(s, q, k, v):
    s.mask = s.mask.flip(0)
    return (F.relu(q @ T(k)) * s.mask) @ v


@module
def mod_param_inplace(s, q, k, v):
    with torch.no_grad():
        s.scale.mul_(2)
    return F.silu(q @ T(k) * s.scale) @ v


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
def mod_tied(s, q, k, v):
    return F.silu(s.linear(q) @ T(s.linear(q))) @ s.linear(q) @ s.linear.weight


@module
def mod_weight_as_key(s, q, k, v):
    return F.relu(q @ s.linear.weight.t()) @ s.linear.weight


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


@module
def StepInsideNoGrad(s, q, k, v):
    o = torch.sigmoid(q @ T(k) + s.bias) @ v
    with torch.no_grad():
        s.bias.mul_(3)
    return o


@module
def StepInsideKey(s, q, k, v):
    o = torch.sigmoid(q.detach() @ s.key.t()) @ v
    with torch.no_grad():
        s.key.mul_(3)
    return o
