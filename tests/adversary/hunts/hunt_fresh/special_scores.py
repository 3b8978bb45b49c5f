"""Scores that are NaN or infinite."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs
from .given import T, fp64, frozen, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def naninf():
    q, k, v = frozen()
    q[0, 0, 0, 0] = float("nan")
    k[0, 1, 1, 1] = float("inf")
    v[1, 1, 2, 2] = float("inf")
    v[1, 0, 2, 2] = float("nan")
    return tuple(x.requires_grad_() for x in (q, k, v))


table(
    naninf,
    of=of_scores,
    nan_plain=torch.sigmoid,
    nan_relu=F.relu,
    nan_where=lambda s: torch.where(torch.isnan(s), 0.0, s),
    nan_to_num=lambda s: torch.nan_to_num(s, posinf=1.0),
    nan_ones=lambda s: s**0,
    nan_times_zero=lambda s: s * 0,
    nan_eq_self=lambda s: (s == s).to(D64) + s.detach() * 0,
    nan_clamp=lambda s: s.clamp(0, 1),
    nan_fmax=lambda s: torch.fmax(s, torch.zeros((), dtype=D64)),
    nan_minmax=lambda s: torch.minimum(
        torch.maximum(s, torch.zeros((), dtype=D64)), torch.ones((), dtype=D64)
    ),
    nan_sub_self=lambda s: s - s,
    nan_ternary_not=lambda s: torch.where(~(s <= 0), s, 0.0),
)


@case(fp64)
def bias_inf_times_zero(q, k, v):
    b = torch.full((5, 5), float("inf"), dtype=D64).triu(1)
    b[b != b] = 0
    return torch.sigmoid(q @ T(k) - b) @ v


table(
    fp64,
    of=of_scores,
    bias_neg_inf_relu=lambda s: F.relu(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ).square(),
    bias_neg_inf_exp=lambda s: torch.exp(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
    bias_neg_inf_softplus=lambda s: F.softplus(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
    bias_neg_inf_gelu=lambda s: F.gelu(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
)


@case(fp64)
def bias_neg_inf_silu_mul(q, k, v):
    b = torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    s = q @ T(k) + b
    return (s * torch.sigmoid(s)) @ v
