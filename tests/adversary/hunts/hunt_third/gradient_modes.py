"""Gradient modes, what is detached, hooks and functions of autograd's."""

import torch
import torch.nn.functional as F

from ..rows import Programs, after, attended, ikv, nothing, of_scores, scored, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(ikv())
def no_grad_scores(q, k, v):
    with torch.no_grad():
        s = q @ k.mT
    return F.silu(s) @ v


@case(ikv(), of=of_scores)
def no_grad_activation(s):
    with torch.no_grad():
        w = F.silu(s)
    return w


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


table(
    nothing,
    query_as_value_detached=(
        lambda q, k, v: (q @ k.mT).sigmoid() @ k.detach() + (q @ q.mT).relu() @ q,
        square(),
    ),
    twin_with_swapped_factors=(lambda q, k, v: ((k @ q.mT).sigmoid() * (q @ k.mT)) @ v, square()),
    twin_of_flipped_heads=(
        lambda q, k, v: ((q[:, [1, 0]] @ k[:, [1, 0]].mT).sigmoid() * (q @ k.mT)) @ v,
        ikv(h=2),
    ),
)


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
def enable_grad_inside_no_grad(q, k, v):
    with torch.no_grad():
        with torch.enable_grad():
            s = q @ k.mT
            o = s.relu() @ v
    return o


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
    hook_on_scores=after(lambda s: s.register_hook(lambda g: g * 2), F.silu),
)


@case(ikv())
def hook_on_query(q, k, v):
    p = q * 1
    p.register_hook(lambda g: g * 3)
    return F.silu(p @ k.mT) @ v


@case(ikv())
def requires_grad_on_scores(q, k, v):
    s = (q @ k.mT).detach()
    s.requires_grad_()
    return (F.silu(s) @ v), s


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


@case(ikv())
def save_on_cpu_around(q, k, v):
    with torch.autograd.graph.save_on_cpu():
        return F.relu(q @ k.mT) @ v


table(
    ikv(),
    detached_twin=lambda q, k, v: (q @ k.mT * (q.detach() @ k.detach().mT).sigmoid()) @ v,
    detached_query_twin=lambda q, k, v: (q @ k.mT * (q.detach() @ k.mT).sigmoid()) @ v,
    detached_query_only=lambda q, k, v: (q.detach() @ k.mT).sigmoid() @ v,
    twin_written_twice=lambda q, k, v: ((q @ k.mT).sigmoid() * (q @ k.mT)) @ v,
    twin_transposed=lambda q, k, v: ((k @ q.mT).mT.sigmoid() * (q @ k.mT)) @ v,
    twin_of_scaled_query=lambda q, k, v: ((2 * q @ k.mT).sigmoid() * (q @ k.mT)) @ v,
    twin_of_cloned_query=lambda q, k, v: ((q.clone() @ k.mT).sigmoid() * (q @ k.mT)) @ v,
    function_reverses_query=lambda q, k, v: F.silu(Reverse.apply(q) @ k.mT) @ Reverse.apply(v),
    function_reverses_output=lambda q, k, v: Reverse.apply(F.silu(q @ k.mT) @ v),
    function_makes_mask=lambda q, k, v: (
        (F.silu(q @ k.mT) * Straight.apply(q.sum(-1, keepdim=True))) @ v
    ),
    grad_inside=lambda q, k, v: (F.silu(q @ k.mT) @ v).sum(),
    detached_value_and_scores=scored(lambda s, v: (s.detach().sigmoid() * s) @ v.detach()),
    hook_on_output=attended(F.silu)(
        after(lambda o: o.register_hook(lambda g: g * 3), lambda o: o + 1)
    ),
)
