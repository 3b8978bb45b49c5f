"""Writes in place: to scores, weights, outputs and operands, and by the caller."""

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    Programs,
    after,
    attended,
    ikv,
    leaves,
    normal,
    of_scores,
    plus,
    put,
    qkv,
    scored,
    values,
    weighted,
)

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
def write_30(s):
    t = s.mT.contiguous()
    t.mul_(2)
    return F.silu(s) + t.mT


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


zeros = lambda *shape: plus(ikv(), lambda: (torch.zeros(shape, dtype=D64),))
LENGTHS = plus(qkv(), values([3, 5]))


@case(ikv())
def write_12(q, k, v):
    q2 = q.clone()
    s = q2 @ k.mT
    with torch.no_grad():
        s = s + q2.sum()
    return F.relu(s) @ v


@case(ikv())
def write_13(q, k, v):
    v2 = v.clone()
    w = F.relu(q @ k.mT)
    v2.mul_(2)
    return w @ v2


@case(ikv())
def write_14(q, k, v):
    v2 = v * 1
    w = F.relu(q @ k.mT)
    o = w @ v2.clone()
    v2.mul_(2)
    return o + v2.sum()


@case(ikv())
def write_47(q, k, v):
    x = torch.cat([v, v], -1)
    s = (q @ k.mT).relu()
    x[..., 3:].zero_()
    return s @ x[..., :3] + s @ x[..., 3:]


@case(zeros(5, 7))
def input_bias_is_written_between(q, k, v, bias):
    s = q @ k.mT + bias
    bias.add_(1)
    return F.silu(s) @ v


@case(zeros(5, 7))
def input_bias_is_written_before_and_after(q, k, v, bias):
    bias.add_(1)
    out = F.silu(q @ k.mT + bias) @ v
    bias.add_(1)
    return out


@case(zeros(5, 7))
def input_bias_is_written_with_the_scores(q, k, v, bias):
    s = q @ k.mT + bias
    with torch.no_grad():
        bias.lerp_(s.detach().mean((0, 1)), 0.1)
    return F.silu(s) @ v


@case(zeros(5, 3), of=attended(F.silu))
def output_is_accumulated_in_an_input(out, acc):
    with torch.no_grad():
        acc += out.mean((0, 1))
    return out


def cache():
    shapes = [(2, 2, 1, 4), (2, 2, 8, 4), (2, 2, 8, 4)]
    return (*leaves(*shapes, dtype=D64, grad=False), torch.tensor(3))


@case(cache)
def kv_cache_number(q, ks, vs, at):
    at.add_(1)
    mask = torch.arange(8) <= at
    at.add_(1)
    return (F.silu(q @ ks.mT) * mask) @ vs


@case(LENGTHS)
def lengths_written_between(q, k, v, lengths):
    mask = torch.arange(7) < lengths[:, None, None, None]
    s = q @ k.mT
    lengths.fill_(1)
    return (F.silu(s) * mask) @ v


@case(LENGTHS)
def lengths_written_after(q, k, v, lengths):
    mask = torch.arange(7) < lengths[:, None, None, None]
    out = (F.silu(q @ k.mT) * mask) @ v
    lengths.fill_(1)
    return out


@case(LENGTHS)
def lengths_clone_written(q, k, v, lengths):
    mine = lengths.clone()
    mine -= 1
    mask = torch.arange(7) < mine[:, None, None, None]
    mine.zero_()
    return (F.silu(q @ k.mT) * mask) @ v


# What the caller does before the backward


def zero_all(*operands):
    with torch.no_grad():
        for x in operands:
            if not x.requires_grad:
                x.zero_()


def change_values(q, k, v, *_):
    v.data.add_(1)


def step(q, *_):
    with torch.no_grad():
        q.add_(1)


def some(which):
    """Query, key, value and a bias; those with a 1 ask for a gradient."""
    make = plus(qkv(), normal((5, 7)))
    return lambda: tuple(x.requires_grad_(flag == "1") for x, flag in zip(make(), which))


biased = of_scores(lambda s, bias: F.relu(s + bias))
for which in ("0010", "0011", "1110", "1111"):
    name = f"caller_zeroes_what_needs_no_gradient_{which}"
    PROGRAMS.add(name, biased, some(which), zero_all)
PROGRAMS.add("caller_changes_value_data", biased, some("1111"), change_values)
PROGRAMS.add("caller_changes_value_without_gradient", biased, some("1100"), change_values)


@case(some("0011"), zero_all)
def caller_changes_view_of_query(q, k, v, bias):
    return F.relu(q.mT.mT @ (k * 1).mT + bias) @ v


@case(some("0011"), zero_all)
def caller_changes_cast_query(q, k, v, bias):
    return F.relu(q.float() @ k.float().mT + bias.float()) @ v.float()


@case(some("0010"), zero_all)
def caller_changes_mask_of_index(q, k, v, bias):
    m = bias[:, :1] > torch.arange(7) - 3
    return (F.relu(q @ k.mT) * m) @ v


@case(some("0010"), lambda q, *_: q.data.zero_())
def query_is_an_output_too(q, k, v, bias):
    p = q * 2
    return F.relu(p @ k.mT) @ v, p


FIRST_LEARNS = plus(normal((2, 2, 5, 4)), normal((2, 2, 7, 4), (2, 2, 7, 3), grad=False))


@case(FIRST_LEARNS, of=scored)
def factory_that_is_returned_wants_gradient(scores, v):
    bias = scores.new_zeros(7, requires_grad=True)
    return F.silu(scores + bias) @ v, bias


def of_query(f):
    return lambda q, k, v: F.silu(f(q) @ k.mT) @ v


table(
    FIRST_LEARNS,
    of=of_query,
    prefix="caller_steps_query",
    before=step,
    rows={
        "": lambda q: q,
        "_behind_dropout": lambda q: F.dropout(q, 0.0),
        "_behind_dropout_eval": lambda q: F.dropout(q, 0.5, False),
        "_behind_contiguous": lambda q: q.contiguous(),
        "_behind_to": lambda q: q.to(torch.float64).reshape(2, 2, 5, 4),
        "_behind_narrow": lambda q: q.narrow(2, 0, 5),
        "_behind_narrow_of_cat": lambda q: torch.cat([q]).narrow(2, 0, 5),
    },
)
