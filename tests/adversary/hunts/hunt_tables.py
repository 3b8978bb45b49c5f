"""Learned tables: padding, negative places, sparse gradients, writes into what was looked up."""

import torch
import torch.nn.functional as F
from torch import nn

from .rows import Programs, leaves, nothing, of_scores

CASES = Programs()
case, table = CASES.case, CASES.table


def tab(dtype=torch.float32):
    dense = leaves((2, 3, 32, 8), (2, 3, 32, 8), (2, 3, 32, 8), (4, 3), dtype=dtype)
    return (*dense, torch.randint(0, 4, (32, 32)))


def wide():
    return leaves((2, 3, 32, 8), (2, 3, 32, 8), (2, 3, 32, 8))


class Emb(nn.Module):
    def __init__(s, **k):
        super().__init__()
        s.e = nn.Embedding(4, 3, **k)
        s.register_buffer("i", torch.randint(0, 4, (32, 32)))

    def forward(s, q, k, v):
        return F.silu(q @ k.mT + s.e(s.i).permute(2, 0, 1)) @ v


def stamps():
    dense = leaves((2, 3, 32, 8), (2, 3, 32, 8), (2, 3, 32, 8), (5,))
    return (*dense, torch.randint(0, 40, (2, 32)).cumsum(1))


def _by_time(q, k, v, t, index):
    return F.silu(q @ k.mT + t[index].unsqueeze(1)) @ v


def table_by_time_of_a_view(q, k, v, t, at):
    """What the index is made from is written through another view of it."""
    late = at[:, 1:]
    apart = (at[:, :, None] - at[:, None, :]).abs()
    index = (apart // 60).clamp(max=4)
    late.mul_(3)
    return _by_time(q, k, v, t, index)


def table_by_random_places(q, k, v, t, at):
    return _by_time(q, k, v, t, torch.randint(0, 5, (2, 32, 32)))


def table_by_places_with_a_write(q, k, v, t, at):
    index = (at[:, :, None] // 60 + at[:, None, :] // 60) % 5
    index.transpose(1, 2)[:, :7] = 2
    return _by_time(q, k, v, t, index)


def table_under_another_switch(q, k, v, t, at):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        apart = (at[:, :, None] - at[:, None, :]).abs().float()
        index = (apart.sqrt() / 3).long().clamp(max=4)
    return _by_time(q, k, v, t, index)


def table_by_places_of_scores(q, k, v, t, at):
    """An index that changes with a parameter."""
    return _by_time(q, k, v, t, (q.sum((1, 3))[:, :, None] > k.sum((1, 3))[:, None]).long() + 2)


def zero_stamps(q, k, v, t, at):
    at.zero_()


def step_on_the_table(q, k, v, t, at):
    with torch.no_grad():
        t.mul_(-2.0)


table(
    tab,
    of=of_scores,
    table_getitem=lambda s, t, i: F.silu(s + t[i].permute(2, 0, 1)),
    table_indexed_by_bool=lambda s, t, i: F.silu(
        s + t[torch.tensor([True, False, False, False])].view(3, 1, 1)
    ),
    table_hard=lambda s, t, i: F.silu(s) * (t[i].permute(2, 0, 1) > 0),
    table_double_use=lambda s, t, i: F.silu(
        s + t[i].permute(2, 0, 1) * t[i.T].permute(2, 0, 1) + t.sum()
    ),
    table_embedding_padding=lambda s, t, i: F.silu(
        s + F.embedding(i, t, padding_idx=1).permute(2, 0, 1)
    ),
    table_embedding_last_padding=lambda s, t, i: F.silu(
        s + F.embedding(i, t, padding_idx=-1).permute(2, 0, 1)
    ),
    table_embedding_freq=lambda s, t, i: F.silu(
        s + F.embedding(i, t, scale_grad_by_freq=True).permute(2, 0, 1)
    ),
    table_embedding_max_norm=lambda s, t, i: F.silu(
        s + F.embedding(i, t.detach().clone(), max_norm=0.5).permute(2, 0, 1)
    ),
    table_sparse=lambda s, t, i: F.silu(s + F.embedding(i, t, sparse=True).permute(2, 0, 1)),
    table_gather_sparse_leaf=lambda s, t, i: F.silu(
        s
        + torch.gather(t, 0, i.view(-1, 1).expand(-1, 3), sparse_grad=True)
        .view(32, 32, 3)
        .permute(2, 0, 1)
    ),
)


@case(tab)
def table_in_place_on_lookup(q, k, v, t, i):
    b = t[i]
    b.mul_(2)
    b[0, 0] = 0
    return (F.silu(q @ k.mT + b.permute(2, 0, 1)) @ v, b)


@case(lambda: tab(torch.bfloat16))
def table_in_place_on_lookup_bf16(q, k, v, t, i):
    b = t[i]
    b.mul_(2)
    return (F.silu(q @ k.mT + b.permute(2, 0, 1)) @ v, b)


@case(lambda: tab(torch.bfloat16))
def table_lookup_resized(q, k, v, t, i):
    b = t[i]
    b.transpose_(0, 1)
    return (F.silu(q @ k.mT + b.permute(2, 0, 1)) @ v, b)


table(
    nothing,
    of=of_scores,
    table_negative=(
        lambda s, t, i: F.silu(s + t[i].permute(2, 0, 1)),
        lambda: (lambda a: (*a[:4], a[4] - 4))(tab()),
    ),
    table_gather=(
        lambda s, t, i: F.silu(s + torch.gather(t, 1, i)),
        lambda: (
            *leaves((2, 3, 32, 8), (2, 3, 32, 8), (2, 3, 32, 8), (32, 4)),
            torch.randint(0, 4, (32, 32)),
        ),
    ),
    table_take=(
        lambda s, t, i: F.silu(s + torch.take(t, i)),
        lambda: (
            *leaves((2, 3, 32, 8), (2, 3, 32, 8), (2, 3, 32, 8), (4,)),
            torch.randint(0, 4, (32, 32)),
        ),
    ),
    table_indexed_by_bytes=(
        lambda s, t, i: F.silu(s + t[i.long()].permute(2, 0, 1)),
        lambda: (*tab()[:4], torch.randint(0, 4, (32, 32), dtype=torch.uint8)),
    ),
    table_bf16=(lambda s, t, i: F.silu(s + t[i].permute(2, 0, 1)), lambda: tab(torch.bfloat16)),
)


@case(stamps, zero_stamps)
@case(stamps, step_on_the_table)
def table_by_time(q, k, v, t, at):
    apart = (at[:, :, None] - at[:, None, :]).abs()
    return _by_time(q, k, v, t, (apart // 60).clamp(max=4))


@case(stamps, zero_stamps)
def table_by_log_time(q, k, v, t, at):
    apart = (at[:, :, None] - at[:, None, :]).abs()
    return _by_time(q, k, v, t, (apart + 1).double().log().mul(0.7).add(0.1).long().clamp(max=4))


CASES += [
    *(
        (f, stamps)
        for f in (
            table_by_time,
            table_by_log_time,
            table_by_time_of_a_view,
            table_by_random_places,
            table_by_places_with_a_write,
            table_under_another_switch,
            table_by_places_of_scores,
        )
    )
]


CASES.append((Emb(), wide))


CASES.append((Emb(padding_idx=2), wide))


CASES.append((Emb(sparse=True), wide))
