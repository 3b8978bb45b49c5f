"""More programs with writes in place: in chains, jagged, and between forward and backward."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.patterns.effects import LENGTHS, B, D, H, M, N, drawn, frozen, heads
from tests.patterns.effects_table import case
from tests.patterns.test_effects import jagged, own, values

BF16 = torch.bfloat16


def frozen_values():
    q, k, v = values()
    return [q, k.detach(), v.detach()]


@case(heads, regions=2)
def chained(q, k, v):
    a = F.silu(q @ k.mT) @ v
    a.mul_(0.5)
    b = F.silu(a @ k.mT) @ v
    return b


@case(lambda: [drawn(B, H, N, D), *frozen()[1:]], regions=2)
def chained_residual_frozen(q, k, v):
    h = q * 1.0
    h += F.silu(h @ k.mT) @ v
    h += F.relu(h @ k.mT) @ v
    return h


@case(lambda: heads(BF16))
def autocast_inplace(q, k, v):
    q32 = q.float()
    with torch.autocast("cpu", torch.bfloat16):
        q32.mul_(0.5)
        o = F.silu(q32 @ k.mT) @ v
    return o


@case(lambda: [*values(), torch.tensor([20, 26, 14])])
def jag_values_after(q, k, v, l):
    q = q * 1.0
    o = F.pad(l.cumsum(0), (1, 0))
    r = jagged(q, k, v, o, o, 1.0)
    q.mul_(2.0)
    return r, q


@case(lambda: [*values(), torch.tensor([20, 26, 14])])
def jag_len_changed_between(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    l.clamp_(max=20)
    return jagged(q, k, v, o, o, own(l))


@case(lambda: [*values(), torch.tensor([20, 26, 14])])
def jag_len_view_changed(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    m = own(l)
    o[1:].sub_(1)
    return jagged(q, k, v, o, o, m)


@case(lambda: [*frozen_values(), torch.tensor([0, 20, 46, 60])])
def jag_frozen_after(q, k, v, o):
    r = jagged(q, k, v, o, o, 1.0)
    k.mul_(2.0)
    v.zero_()
    return r


@case(lambda: [*heads(), torch.rand(N, M) > 0.5])
def mask_changed_after(q, k, v, m):
    i = m.long()
    o = F.silu(q @ k.mT) * i @ v
    m.logical_not_()
    return o


@case(lambda: [*heads(), torch.randn(H)], between=lambda q, k, v, c: c.add_(1))
def slopes_changed_caller(q, k, v, c):
    i = torch.arange(N)
    return F.silu(q @ k.mT + c[:, None, None] * (i[:, None] - i)) @ v


@case(lambda: [*heads()[:2], torch.randn(B, H, M, D)], between=lambda q, k, v: v.data.zero_())
def value_data_changed_caller(q, k, v):
    return F.silu(q @ k.mT) @ (v * 2.0)


@case(lambda: [*heads(), torch.randn(N)])
def buffer_foreach_after(q, k, v, c):
    o = F.silu(q @ k.mT + c) @ v
    torch._foreach_add_([c], 1.0)
    return o


@case(lambda: [*heads(), torch.zeros(M), torch.ones(M), torch.randn(3, M)], "MUTATED_OPERAND")
def bn_stats_between(q, k, v, m, s, x):
    t = q @ k.mT + m
    y = F.batch_norm(x, m, s, training=True)
    return F.silu(t) @ v + y.sum()


@case(lambda: [*heads(), torch.zeros(M), torch.ones(M), torch.randn(3, M)])
def bn_stats_after(q, k, v, m, s, x):
    o = F.silu(q @ k.mT + m) @ v
    y = F.batch_norm(x, m, s, training=True)
    return o + y.sum()


@case(lambda: [*heads(), LENGTHS])
def ckpt_lengths_after(q, k, v, l):
    def body(q, k, v, l):
        return torch.where(torch.arange(M) < l[:, None, None, None], F.silu(q @ k.mT), 0.0) @ v

    o = checkpoint(body, q, k, v, l, use_reentrant=False)
    return o


@case(lambda: heads(BF16))
def up_then_down_inplace(q, k, v):
    s = q.float() @ k.float().mT
    s.mul_(0.5)
    w = F.silu(s).to(BF16)
    w.mul_(2.0)
    return w @ v


@case(lambda: heads(BF16))
def kept_alias_of_upcast_view(q, k, v):
    q32 = q.float().view(B * H, N, D).view(B, H, N, D)
    q32.view(-1)[0] = 9.0
    return F.silu(q32 @ k.float().mT) @ v.float()


@case(lambda: [*heads(), drawn(N, M, dtype=BF16)])
def bias_upcast_view_written(q, k, v, b):
    c = b.float()[None, None].expand(1, 1, N, M)
    d = c.squeeze(0)
    d.mul_(3.0)
    return F.silu(q @ k.mT + c) @ v


@case(lambda: [*heads(), LENGTHS])
def mask_and_written(q, k, v, l):
    m = torch.arange(M)[None] < l[:, None]
    m2 = m[:, None, None]
    m &= torch.arange(M) > 1
    return F.silu(q @ k.mT) * m2 @ v


@case(heads, "GRAD_MODE")
def detach_then_view_write(q, k, v):
    s = (q @ k.mT).view(B * H, N, M)
    d = s.detach()
    d[0].zero_()
    return (F.relu(s * 2).view(B, H, N, M)) @ v
