"""Programs with writes in place, aliases, numbers and dead code: rewritten or not, as eager."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.patterns.effects import LENGTHS, B, D, H, M, N, drawn, heads

PROGRAMS = {}
INFERENCE = {"training": False}


def case(operands, code=None, **how):
    """A program, its operands, and the code that it is refused with, if it is not rewritten."""

    def register(function):
        PROGRAMS[function.__name__] = (function, operands, code, how)
        return function

    return register


@case(lambda: [drawn(B, N, D) for _ in range(3)])
def nograd_bmm3_inplace(q, k, v):
    with torch.no_grad():
        o = torch.bmm(F.silu(q @ k.mT), v)
    o.mul_(v.mean())
    return o


@case(heads)
def ckpt_alias(q, k, v):
    x = torch.cat([q, k], -1)

    def body(a, b, v):
        a2 = a * 1.0
        a2.mul_(2.0)
        return F.silu(a2 @ b.mT) @ v

    return checkpoint(body, x[..., :D], x[..., D:], v, use_reentrant=False)


@case(
    lambda: [drawn(B, H, N, 2 * D, grad=False), drawn(B, H, M, D, grad=False)],
    "MUTATED_OPERAND",
    **INFERENCE,
)
def ckpt_alias_mut(x, v):
    x = x * 1.0

    def body(a, b, v):
        w = F.silu(a @ b.mT)
        a.mul_(3.0)
        return w @ v

    return checkpoint(body, x[..., :D], x[..., D:], v, use_reentrant=False)


@case(lambda: [*heads(), torch.rand(N, M) > 0.5])
def mask_int_written(q, k, v, m):
    i = m.to(torch.int64)
    i.fill_diagonal_(1)
    return F.silu(q @ k.mT) * i @ v


@case(lambda: [*heads(), LENGTHS])
def arange_written(q, k, v, l):
    a = torch.arange(M)
    a.add_(2)
    m = a < l[:, None, None, None]
    m2 = m.clone()
    m2[0] = True
    return torch.where(m2, F.silu(q @ k.mT), 0.0) @ v


@case(lambda: heads(torch.bfloat16))
def expand_upcast(q, k, v):
    b = q.float().mean((0, 1), keepdim=True).expand(B, H, N, D)
    return F.silu(b @ k.float().mT) @ v.float()


@case(lambda: heads(torch.bfloat16, grad=False), "MUTATED_OPERAND", **INFERENCE)
def base_written_via_chunk_between_inf(q, k, v):
    x = torch.cat([q, k], -1).float()
    a, b = x.chunk(2, -1)
    w = F.silu(a @ b.mT)
    x.mul_(2.0)
    return w @ v.float()


@case(lambda: heads(torch.bfloat16))
def half_up_down(q, k, v):
    y = q.float().bfloat16()
    y.mul_(0.5)
    return F.silu(y @ k.mT) @ v


@case(heads)
def detach_leaf_written(q, k, v):
    z = q * 1.0
    z.detach().mul_(0.5)
    return F.relu(z @ k.mT) @ v


@case(heads)
def data_leaf_written_before(q, k, v):
    z = q * 1.0
    zd = z.data
    zd[..., 0] = 0
    return F.relu(z @ k.mT) @ v


@case(heads)
def inplace_copy_detached(q, k, v):
    s = q @ k.mT
    t = s.clone()
    t.copy_(s.detach())
    return F.relu(t) @ v


@case(heads, "SCORES_ESCAPE")
def dead_mutator(q, k, v):
    s = q @ k.mT
    d = s * 2
    d.mul_(3.0)
    return F.silu(s) @ v


@case(lambda: [*heads(), torch.tensor(2.0)])
def item_alias(q, k, v, c):
    b = c.view(1)
    x = c.item()
    o = F.silu(q @ k.mT * x) @ v
    b.add_(1.0)
    return o


@case(lambda: [*heads(), torch.tensor(2.0, requires_grad=True)])
def item_both(q, k, v, c):
    return F.silu(q @ k.mT * c.item() * c + c.item()) @ v


@case(lambda: [*heads(), torch.tensor([2.0, 3.0])], "MUTATED_OPERAND")
def item_elem_changed(q, k, v, c):
    x = c[0].item()
    c[0] = 7.0
    return F.silu(q @ k.mT * x) @ v


@case(lambda: [*heads(), torch.tensor(3)])
def item_int_changed(q, k, v, c):
    x = c.item()
    c.add_(5)
    return torch.where(torch.arange(M) < x, F.silu(q @ k.mT), 0.0) @ v


@case(lambda: [*heads(), drawn(B, H, N, M)], "GRAD_MODE")
def bias_detach_(q, k, v, b):
    c = b * 1.0
    o = F.silu(q @ k.mT + c) @ v
    c.detach_()
    return o


@case(lambda: [*heads(), drawn(M, grad=False)], "MUTATED_OPERAND")
def scale_data_after_saved(q, k, v, b):
    o = F.silu((q @ k.mT) * b) @ v
    b.data.zero_()
    return o


@case(lambda: [*heads(), torch.zeros(M, dtype=torch.long), drawn(5)])
def gather_table_changed(q, k, v, i, t):
    t = t * 1.0
    b = t[i]
    t.mul_(2.0)
    o = F.silu(q @ k.mT + b) @ v
    return o + t.sum()


@case(heads, "MUTATED_SCORES")
def new_zeros_written(q, k, v):
    s = q @ k.mT
    z = s.new_zeros(N, M)
    z.fill_diagonal_(3.0)
    return F.silu(s + z) @ v


@case(heads, "GRAD_MODE")
def zeros_like_copy(q, k, v):
    s = q @ k.mT
    z = torch.zeros_like(s)
    z.copy_(s)
    z.data.mul_(2.0)
    return F.relu(z) @ v
