"""Dropout, checkpoints, vmap and derivatives, cond and its like, graph breaks."""

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from ..rows import D64, Programs
from .operands import T, fp64, frozen, of_scores, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(fp64)
def dropout_two_draws(q, k, v):
    a = torch.rand(3, dtype=D64)
    o = F.silu(q @ T(k)) @ F.dropout(v, 0.2)
    return o * torch.rand(1, dtype=D64), a


@case(fp64)
def func_vjp(q, k, v):
    o, f = torch.func.vjp(lambda a: F.silu(a @ T(k)) @ v, q)
    return o, f(torch.ones_like(o))[0]


@case(fp64)
def forward_ad(q, k, v):
    import torch.autograd.forward_ad as fa

    with fa.dual_level():
        d = fa.make_dual(q.detach(), torch.ones_like(q))
        return fa.unpack_dual(F.silu(d @ T(k.detach())) @ v.detach()).tangent


table(
    fp64,
    of=of_scores,
    dropout_weights=lambda s: F.dropout(F.silu(s), 0.3),
    dropout_one=lambda s: F.dropout(F.silu(s), 1.0),
    rrelu_train=lambda s: F.rrelu(s, training=True),
    rand_mask=lambda s: F.silu(s) * (torch.rand(5, 5) > 0.5),
    cond_weights=lambda s: torch.cond(s.sum() > 0, F.relu, torch.tanh, (s,)),
)
table(
    fp64,
    vmap_shared_kv=lambda q, k, v: torch.vmap(lambda a: F.silu(a @ T(k)) @ v)(q),
    func_grad=lambda q, k, v: torch.func.grad(lambda a: (F.silu(a @ T(k)) @ v).sum())(q),
    func_jvp=lambda q, k, v: torch.func.jvp(
        lambda a: F.silu(a @ T(k)) @ v, (q,), (torch.ones_like(q),)
    )[1],
    checkpointed=lambda q, k, v: torch.utils.checkpoint.checkpoint(
        lambda a, b, c: F.silu(a @ T(b)) @ c, q, k, v, use_reentrant=False
    ),
    checkpointed_dropout=lambda q, k, v: torch.utils.checkpoint.checkpoint(
        lambda a, b, c: F.dropout(F.silu(a @ T(b)) @ c, 0.3), q, k, v, use_reentrant=False
    ),
    func_grad_mixed=lambda q, k, v: (
        torch.func.grad(lambda a: (F.silu(a @ T(k)) @ v).square().sum())(q) + (F.silu(q @ T(k)) @ v)
    ),
    checkpointed_weights=lambda q, k, v: (
        torch.utils.checkpoint.checkpoint(lambda a, b: F.silu(a @ T(b)), q, k, use_reentrant=False)
        @ v
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


@case(fp64, of=weighted(F.silu))
def graph_break(w, v):
    torch._dynamo.graph_break()
    return w @ v


@case(fp64, of=scored)
def printed_scores(s, v):
    if s.sum().item() > 0:
        return F.relu(s) @ v
    return torch.tanh(s) @ v
