"""Gradient modes, hooks, gradients that are zero; modules with state."""

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    INF,
    Programs,
    ikv,
    normal,
    of_scores,
    scored,
    square,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(ikv())
def no_grad_scores(q, k, v):
    with torch.no_grad():
        s = q @ k.mT
    return F.silu(s) @ v


@case(ikv())
def no_grad_all(q, k, v):
    with torch.no_grad():
        o = F.silu(q @ k.mT) @ v
    return o * q.sum()


@case(ikv())
def no_grad_twin(q, k, v):
    with torch.no_grad():
        g = (q @ k.mT).sigmoid()
    return (q @ k.mT * g) @ v


@case(ikv(), of=of_scores)
def set_grad_enabled_inside(s):
    torch._C._set_grad_enabled(False)
    m = s > 0
    torch._C._set_grad_enabled(True)
    return s * m


@case(ikv(), of=of_scores)
def mask_made_without_gradient(s):
    with torch.no_grad():
        m = (s > 0).to(s.dtype) * s.sigmoid()
    return s * m


@case(ikv())
def inference_mode_mask(q, k, v):
    with torch.inference_mode():
        _mask = torch.ones(5, 7, dtype=q.dtype).tril()
    return (F.relu(q @ k.mT)) @ v


table(
    ikv(),
    of=of_scores,
    detached_weights=lambda s: s.sigmoid().detach(),
    function_straight_through=lambda s: Straight.apply(s),
    function_reverses_scores=lambda s: F.silu(Reverse.apply(s)),
)


@case(ikv())
def hook_on_query(q, k, v):
    p = q * 1
    p.register_hook(lambda g: g * 3)
    return F.silu(p @ k.mT) @ v


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


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
    detached_twin=lambda q, k, v: (q @ k.mT * (q.detach() @ k.detach().mT).sigmoid()) @ v,
    detached_query_twin=lambda q, k, v: (q @ k.mT * (q.detach() @ k.mT).sigmoid()) @ v,
    twin_of_cloned_query=lambda q, k, v: ((q.clone() @ k.mT).sigmoid() * (q @ k.mT)) @ v,
    function_reverses_output=lambda q, k, v: Reverse.apply(F.silu(q @ k.mT) @ v),
    function_makes_mask=lambda q, k, v: (
        (F.silu(q @ k.mT) * Straight.apply(q.sum(-1, keepdim=True))) @ v
    ),
    detached_value_and_scores=scored(lambda s, v: (s.detach().sigmoid() * s) @ v.detach()),
)
table(
    ikv(),
    of=of_scores,
    prefix="given_reach_",
    cancelled=(lambda s, a: s.relu() + a - a, normal((5, 7))),
    times_zero=(lambda s, a: s.relu() + 0 * a, normal((5, 7))),
    times_zero_plus_one=(lambda s, a: s.relu() * (a * 0 + 1), normal(7)),
    floor_of=(lambda s, a: s.relu() * a.floor(), normal(7)),
    sign_of=(lambda s, a: s.relu() * a.sign(), normal(7)),
    round_of=(lambda s, a: s.relu() * a.round(), normal(7)),
    greater=(lambda s, a: s.relu() * (a > 0), normal(7)),
    greater_both=(lambda s, a: s * (s > a), normal(7)),
    detached=(lambda s, a: s.relu() * a.detach(), normal(7)),
    detached_and_not=(lambda s, a: s.relu() * a.detach() + 0 * a, normal(7)),
    as_integers=(lambda s, a: s.relu() * a.long(), normal(7)),
    isnan_of=(lambda s, a: s.relu() * ~a.isnan(), normal(7)),
    clone_zeroed=(lambda s, a: s.relu() + a.clone().zero_(), normal(7)),
    clone_filled=(lambda s, a: s.relu() + a.clone().fill_(1.5), normal(7)),
    clone_copied=(lambda s, a, b: s.relu() + a.clone().copy_(b), normal(7), normal(7)),
    ones_like=(lambda s, a: s.relu() + torch.ones_like(a), normal(7)),
    power_zero=(lambda s, a: s.relu() * a**0, normal(7)),
    clamp_flipped=(lambda s, a: s.relu() * a.clamp(1, 1), normal(7)),
    where_false=(lambda s, a: torch.where(torch.zeros(7, dtype=torch.bool), a, s), normal(7)),
    where_python_false=(lambda s, a: torch.where(torch.tensor(False), a, s.relu()), normal(7)),
    masked_all=(
        lambda s, a: s.relu() + a.masked_fill(torch.ones(7, dtype=torch.bool), 0.0),
        normal(7),
    ),
    masked_where_true_scalar=(lambda s, a: s.masked_fill(torch.tensor(True), 1.0) + a, normal(7)),
    tril_never=(lambda s, a: s.relu() + a.tril(-9), normal((5, 7))),
    scores_times_zero=(lambda s, a: s * 0 + a, normal((5, 7))),
    scores_detached_plus=(lambda s, a: s.detach().relu() + a, normal((5, 7))),
    scores_signed=(lambda s, a: s.sign() * a, normal((5, 7))),
    lerp_weight_zero=(lambda s, a: torch.lerp(s, a, 0.0), normal((5, 7))),
    addcmul_value_zero=(lambda s, a: torch.addcmul(s, a, a, value=0), normal((5, 7))),
    add_alpha_zero=(lambda s, a: torch.add(s, a, alpha=0), normal((5, 7))),
    max_minus_infinity=(lambda s, a: torch.maximum(s, a - INF), normal((5, 7))),
    nan_to_num=(lambda s, a: s.relu() + torch.nan_to_num(a * INF, 0.0, 0.0, 0.0), normal((5, 7))),
    hardtanh_same=(
        lambda s, a: s + F.hardtanh(a, -1.0, 1.0) * F.threshold(a, 9.0, 0.0),
        normal((5, 7)),
    ),
    zero_dim=(lambda s, a, b: torch.sigmoid(s * a + b) * a, normal(()), normal(1)),
    zero_dim_fp32=(lambda s, a: torch.sigmoid(s * a), normal((), dtype=torch.float32)),
    zero_dim_item_free=(lambda s, a: torch.sigmoid(s * a[0, 0] + a[0, 1]), normal((1, 2))),
    same_operand_detached_and_not=(lambda s, a: torch.sigmoid(s * a.detach() + a), normal((5, 7))),
    zeros_batch_mask=(lambda s, a: s.sigmoid() * torch.zeros_like(a), normal((5, 7))),
)


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
