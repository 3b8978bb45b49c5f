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
    mask_from_learned_thresh=(
        lambda s, b: torch.relu(s) * (s > b),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,)),
    ),
    long_of_learned=(
        lambda s, b: torch.relu(s) * (torch.arange(7)[None] < b.long()[:, None]).any(0),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,)),
    ),
    round_of_learned=(
        lambda s, b: torch.relu(s + b.round()),
        lambda: leaves((2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7,)),
    ),
    learned_threshold_hard=(
        lambda s, c: torch.where(s > c, s, torch.zeros_like(s)),
        lambda: (*qkv32(), torch.tensor(1.5, requires_grad=True)),
    ),
    sign_scores=(torch.sign, qkv32),
    detached_weights_frozen_value=(lambda s: torch.relu(s).detach(), qkv32),
)
table(
    nothing,
    baddbmm_detached_bias=(
        lambda q, k, v, b: torch.relu(torch.baddbmm(b.detach(), q, k.mT, beta=0.5, alpha=2)) @ v,
        lambda: leaves((6, 6, 8), (6, 7, 8), (6, 7, 8), (6, 6, 7)),
    ),
    baddbmm_beta_zero=(
        lambda q, k, v, b: torch.relu(torch.baddbmm(b.expand(6, 6, 7), q, k.mT, beta=0)) @ v,
        lambda: leaves((6, 6, 8), (6, 7, 8), (6, 7, 8), (6, 7)),
    ),
)


@case(qkvb, of=of_scores)
def overwritten_bias(s, b):
    w = b + torch.zeros_like(s)
    w = w.clone().copy_(s)
    return torch.relu(w)


table(
    qkvb,
    of=of_scores,
    data_of_expand_as=lambda s, b: torch.relu(s + b.expand_as(s).data),
    detached_type_as=lambda s, b: torch.relu(s + b.type_as(s).detach()),
    detached_sum_with_zeros=lambda s, b: torch.relu(s + (torch.zeros_like(s) + b).detach()),
    detached_where=lambda s, b: torch.relu(
        torch.where(s.detach() > 0, s, (b * torch.ones_like(s)).detach())
    ),
    new_tensor_bias=lambda s, b: torch.relu(s * b.expand_as(s).detach().sigmoid()),
    bias_times_threshold=lambda s, b: (s > 0) * b,
    bias_rounded_to_int=lambda s, b: torch.relu(s * b.int()),
    bias_cast_to_bool=lambda s, b: torch.relu(s * b.bool()),
    bias_argument_of_isnan=lambda s, b: torch.relu(s.masked_fill(b.isnan(), 0.0)),
    learned_bounds=lambda s, b: torch.clamp(s, min=b, max=b + 1),
    bias_in_zeros_like=lambda s, b: torch.relu(s + torch.zeros_like(b + s)),
    full_like_of_bias=lambda s, b: torch.relu(s + torch.full_like(b, 0.5)),
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
def bias_covered_by_a_slice(s, b):
    w = s + b
    w[:] = s
    return torch.relu(w)


@case(qkvb, of=of_scores)
def bias_zeroed(s, b):
    w = s + b
    w.zero_()
    w += s
    return torch.relu(w)


table(
    qkv32,
    hard_threshold=lambda q, k, v: ((q @ k.mT) > 0).to(v.dtype) @ v,
    detached_scores=lambda q, k, v: torch.relu((q @ k.mT).detach()) @ v,
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
