"""Around a region: transforms, branches, sizes, modules, several outputs."""

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.func import functional_call

from .rows import (
    D64,
    Programs,
    fp64,
    frozen,
    ikv,
    normal,
    nothing,
    of_scores,
    plus,
    qkv32,
    scored,
    square,
    values,
)

CASES, MORE = Programs(), Programs()


def detached32():
    return tuple(x.detach() for x in qkv32())


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.randn(8, 8))
        s.register_buffer("n", torch.zeros(7))
        s.t = nn.Embedding(5, 3)

    def forward(s, q, k, v):
        s.n.add_(1)
        o = torch.relu(q @ k.mT + s.n) @ v
        s.n.mul_(2)
        return o @ s.w


class Swap(nn.Module):
    def __init__(s):
        super().__init__()
        s.register_buffer("n", torch.zeros(7))
        s.w = nn.Parameter(torch.randn(8, 8))

    def forward(s, q, k, v):
        o = torch.relu(q @ k.mT + s.n) @ (v @ s.w)
        s.n = s.n + 1
        return o * s.n.sum()


class Tied(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Linear(8, 8, bias=False)
        s.b = nn.Linear(8, 8, bias=False)
        s.b.weight = s.a.weight

    def forward(s, q, k, v):
        return torch.relu(s.a(q) @ s.b(k).mT) @ s.a(v)


class FC(nn.Module):
    def __init__(s):
        super().__init__()
        s.m = Tied()

    def forward(s, q, k, v):
        return functional_call(s.m, {"a.weight": s.m.a.weight.detach() * 2}, (q, k, v))


@CASES.case(qkv32)
def size_one_everywhere(q, k, v):
    q, k, v = (q[:1, :1, :1, :1], k[:1, :1, :, :1], v[:1, :1, :, :1])
    return torch.relu(q @ k.mT) @ v


CASES.table(
    qkv32,
    vmapped=lambda q, k, v: torch.vmap(lambda q, k, v: torch.relu(q @ k.mT) @ v)(q, k, v),
    grad_inside=lambda q, k, v: (
        torch.func.grad(lambda q: (torch.relu(q @ k.mT) @ v).sum())(q) @ k.mT
    ),
)


@CASES.case(lambda: (*qkv32(), torch.tensor([3, 5])))
def lengths_item(q, k, v, l):
    n = int(l.max())
    torch._check(n < 7)
    return torch.relu(q[:, :, :n] @ k[:, :, :n].mT) @ v[:, :, :n]


@CASES.case(detached32, of=scored)
def autocast_halfway(s, v):
    with torch.autocast("cpu", torch.float16):
        o = torch.relu(s) @ v
    return o


CASES.append((M(), qkv32))


CASES.append((Swap(), qkv32))


CASES.append((Tied(), qkv32))


CASES.append((FC(), qkv32))


# Dropout, checkpoints, vmap and derivatives, cond and its like, graph breaks.


@CASES.case(fp64)
def dropout_two_draws(q, k, v):
    a = torch.rand(3, dtype=D64)
    o = F.silu(q @ k.mT) @ F.dropout(v, 0.2)
    return o * torch.rand(1, dtype=D64), a


@CASES.case(fp64)
def forward_ad(q, k, v):
    import torch.autograd.forward_ad as fa

    with fa.dual_level():
        d = fa.make_dual(q.detach(), torch.ones_like(q))
        return fa.unpack_dual(F.silu(d @ k.detach().mT) @ v.detach()).tangent


CASES.table(
    fp64,
    of=of_scores,
    rrelu_train=lambda s: F.rrelu(s, training=True),
    cond_weights=lambda s: torch.cond(s.sum() > 0, F.relu, torch.tanh, (s,)),
)
CASES.table(
    fp64,
    func_jvp=lambda q, k, v: torch.func.jvp(
        lambda a: F.silu(a @ k.mT) @ v, (q,), (torch.ones_like(q),)
    )[1],
    func_grad_mixed=lambda q, k, v: (
        torch.func.grad(lambda a: (F.silu(a @ k.mT) @ v).square().sum())(q) + (F.silu(q @ k.mT) @ v)
    ),
    cond_activation=lambda q, k, v: torch.cond(
        q.sum() > 0,
        lambda a, b, c: F.relu(a @ b.mT) @ c,
        lambda a, b, c: torch.tanh(a @ b.mT) @ c,
        (q, k, v),
    ),
    cond_value_only=lambda q, k, v: torch.cond(
        q.sum() > 0, lambda x, y: x @ y, lambda x, y: x @ (y * 2), (F.relu(q @ k.mT), v)
    ),
)


@CASES.case(frozen)
def hop_map(q, k, v):
    from torch._higher_order_ops.map import map as hmap

    return hmap(lambda a, b: F.silu(a @ b.mT) @ b, q, k[0])


@CASES.case(fp64)
def hop_scan(q, k, v):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: (c + 1, F.silu(x @ x.mT) @ x + c), torch.zeros(2, 5, 4, dtype=D64), q)[
        1
    ]


@CASES.case(frozen)
def hop_while(q, k, v):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, F.silu(x @ k.mT) @ v), (torch.tensor(0), q)
    )[1]


# Branches, autocast, and views of what a factory makes.


def silu(q, k, v):
    return F.silu(q @ k.mT) @ v


@MORE.case(plus(ikv(), values(True)))
def cond_of_attention(q, k, v, flag):
    return torch.cond(flag, silu, of_scores(F.relu), (q, k, v))


@MORE.case(plus(ikv(), normal((5, 7), dtype=torch.float32)))
def autocast_with_bias_and_mask(q, k, v, bias):
    with torch.autocast("cpu", torch.bfloat16):
        s = q.float() @ k.float().mT + bias
        s = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(), s, float("-inf"))
        return torch.sigmoid(s) @ v.float()


@MORE.case(ikv(), of=of_scores)
def resized_mask(s):
    m = s.new_ones(5, 7)
    m.t_()
    return F.silu(s) * m.T


# Several outputs, factories, known forms of attention.


@MORE.case(ikv(), of=scored)
def factory_written_inside(s, v):
    m = s.new_zeros(5, 7)
    m += torch.arange(7)
    return (F.silu(s) * m) @ v, m


@MORE.case(square())
def retention_log_cumsum(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    d = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    return (q @ k.mT * d) @ v


MORE.table(
    square(),
    rectified_linear_recurrence=lambda q, k, v: torch.linalg.solve_triangular(
        torch.eye(6, dtype=q.dtype) + (q @ k.mT).tril(-1), v, upper=False
    ),
    second_product_by_linear=lambda q, k, v: F.linear(F.relu(q @ k.mT)[0, 0], v[0, 0].T),
    weights_interleaved_heads=lambda q, k, v: (
        F.relu(q[:, :1] @ k[:, :1].mT).repeat_interleave(2, 1) @ v
    ),
)


MORE.table(
    nothing,
    of=of_scores,
    factory_wants_gradient=(lambda s: F.silu(s + s.new_zeros(7, requires_grad=True)), ikv()),
    sparsemax_like=(
        lambda s: F.relu(s - ((s.detach().sort(-1).values.cumsum(-1)[..., -1:] - 1) / 6)),
        square(),
    ),
)


MORE.table(
    ikv(),
    factory_of_scores=scored(
        lambda s, v: (F.silu(s) @ v, s.new_zeros(3), s.new_full((2, 2), 4), s.new_ones(s.shape))
    ),
)
