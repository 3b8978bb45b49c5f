"""Writes in place to the scores, the weights and the output, and through their views."""

import torch
import torch.nn.functional as F

from ..rows import Programs, after, attended, ikv, of_scores, put, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    ikv(),
    of=of_scores,
    write_1=after(lambda s: s.mul_(0.5).add_(1).relu_(), lambda s: s),
    write_2=after(lambda s: s.view(2, 2, 35).clamp_(-1, 1), lambda s: s),
    write_3=after(put((..., 0), 0), F.relu),
    write_7=after(
        lambda s: s.index_put_(
            (torch.tensor([0, 0]),), torch.ones((), dtype=s.dtype), accumulate=True
        ),
        F.silu,
    ),
    write_8=after(lambda s: s.tril_(1), torch.sigmoid),
    write_9=after(lambda s: s.diagonal(dim1=-2, dim2=-1).zero_(), torch.sigmoid),
    write_26=after(lambda s: s.detach().mul_(2), F.silu),
    write_27=after(lambda s: s.data.mul_(2), F.silu),
    write_30=after(lambda s: s.mT.contiguous().mul_(2), F.silu),
    write_34=after(lambda s: s.unsqueeze_(0).squeeze_(0), F.silu),
    write_36=lambda s: F.silu(s, True),
    write_43=after(lambda s: s.index_fill_(-1, torch.tensor([1, 3]), 0.0), torch.sigmoid),
    write_49=after(
        put((0, 0, 0, 0), float("nan")), lambda s: torch.nan_to_num_(s.clone(), 3.0).sigmoid()
    ),
    write_50=after(
        lambda s: s.masked_scatter_(s > 0, torch.arange(2 * 2 * 5 * 7, dtype=s.dtype)),
        torch.sigmoid,
    ),
)


@case(ikv(), of=of_scores)
def write_4(s):
    s[:, 1] *= 2
    return F.silu(s)


@case(ikv(), of=weighted(F.silu))
def write_5(w, v):
    w[w < 0] = 0
    return w @ v


@case(ikv(), of=weighted(F.silu))
def write_6(w, v):
    w[..., torch.arange(5)[:, None] < torch.arange(7)] = 0.5
    return w @ v


@case(ikv())
def write_10(q, k, v):
    s = q @ k.mT
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
    return F.relu(buf) @ F.pad(v, (0, 0, 0, 1), value=1.0), F.relu(buf)[..., :7] @ v


@case(ikv(), of=attended(F.relu))
def write_18(o):
    out = torch.ones(2, 2, 6, 3, dtype=o.dtype)
    out[:, :, :5] = o
    out[:, :, 1:] += o
    return out


@case(ikv(), of=attended(F.relu))
def write_20(o):
    o.mul_(2)
    o[0] = 0
    p = o.transpose(1, 2)
    p.add_(1)
    return o, p.reshape(2, 5, 6)


@case(ikv(), of=of_scores)
def write_24(s):
    m = torch.zeros(5, 7, dtype=s.dtype)
    m[:, :3] = 1
    m[2] = 0.5
    return F.silu(s) * m


@case(ikv(), of=of_scores)
def write_28(s):
    with torch.no_grad():
        s.mul_(2)
    return F.silu(s)


@case(ikv(), of=of_scores)
def write_29(s):
    s = s.contiguous()
    t = s.reshape(2, 2, 5, 7)
    t.mul_(2)
    return F.silu(s)


@case(ikv(), of=of_scores)
def write_31(s):
    s = s.expand(2, 2, 5, 7)
    s.mul_(2)
    return F.silu(s)


@case(ikv())
def write_33(q, k, v):
    s = k @ q.mT
    s.transpose_(-1, -2)
    return F.silu(s) @ v


@case(ikv(), of=of_scores)
def write_35(s):
    s = F.relu(s, inplace=True)
    F.dropout(s, 0.0, True, True)
    return s


@case(ikv(), of=weighted(F.hardtanh_))
def write_37(w, v):
    return F.threshold_(w, 0.5, 0.1) @ v


@case(ikv(), of=of_scores)
def write_41(s):
    s += s.mT[..., :5, :].mT.sum() * 0
    return s.relu()


@case(ikv(), of=of_scores)
def write_42(s):
    s.copy_(s.relu())
    s.swapaxes(0, 1).mul_(torch.arange(2, dtype=s.dtype)[:, None, None, None] + 1)
    return s
