"""Writes to inputs and operands: before, between and after the products, and by the caller."""

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    Programs,
    attended,
    ikv,
    leaves,
    normal,
    of_scores,
    plus,
    qkv,
    scored,
    values,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
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
