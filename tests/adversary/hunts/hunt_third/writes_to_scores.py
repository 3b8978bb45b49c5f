"""Writes in place to the scores and through their views."""

import torch
import torch.nn.functional as F

from ..rows import Programs, ikv

PROGRAMS = Programs()
case = PROGRAMS.case


@case(ikv())
def write_1(q, k, v):
    s = q @ k.mT
    s.mul_(0.5).add_(1).relu_()
    return s @ v


@case(ikv())
def write_2(q, k, v):
    s = q @ k.mT
    t = s.view(2, 2, 35)
    t.clamp_(-1, 1)
    return s @ v


@case(ikv())
def write_3(q, k, v):
    s = q @ k.mT
    s[..., 0] = 0
    return F.relu(s) @ v


@case(ikv())
def write_4(q, k, v):
    s = q @ k.mT
    s[:, 1] *= 2
    return F.silu(s) @ v


@case(ikv())
def write_5(q, k, v):
    s = F.silu(q @ k.mT)
    s[s < 0] = 0
    return s @ v


@case(ikv())
def write_6(q, k, v):
    s = F.silu(q @ k.mT)
    s[..., torch.arange(5)[:, None] < torch.arange(7)] = 0.5
    return s @ v


@case(ikv())
def write_7(q, k, v):
    s = q @ k.mT
    s.index_put_((torch.tensor([0, 0]),), torch.ones((), dtype=s.dtype), accumulate=True)
    return F.silu(s) @ v


@case(ikv())
def write_8(q, k, v):
    s = q @ k.mT
    s.tril_(1)
    return torch.sigmoid(s) @ v


@case(ikv())
def write_9(q, k, v):
    s = q @ k.mT
    s.diagonal(dim1=-2, dim2=-1).zero_()
    return torch.sigmoid(s) @ v


@case(ikv())
def write_10(q, k, v):
    s = q @ k.mT
    w = torch.sigmoid(s)
    s.zero_()
    return w @ v + s.sum()


@case(ikv())
def write_11(q, k, v):
    s = q @ k.mT
    w = s * 2
    s.fill_(3.0)
    return (w.relu() + s) @ v


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


@case(ikv())
def write_20(q, k, v):
    o = F.relu(q @ k.mT) @ v
    o.mul_(2)
    o[0] = 0
    return o


@case(ikv())
def write_21(q, k, v):
    o = F.relu(q @ k.mT) @ v
    p = o.transpose(1, 2)
    p.add_(1)
    return o, p.reshape(2, 5, 6)


@case(ikv())
def write_22(q, k, v):
    s = q @ k.mT
    m = s > 0
    s.masked_fill_(m, 2.0)
    m.logical_not_()
    return (s * m) @ v


@case(ikv())
def write_23(q, k, v):
    m = torch.ones(5, 7, dtype=torch.bool)
    m.tril_()
    s = F.silu(q @ k.mT) * m
    m.zero_()
    return s @ v


@case(ikv())
def write_24(q, k, v):
    m = torch.zeros(5, 7, dtype=q.dtype)
    m[:, :3] = 1
    m[2] = 0.5
    return (F.silu(q @ k.mT) * m) @ v


@case(ikv())
def write_25(q, k, v):
    s = q @ k.mT
    torch.mul(s, 2, out=s) if not s.requires_grad else s.mul_(2)
    return F.silu(s) @ v


@case(ikv())
def write_26(q, k, v):
    s = q @ k.mT
    d = s.detach()
    d.mul_(2)
    return F.silu(s) @ v


@case(ikv())
def write_27(q, k, v):
    s = q @ k.mT
    s.data.mul_(2)
    return F.silu(s) @ v


@case(ikv())
def write_28(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        s.mul_(2)
    return F.silu(s) @ v


@case(ikv())
def write_29(q, k, v):
    s = (q @ k.mT).contiguous()
    t = s.reshape(2, 2, 5, 7)
    t.mul_(2)
    return F.silu(s) @ v


@case(ikv())
def write_30(q, k, v):
    s = q @ k.mT
    t = s.mT.contiguous()
    t.mul_(2)
    return (F.silu(s) + t.mT) @ v


@case(ikv())
def write_31(q, k, v):
    s = (q @ k.mT).expand(2, 2, 5, 7)
    s.mul_(2)
    return F.silu(s) @ v


@case(ikv())
def write_32(q, k, v):
    s = q @ k.mT
    s.t_ = 0
    return F.silu(s) @ v


@case(ikv())
def write_33(q, k, v):
    s = k @ q.mT
    s.transpose_(-1, -2)
    return F.silu(s) @ v


@case(ikv())
def write_34(q, k, v):
    s = q @ k.mT
    s.unsqueeze_(0).squeeze_(0)
    return F.silu(s) @ v


@case(ikv())
def write_35(q, k, v):
    s = F.relu(q @ k.mT, inplace=True)
    F.dropout(s, 0.0, True, True)
    return s @ v


@case(ikv())
def write_36(q, k, v):
    s = F.silu(q @ k.mT, True)
    return s @ v


@case(ikv())
def write_37(q, k, v):
    s = F.hardtanh_(q @ k.mT)
    s = F.threshold_(s, 0.5, 0.1)
    return s @ v


@case(ikv())
def write_38(q, k, v):
    s = q @ k.mT
    a, _ = s.unbind(1)
    a.mul_(2) if not a.requires_grad else None
    return F.silu(s) @ v


@case(ikv())
def write_39(q, k, v):
    s = q @ k.mT
    for i, part in enumerate(s.split(1, dim=1)):
        s[:, i : i + 1] = part * (i + 1)
    return F.silu(s) @ v


@case(ikv())
def write_40(q, k, v):
    s = q @ k.mT
    s.add_(s)
    s.mul_(s)
    s.sub_(s.clone(), alpha=0.5)
    return s @ v


@case(ikv())
def write_41(q, k, v):
    s = q @ k.mT
    s += s.mT[..., :5, :].mT.sum() * 0
    return s.relu() @ v


@case(ikv())
def write_42(q, k, v):
    s = q @ k.mT
    s.copy_(s.relu())
    s.swapaxes(0, 1).mul_(torch.arange(2, dtype=s.dtype)[:, None, None, None] + 1)
    return s @ v


@case(ikv())
def write_43(q, k, v):
    s = q @ k.mT
    s.index_fill_(-1, torch.tensor([1, 3]), 0.0)
    return s.sigmoid() @ v


@case(ikv())
def write_44(q, k, v):
    s = (q @ k.mT).relu()
    s.index_add_(-1, torch.tensor([1, 1]), torch.ones(2, 2, 5, 2, dtype=s.dtype))
    return s @ v


@case(ikv())
def write_45(q, k, v):
    s = (q @ k.mT).relu()
    s.scatter_(-1, torch.zeros(2, 2, 5, 1, dtype=torch.int64), 5.0)
    return s @ v


@case(ikv())
def write_48(q, k, v):
    s = q @ k.mT
    s.sigmoid_()
    s.pow_(2)
    s.neg_()
    s.exp_()
    return s @ v


@case(ikv())
def write_49(q, k, v):
    s = q @ k.mT
    s[0, 0, 0, 0] = float("nan")
    return torch.nan_to_num_(s.clone(), 3.0).sigmoid() @ v


@case(ikv())
def write_50(q, k, v):
    s = q @ k.mT
    s.masked_scatter_(s > 0, torch.arange(2 * 2 * 5 * 7, dtype=s.dtype))
    return s.sigmoid() @ v
