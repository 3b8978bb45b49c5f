"""Gradients: None, zeros and numbers are three things."""

import torch

from .rows import Programs, leaves, nothing, of_scores, qkv32

CASES = Programs()
case, table = CASES.case, CASES.table


def qkvb():
    return leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (6, 7))


@case(lambda: (*qkv32(), torch.tensor(1.5, requires_grad=True)), of=of_scores)
def learned_threshold_straight_through(s, c):
    hard = (s > c).float()
    soft = torch.sigmoid(s - c)
    return hard - soft.detach() + soft


table(
    nothing,
    of=of_scores,
    mask_from_learned=(
        lambda s, b, t: torch.where(b[None, :] > t[:, None], torch.relu(s), 0.0),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,), (6,)),
    ),
    long_of_learned=(
        lambda s, b: torch.relu(s) * (torch.arange(7)[None] < b.long()[:, None]).any(0),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,)),
    ),
)


table(
    qkvb,
    of=of_scores,
    data_of_expand_as=lambda s, b: torch.relu(s + b.expand_as(s).data),
    detached_sum_with_zeros=lambda s, b: torch.relu(s + (torch.zeros_like(s) + b).detach()),
    detached_where=lambda s, b: torch.relu(
        torch.where(s.detach() > 0, s, (b * torch.ones_like(s)).detach())
    ),
    learned_bounds=lambda s, b: torch.clamp(s, min=b, max=b + 1),
)


@case(qkvb, of=of_scores)
def bias_fill_by_score_item(s, b):
    w = s.clone()
    w.fill_(b.sum())
    return torch.relu(s * w)


@case(qkvb, of=of_scores)
def fill_of_scores_then_threshold(s, b):
    w = s.clone()
    w.fill_(1.0)
    return w * (s > 0)


@case(qkvb, of=of_scores)
def bias_only_in_a_fill(s, b):
    w = (s + b).fill_(2.0)
    return torch.relu(s) * w


@case(qkvb, of=of_scores)
def bias_zeroed(s, b):
    w = s + b
    w.zero_()
    w += s
    return torch.relu(w)


table(
    qkv32,
    detached_twin=lambda q, k, v: torch.relu(q @ k.mT) * torch.sigmoid((q @ k.mT).detach()) @ v,
    twin_of_detached_query=lambda q, k, v: (
        torch.relu(q @ k.mT) * torch.sigmoid(q.detach() @ k.mT) @ v
    ),
)


@case(qkv32)
def twin_under_no_grad(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        g = q @ k.mT
    return torch.relu(s) * torch.sigmoid(g) @ v
