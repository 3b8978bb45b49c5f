"""Writes in place: to scores, weights, outputs and operands, and by the caller."""

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    Programs,
    after,
    ikv,
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
    write_7=after(
        lambda s: s.index_put_(
            (torch.tensor([0, 0]),), torch.ones((), dtype=s.dtype), accumulate=True
        ),
        F.silu,
    ),
    write_34=after(lambda s: s.unsqueeze_(0).squeeze_(0), F.silu),
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


@case(ikv())
def write_16(q, k, v):
    buf = torch.full((2, 2, 5, 8), 2.0, dtype=q.dtype)
    buf[..., :7] = q @ k.mT
    return F.relu(buf) @ F.pad(v, (0, 0, 0, 1), value=1.0), F.relu(buf)[..., :7] @ v


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


@case(ikv(), of=weighted(F.hardtanh_))
def write_37(w, v):
    return F.threshold_(w, 0.5, 0.1) @ v


@case(ikv(), of=of_scores)
def write_42(s):
    s.copy_(s.relu())
    s.swapaxes(0, 1).mul_(torch.arange(2, dtype=s.dtype)[:, None, None, None] + 1)
    return s


zeros = lambda *shape: plus(ikv(), lambda: (torch.zeros(shape, dtype=D64),))
LENGTHS = plus(qkv(), values([3, 5]))


@case(ikv())
def write_47(q, k, v):
    x = torch.cat([v, v], -1)
    s = (q @ k.mT).relu()
    x[..., 3:].zero_()
    return s @ x[..., :3] + s @ x[..., 3:]


@case(zeros(5, 7))
def input_bias_is_written_with_the_scores(q, k, v, bias):
    s = q @ k.mT + bias
    with torch.no_grad():
        bias.lerp_(s.detach().mean((0, 1)), 0.1)
    return F.silu(s) @ v


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
for which in ("1110", "1111"):
    name = f"caller_zeroes_what_needs_no_gradient_{which}"
    PROGRAMS.add(name, biased, some(which), zero_all)
PROGRAMS.add("caller_changes_value_data", biased, some("1111"), change_values)
PROGRAMS.add("caller_changes_value_without_gradient", biased, some("1100"), change_values)


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
        "_behind_dropout": lambda q: F.dropout(q, 0.0),
        "_behind_dropout_eval": lambda q: F.dropout(q, 0.5, False),
        "_behind_contiguous": lambda q: q.contiguous(),
        "_behind_to": lambda q: q.to(torch.float64).reshape(2, 2, 5, 4),
        "_behind_narrow_of_cat": lambda q: torch.cat([q]).narrow(2, 0, 5),
    },
)
