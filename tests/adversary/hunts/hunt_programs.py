"""Around a region: transforms, branches, sizes, precisions, modules."""

import torch
from torch import nn
from torch.func import functional_call


def leaves(*shapes, dtype=torch.float32):
    return tuple(torch.randn(*s, dtype=dtype).requires_grad_() for s in shapes)


def qkv(dtype=torch.float32):
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)


def frozen():
    return tuple(x.detach() for x in qkv())


def bf():
    return qkv(torch.bfloat16)


# Transforms and branches.


def vmapped(q, k, v):
    return torch.vmap(lambda q, k, v: torch.relu(q @ k.mT) @ v)(q, k, v)


def grad_inside(q, k, v):
    g = torch.func.grad(lambda q: (torch.relu(q @ k.mT) @ v).sum())(q)
    return g @ k.mT


def cond_branches(q, k, v):
    return torch.cond(
        q.sum() > 0,
        lambda q, k, v: torch.relu(q @ k.mT) @ v,
        lambda q, k, v: torch.tanh(q @ k.mT) @ v,
        (q, k, v),
    )


# Sizes.


def size_one_everywhere(q, k, v):
    q, k, v = (q[:1, :1, :1, :1], k[:1, :1, :, :1], v[:1, :1, :, :1])
    return torch.relu(q @ k.mT) @ v


def dynamic_scale(q, k, v):
    return torch.relu(q @ k.mT / k.shape[-2]) @ v


def dynamic_triangle(q, k, v):
    return torch.relu((q @ k.mT).tril(k.shape[2] - q.shape[2])) @ v


def lengths_item(q, k, v, l):
    n = int(l.max())
    torch._check(n < 7)
    return torch.relu(q[:, :, :n] @ k[:, :, :n].mT) @ v[:, :, :n]


# Changes of precision half-way; autocast and its cache.


def dtype_changes(q, k, v):
    s = (q @ k.mT).double()
    return torch.relu(s).float() @ v.float()


def autocast_cache(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            a = q @ k.mT
        o = torch.relu(q @ k.mT) @ v
    return (o * 0, a * 0)  # None is no zero


def autocast_nested(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
        with torch.autocast("cpu", enabled=False):
            w = torch.relu(s.float())
            o = w @ v
    return o.bfloat16()


def autocast_halfway(q, k, v):
    s = q @ k.mT
    with torch.autocast("cpu", torch.float16):
        o = torch.relu(s) @ v
    return o


# Modules: buffers that are written or replaced, tied weights, functional_call.


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


CASES = [
    # Transforms and branches.
    (vmapped, qkv),
    (grad_inside, qkv),
    (cond_branches, qkv),
    # Sizes.
    (size_one_everywhere, qkv),
    (dynamic_scale, qkv),
    (dynamic_triangle, qkv),
    (lengths_item, lambda: (*qkv(), torch.tensor([3, 5]))),
    # Changes of precision half-way; autocast and its cache.
    (dtype_changes, bf),
    (autocast_cache, qkv),
    (autocast_nested, frozen),
    (autocast_halfway, frozen),
    # Modules: buffers that are written or replaced, tied weights, functional_call.
    (M(), qkv),
    (Swap(), qkv),
    (Tied(), qkv),
    (FC(), qkv),
]
