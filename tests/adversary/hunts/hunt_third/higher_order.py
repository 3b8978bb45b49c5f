"""Branches, autocast, and views of what a factory makes."""

import torch
import torch.nn.functional as F

from ..rows import Programs, ikv, normal, of_scores, plus, values

PROGRAMS = Programs()
case = PROGRAMS.case


def silu(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(plus(ikv(), values(True)))
def cond_of_attention(q, k, v, flag):
    return torch.cond(flag, silu, of_scores(F.relu), (q, k, v))


@case(plus(ikv(), normal((5, 7), dtype=torch.float32)))
def autocast_with_bias_and_mask(q, k, v, bias):
    with torch.autocast("cpu", torch.bfloat16):
        s = q.float() @ k.float().mT + bias
        s = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(), s, float("-inf"))
        return torch.sigmoid(s) @ v.float()


@case(ikv(), of=of_scores)
def resized_mask(s):
    m = s.new_ones(5, 7)
    m.t_()
    return F.silu(s) * m.T
