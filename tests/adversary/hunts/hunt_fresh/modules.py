"""Modules with state that is written."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs
from .given import T, fp64

PROGRAMS = Programs()


class Mod(torch.nn.Module):
    def __init__(s, f):
        super().__init__()
        torch.manual_seed(3)
        s.f = f
        s.l = torch.nn.Linear(4, 4).double()
        s.g = torch.nn.Parameter(torch.tensor(0.5, dtype=D64))
        s.n = 0
        s.register_buffer("c", torch.zeros((), dtype=torch.int64))
        s.register_buffer("run", torch.ones(5, 5, dtype=D64))
        s.register_buffer("m", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(s, q, k, v):
        return s.f(s, q, k, v)


def module(f):
    m = Mod(f)
    m.__name__ = f.__name__
    PROGRAMS.append((m, fp64))
    return f


@module
def mod_counter(s, q, k, v):
    s.c += 1
    return F.silu(s.l(q) @ T(s.l(k)) * s.g) @ s.l(v) * s.c


@module
def mod_running_bias(s, q, k, v):
    o = torch.sigmoid(q @ T(k) + s.run) @ v
    s.run.mul_(0.9).add_(0.1)
    return o


@module
def mod_running_between(s, q, k, v):
    w = torch.sigmoid(q @ T(k)) * s.run
    with torch.no_grad():
        s.run = s.run * 0.5
    return w @ v


@module
def mod_running_stats(s, q, k, v):
    w = torch.sigmoid(q @ T(k))
    with torch.no_grad():
        s.run.copy_(w.mean((0, 1)))
    return w @ v


@module
def mod_mask_replaced(s, q, k, v):
    s.m = s.m.flip(0)
    return (F.relu(q @ T(k)) * s.m) @ v


@module
def mod_param_inplace(s, q, k, v):
    with torch.no_grad():
        s.g.mul_(2)
    return F.silu(q @ T(k) * s.g) @ v


@module
def mod_param_inplace_between(s, q, k, v):
    x = F.silu(q @ T(k) + s.g.detach())
    with torch.no_grad():
        s.g.mul_(2)
    return x @ v + s.g


@module
def mod_python_state(s, q, k, v):
    s.n += 1
    return F.silu(q @ T(k) * s.n) @ v


@module
def mod_tied(s, q, k, v):
    return F.silu(s.l(q) @ T(s.l(q))) @ s.l(q) @ s.l.weight


@module
def mod_weight_as_key(s, q, k, v):
    return F.relu(q @ s.l.weight.t()) @ s.l.weight


@module
def mod_hook(s, q, k, v):
    h = s.l.register_forward_hook(lambda m, i, o: o * 2)
    o = F.silu(q @ T(s.l(k))) @ v
    h.remove()
    return o


class Parameters(torch.nn.Module):
    def __init__(s):
        super().__init__()
        torch.manual_seed(4)
        s.b = torch.nn.Parameter(torch.randn(5, 5, dtype=D64))
        s.k = torch.nn.Parameter(torch.randn(5, 4, dtype=D64))
        s.w = torch.nn.Parameter(torch.randn(4, 4, dtype=D64))
        s.i = 0


class StepInside(Parameters):
    """A step as an optimizer's, between output and backward, through `.data`."""

    def forward(s, q, k, v):
        o = torch.sigmoid(q @ T(k) + s.b) @ v
        s.b.data.mul_(3)
        return o


class StepInsideNoGrad(Parameters):
    def forward(s, q, k, v):
        o = torch.sigmoid(q @ T(k) + s.b) @ v
        with torch.no_grad():
            s.b.mul_(3)
        return o


class StepInsideKey(Parameters):
    def forward(s, q, k, v):
        o = torch.sigmoid(q.detach() @ s.k.t()) @ v
        with torch.no_grad():
            s.k.mul_(3)
        return o


for kind in (StepInside, StepInsideNoGrad, StepInsideKey):
    PROGRAMS.append((kind(), fp64))
