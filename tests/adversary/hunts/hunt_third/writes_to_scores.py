"""Writes in place to the scores and through their views."""

import torch
import torch.nn.functional as F

from ..rows import Programs, after, attended, ikv, nothing, of_scores, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(ikv(), of=of_scores)
def write_2(s):
    t = s.view(2, 2, 35)
    t.clamp_(-1, 1)
    return s


@case(ikv(), of=of_scores)
def write_3(s):
    s[..., 0] = 0
    return F.relu(s)


@case(ikv(), of=of_scores)
def write_4(s):
    s[:, 1] *= 2
    return F.silu(s)


@case(ikv(), of=weighted(F.silu))
def write_5(s, v):
    s[s < 0] = 0
    return s @ v


@case(ikv(), of=weighted(F.silu))
def write_6(s, v):
    s[..., torch.arange(5)[:, None] < torch.arange(7)] = 0.5
    return s @ v


@case(ikv(), of=scored)
def write_10(s, v):
    w = torch.sigmoid(s)
    s.zero_()
    return w @ v + s.sum()


@case(ikv(), of=of_scores)
def write_11(s):
    w = s * 2
    s.fill_(3.0)
    return w.relu() + s


@case(ikv())
def write_15(q, k, v):
    buf = torch.zeros(2, 2, 5, 7, dtype=q.dtype)
    buf.copy_(q @ k.mT)
    return F.relu(buf) @ v


@case(ikv())
def write_16(q, k, v):
    buf = torch.full((2, 2, 5, 8), 2.0, dtype=q.dtype)
    buf[..., :7] = q @ k.mT
    return F.relu(buf) @ F.pad(v, (0, 0, 0, 1), value=1.0)


@case(ikv())
def write_17(q, k, v):
    buf = torch.full((2, 2, 5, 8), 2.0, dtype=q.dtype)
    buf[..., :7] = q @ k.mT
    return F.relu(buf)[..., :7] @ v


@case(ikv())
def write_18(q, k, v):
    out = torch.ones(2, 2, 6, 3, dtype=q.dtype)
    out[:, :, :5] = F.relu(q @ k.mT) @ v
    return out


@case(ikv())
def write_19(q, k, v):
    out = torch.ones(2, 2, 5, 3, dtype=q.dtype)
    out += F.relu(q @ k.mT) @ v
    return out


@case(ikv(), of=attended(F.relu))
def write_20(o):
    o.mul_(2)
    o[0] = 0
    return o


@case(ikv(), of=attended(F.relu))
def write_21(o):
    p = o.transpose(1, 2)
    p.add_(1)
    return o, p.reshape(2, 5, 6)


@case(ikv())
def write_24(q, k, v):
    m = torch.zeros(5, 7, dtype=q.dtype)
    m[:, :3] = 1
    m[2] = 0.5
    return (F.silu(q @ k.mT) * m) @ v


@case(ikv(), of=of_scores)
def write_25(s):
    torch.mul(s, 2, out=s) if not s.requires_grad else s.mul_(2)
    return F.silu(s)


@case(ikv(), of=of_scores)
def write_26(s):
    d = s.detach()
    d.mul_(2)
    return F.silu(s)


@case(ikv(), of=of_scores)
def write_28(s):
    with torch.no_grad():
        s.mul_(2)
    return F.silu(s)


@case(ikv())
def write_29(q, k, v):
    s = (q @ k.mT).contiguous()
    t = s.reshape(2, 2, 5, 7)
    t.mul_(2)
    return F.silu(s) @ v


@case(ikv(), of=of_scores)
def write_30(s):
    t = s.mT.contiguous()
    t.mul_(2)
    return F.silu(s) + t.mT


@case(ikv())
def write_31(q, k, v):
    s = (q @ k.mT).expand(2, 2, 5, 7)
    s.mul_(2)
    return F.silu(s) @ v


@case(ikv(), of=of_scores)
def write_32(s):
    s.t_ = 0
    return F.silu(s)


@case(ikv())
def write_33(q, k, v):
    s = k @ q.mT
    s.transpose_(-1, -2)
    return F.silu(s) @ v


@case(ikv())
def write_35(q, k, v):
    s = F.relu(q @ k.mT, inplace=True)
    F.dropout(s, 0.0, True, True)
    return s @ v


table(
    nothing,
    write_36=(lambda q, k, v: F.silu(q @ k.mT, True) @ v, ikv()),
)


@case(ikv(), of=weighted(F.hardtanh_))
def write_37(s, v):
    s = F.threshold_(s, 0.5, 0.1)
    return s @ v


@case(ikv(), of=of_scores)
def write_38(s):
    a, _ = s.unbind(1)
    a.mul_(2) if not a.requires_grad else None
    return F.silu(s)


@case(ikv(), of=of_scores)
def write_41(s):
    s += s.mT[..., :5, :].mT.sum() * 0
    return s.relu()


@case(ikv(), of=of_scores)
def write_42(s):
    s.copy_(s.relu())
    s.swapaxes(0, 1).mul_(torch.arange(2, dtype=s.dtype)[:, None, None, None] + 1)
    return s


@case(ikv(), of=of_scores)
def write_49(s):
    s[0, 0, 0, 0] = float("nan")
    return torch.nan_to_num_(s.clone(), 3.0).sigmoid()


table(
    ikv(),
    of=of_scores,
    write_1=after(lambda s: s.mul_(0.5).add_(1).relu_(), lambda s: s),
    write_7=after(
        lambda s: s.index_put_(
            (torch.tensor([0, 0]),), torch.ones((), dtype=s.dtype), accumulate=True
        ),
        F.silu,
    ),
    write_8=after(lambda s: s.tril_(1), torch.sigmoid),
    write_9=after(lambda s: s.diagonal(dim1=-2, dim2=-1).zero_(), torch.sigmoid),
    write_27=after(lambda s: s.data.mul_(2), F.silu),
    write_34=after(lambda s: s.unsqueeze_(0).squeeze_(0), F.silu),
    write_43=after(lambda s: s.index_fill_(-1, torch.tensor([1, 3]), 0.0), lambda s: s.sigmoid()),
    write_50=after(
        lambda s: s.masked_scatter_(s > 0, torch.arange(2 * 2 * 5 * 7, dtype=s.dtype)),
        lambda s: s.sigmoid(),
    ),
)
