"""Dropout, checkpoints, vmap and derivatives, cond and its like, graph breaks."""

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from ..rows import D64, Programs
from .operands import T, fp64, frozen, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(fp64)
def dropout_two_draws(q, k, v):
    a = torch.rand(3, dtype=D64)
    o = F.silu(q @ T(k)) @ F.dropout(v, 0.2)
    return o * torch.rand(1, dtype=D64), a


@case(fp64)
def forward_ad(q, k, v):
    import torch.autograd.forward_ad as fa

    with fa.dual_level():
        d = fa.make_dual(q.detach(), torch.ones_like(q))
        return fa.unpack_dual(F.silu(d @ T(k.detach())) @ v.detach()).tangent


table(
    fp64,
    of=of_scores,
    rrelu_train=lambda s: F.rrelu(s, training=True),
    cond_weights=lambda s: torch.cond(s.sum() > 0, F.relu, torch.tanh, (s,)),
)
table(
    fp64,
    func_jvp=lambda q, k, v: torch.func.jvp(
        lambda a: F.silu(a @ T(k)) @ v, (q,), (torch.ones_like(q),)
    )[1],
    func_grad_mixed=lambda q, k, v: (
        torch.func.grad(lambda a: (F.silu(a @ T(k)) @ v).square().sum())(q) + (F.silu(q @ T(k)) @ v)
    ),
    cond_activation=lambda q, k, v: torch.cond(
        q.sum() > 0,
        lambda a, b, c: F.relu(a @ T(b)) @ c,
        lambda a, b, c: torch.tanh(a @ T(b)) @ c,
        (q, k, v),
    ),
    cond_value_only=lambda q, k, v: torch.cond(
        q.sum() > 0, lambda x, y: x @ y, lambda x, y: x @ (y * 2), (F.relu(q @ T(k)), v)
    ),
)


@case(frozen)
def hop_map(q, k, v):
    from torch._higher_order_ops.map import map as hmap

    return hmap(lambda a, b: F.silu(a @ T(b)) @ b, q, k[0])


@case(fp64)
def hop_scan(q, k, v):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: (c + 1, F.silu(x @ T(x)) @ x + c), torch.zeros(2, 5, 4, dtype=D64), q)[
        1
    ]


@case(frozen)
def hop_while(q, k, v):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, F.silu(x @ T(k)) @ v), (torch.tensor(0), q)
    )[1]
