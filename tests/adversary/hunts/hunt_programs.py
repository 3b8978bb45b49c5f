"""Around a region: transforms, branches, sizes, precisions, modules."""

import torch
from torch import nn
from torch.func import functional_call

from .rows import Programs, qkv32, scored

CASES = Programs()
case, table = CASES.case, CASES.table


def frozen():
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


@case(qkv32)
def size_one_everywhere(q, k, v):
    q, k, v = (q[:1, :1, :1, :1], k[:1, :1, :, :1], v[:1, :1, :, :1])
    return torch.relu(q @ k.mT) @ v


table(
    qkv32,
    vmapped=lambda q, k, v: torch.vmap(lambda q, k, v: torch.relu(q @ k.mT) @ v)(q, k, v),
    grad_inside=lambda q, k, v: (
        torch.func.grad(lambda q: (torch.relu(q @ k.mT) @ v).sum())(q) @ k.mT
    ),
)


@case(lambda: (*qkv32(), torch.tensor([3, 5])))
def lengths_item(q, k, v, l):
    n = int(l.max())
    torch._check(n < 7)
    return torch.relu(q[:, :, :n] @ k[:, :, :n].mT) @ v[:, :, :n]


@case(frozen, of=scored)
def autocast_halfway(s, v):
    with torch.autocast("cpu", torch.float16):
        o = torch.relu(s) @ v
    return o


CASES.append((M(), qkv32))


CASES.append((Swap(), qkv32))


CASES.append((Tied(), qkv32))


CASES.append((FC(), qkv32))
