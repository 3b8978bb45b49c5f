"""Writes to inputs and operands: before, between and after the products, and by the caller."""

import torch
import torch.nn.functional as F

from ..rows import (
    D64,
    Programs,
    attended,
    ikv,
    normal,
    of_scores,
    plus,
    qkv,
    randn,
    scored,
    values,
)

PROGRAMS = Programs()
case = PROGRAMS.case


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


@case(plus(ikv(), lambda: (torch.zeros(5, 7, dtype=D64),)))
def input_bias_is_written_between(q, k, v, bias):
    s = q @ k.mT + bias
    bias.add_(1)
    return F.silu(s) @ v


@case(plus(ikv(), lambda: (torch.zeros(5, 7, dtype=D64),)))
def input_bias_is_written_before(q, k, v, bias):
    bias.add_(1)
    return F.silu(q @ k.mT + bias) @ v


@case(plus(ikv(), lambda: (torch.zeros(5, 7, dtype=D64),)))
def input_bias_is_written_after(q, k, v, bias):
    out = F.silu(q @ k.mT + bias) @ v
    bias.add_(1)
    return out


@case(plus(ikv(), lambda: (torch.zeros(5, 7, dtype=D64),)))
def input_bias_is_written_with_the_scores(q, k, v, bias):
    s = q @ k.mT + bias
    with torch.no_grad():
        bias.lerp_(s.detach().mean((0, 1)), 0.1)
    return F.silu(s) @ v


@case(plus(ikv(), lambda: (torch.zeros(5, 3, dtype=D64),)), of=attended(F.silu))
def output_is_accumulated_in_an_input(out, acc):
    with torch.no_grad():
        acc += out.mean((0, 1))
    return out


@case(
    lambda: (
        randn(2, 2, 1, 4, grad=False),
        randn(2, 2, 1, 4, grad=False),
        torch.randn(2, 2, 8, 4, dtype=D64),
        torch.randn(2, 2, 8, 4, dtype=D64),
        torch.tensor(3),
    )
)
def kv_cache_number(q, k, ks, vs, at):
    at.add_(1)
    mask = torch.arange(8) <= at
    at.add_(1)
    return (F.silu(q @ ks.mT) * mask) @ vs


@case(plus(qkv(), values([3, 5])))
def lengths_written_between(q, k, v, lengths):
    mask = torch.arange(7) < lengths[:, None, None, None]
    s = q @ k.mT
    lengths.fill_(1)
    return (F.silu(s) * mask) @ v


@case(plus(qkv(), values([3, 5])))
def lengths_written_after(q, k, v, lengths):
    mask = torch.arange(7) < lengths[:, None, None, None]
    out = (F.silu(q @ k.mT) * mask) @ v
    lengths.fill_(1)
    return out


@case(plus(qkv(), values([3, 5])))
def lengths_clone_written(q, k, v, lengths):
    mine = lengths.clone()
    mine -= 1
    mask = torch.arange(7) < mine[:, None, None, None]
    mine.zero_()
    out = (F.silu(q @ k.mT) * mask) @ v
    return out


def change_all(*args):
    with torch.no_grad():
        for x in args:
            if isinstance(x, torch.Tensor) and not x.requires_grad:
                x.zero_()


def change_all_data(*args):
    for x in args:
        if isinstance(x, torch.Tensor):
            x.data.mul_(2)


def change_values(q, k, v, *_):
    v.data.add_(1)


def some(*flags):
    """Query, key, value and a bias; those flagged ask for a gradient."""
    make = plus(qkv(), normal((5, 7)))
    return lambda: tuple(x.requires_grad_(flag) for x, flag in zip(make(), flags))


for which in ("0010", "0011", "1110", "1111"):
    PROGRAMS.add(
        f"caller_zeroes_what_needs_no_gradient_{which}",
        of_scores(lambda s, bias: F.relu(s + bias)),
        some(*(flag == "1" for flag in which)),
        change_all,
    )


@case(some(True, True, True, True), change_values)
def caller_changes_value_data(q, k, v, bias):
    return F.relu(q @ k.mT + bias) @ v


@case(some(True, True, False, False), change_values)
def caller_changes_value_without_gradient(q, k, v, bias):
    return F.relu(q @ k.mT + bias) @ v


@case(some(False, False, True, True), change_all)
def caller_changes_view_of_query(q, k, v, bias):
    return F.relu(q.mT.mT @ (k * 1).mT + bias) @ v


@case(some(False, False, True, True), change_all)
def caller_changes_cast_query(q, k, v, bias):
    return F.relu(q.float() @ k.float().mT + bias.float()) @ v.float()


@case(some(False, False, True, False), change_all)
def caller_changes_mask_of_index(q, k, v, bias):
    m = bias[:, :1] > torch.arange(7) - 3
    return (F.relu(q @ k.mT) * m) @ v


def change_out(q, k, v, bias):
    q.data.zero_()


@case(some(False, False, True, False), change_out)
def query_is_an_output_too(q, k, v, bias):
    p = q * 2
    return F.relu(p @ k.mT) @ v, p


def step(q, *_):
    with torch.no_grad():
        q.add_(1)


FIRST_LEARNS = plus(normal((2, 2, 5, 4)), normal((2, 2, 7, 4), (2, 2, 7, 3), grad=False))


@case(FIRST_LEARNS, step)
def caller_steps_query_behind_dropout(q, k, v):
    return F.silu(F.dropout(q, 0.0) @ k.mT) @ v


@case(FIRST_LEARNS, step)
def caller_steps_query_behind_dropout_eval(q, k, v):
    return F.silu(F.dropout(q, 0.5, False) @ k.mT) @ v


@case(FIRST_LEARNS, step)
def caller_steps_query_behind_contiguous(q, k, v):
    return F.silu(q.contiguous() @ k.mT) @ v


@case(FIRST_LEARNS, step)
def caller_steps_query_behind_to(q, k, v):
    return F.silu(q.to(torch.float64).reshape(2, 2, 5, 4) @ k.mT) @ v


@case(FIRST_LEARNS, step)
def caller_steps_query_behind_narrow(q, k, v):
    return F.silu(torch.cat([q]).narrow(2, 0, 5) @ k.mT) @ v + F.silu(q.narrow(2, 0, 5) @ k.mT) @ v


@case(FIRST_LEARNS, of=scored)
def factory_that_is_returned_wants_gradient(scores, v):
    bias = scores.new_zeros(7, requires_grad=True)
    return F.silu(scores + bias) @ v, bias


@case(FIRST_LEARNS, step)
def caller_steps_query(q, k, v):
    return F.silu(q @ k.mT) @ v
