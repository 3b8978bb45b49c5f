"""Gradient modes, what is detached, hooks and functions of autograd's."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, after
from .given import T, attended, fp64, of_scores, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    fp64,
    of=of_scores,
    plain=lambda s: F.silu(s * 0.5),
    detach_weights=lambda s: torch.sigmoid(s).detach(),
    detach_scores_in_gate=lambda s: s * torch.sigmoid(s.detach()),
    custom_ste=lambda s: Ste.apply(s),
    custom_scale_grad=lambda s: torch.tanh(Scale.apply(s)),
    arg_unused_grad=lambda s: torch.sigmoid(s * 0),
    zero_activation=torch.zeros_like,
    const_activation=lambda s: (torch.sigmoid(s) > 0).to(D64),
    sign_activation=torch.sign,
    floor_activation=torch.floor,
    bool_activation_int=lambda s: (s > 0).int().double(),
    ones_like_activation=lambda s: torch.ones_like(s).tril(),
    detach_where=lambda s: torch.where(s > 0, s, s.detach()),
    detach_add=lambda s: s + s.detach(),
)


@case(fp64)
def row_normalised(q, k, v):
    w = F.relu(q @ T(k)) + 0.1
    w = w / w.sum(-1, keepdim=True)
    return w @ v


@case(fp64, of=of_scores)
def straight_through(s):
    h = (s > 0).to(s.dtype)
    soft = torch.sigmoid(s)
    return h + soft - soft.detach()


@case(fp64)
def no_grad_weights(q, k, v):
    with torch.no_grad():
        w = torch.tanh(q @ T(k))
    return w @ v


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
def enable_grad_inside(q, k, v):
    with torch.no_grad():
        with torch.enable_grad():
            s = q @ T(k)
        w = F.relu(s)
    return w @ v, s


@case(fp64)
def inference_island(q, k, v):
    with torch.inference_mode():
        m = q @ T(k) > 0
    return (F.silu(q @ T(k)) * m.clone()) @ v


class Ste(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Attn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return F.silu(q @ T(k)) @ v

    @staticmethod
    def backward(ctx, g):
        _, k, _ = ctx.saved_tensors
        return g * 2, g + k, None


table(
    fp64,
    of=weighted(torch.tanh),
    hook_on_weights=after(lambda w, v: w.register_hook(lambda g: g * 5), lambda w, v: w @ v),
    retain_grad_weights=after(lambda w, v: w.retain_grad(), lambda w, v: w @ v),
)


table(
    fp64,
    custom_whole=lambda q, k, v: Attn.apply(q, k, v),
    custom_on_key=lambda q, k, v: torch.tanh(q @ T(Scale.apply(k))) @ v,
    detached_query=lambda q, k, v: torch.sigmoid(q.detach() @ T(k)) @ v.detach(),
    bias_from_query=lambda q, k, v: torch.relu(q @ T(k) + q[..., :1]) @ v,
    bias_from_key_mean=lambda q, k, v: torch.relu(q @ T(k) - k.mean(-1).unsqueeze(-2)) @ v,
    sum_reduces_output=lambda q, k, v: (
        (torch.relu(q @ T(k)) @ v).sum(-2),
        (torch.relu(k @ T(q)) @ v).amax(1),
    ),
    mul_detached_mask_param=lambda q, k, v: (
        (torch.relu(q @ T(k)) * torch.sigmoid(v[..., 0]).unsqueeze(-2)) @ v
    ),
    weights_returned=weighted(torch.sigmoid)(lambda w, v: (w @ v, w)),
    weights_detached_returned=weighted(torch.sigmoid)(lambda w, v: (w @ v, w.detach().mean())),
    row_normalised_after=weighted(torch.sigmoid)(lambda w, v: (w @ v) / w.sum(-1, keepdim=True)),
    row_normalised_detached=weighted(torch.sigmoid)(
        lambda w, v: (w @ v) / w.detach().sum(-1, keepdim=True)
    ),
    create_graph_penalty_first=attended(F.silu)(lambda o: (o, o.square().mean())),
    hook_on_scores=scored(
        after(
            lambda w, v: w.register_hook(lambda g: g.clamp(-0.1, 0.1)),
            lambda w, v: torch.tanh(w) @ v,
        )
    ),
    hook_on_output=attended(torch.tanh)(
        after(lambda w: w.register_hook(lambda g: g * 5), lambda w: w)
    ),
)
