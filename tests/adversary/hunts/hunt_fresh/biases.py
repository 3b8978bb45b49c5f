"""Scales and biases that are learned, looked up or broadcast."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, plus, values
from .given import T, fp64, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
LEARNED_SCALE = values(0.7, dtype=D64, grad=True)


table(
    fp64,
    scale_parameter=(lambda q, k, v, s: F.silu(q @ T(k) * s) @ v, LEARNED_SCALE),
    scale_parameter_item=(lambda q, k, v, s: F.silu(q @ T(k) * s.detach()) @ v * s, LEARNED_SCALE),
    scale_on_weights=(lambda q, k, v, s: (F.silu(q @ T(k)) * s) @ v, LEARNED_SCALE),
    scale_clamped=(lambda q, k, v, s: F.silu(q @ T(k) * s.clamp(max=0.5)) @ v, LEARNED_SCALE),
)


table(
    fp64,
    of=of_scores,
    bias_full=(lambda s, b: torch.sigmoid(s + b), normal((5, 5))),
    bias_col=(lambda s, b: torch.sigmoid(s + b), normal((5, 1))),
    bias_one=(lambda s, b: torch.sigmoid(s + b), normal(1)),
    bias_adds_rank=(lambda s, b: torch.sigmoid(s + b), normal((3, 1, 1, 1, 1))),
    bias_adds_rank_mul=(lambda s, b: torch.sigmoid(s) * b, normal((3, 1, 1, 5, 5))),
    bias_used_twice=(lambda s, b: torch.sigmoid(s + b) * b, normal((2, 1, 5, 5))),
    bias_unfold=(lambda s, b: torch.sigmoid(s + b.unfold(1, 5, 1).flip(1)), normal((2, 9))),
    bias_as_strided=(
        lambda s, b: torch.sigmoid(s + torch.as_strided(b, (2, 5, 5), (9, 1, 1))),
        normal((2, 9)),
    ),
    bias_outer=(lambda s, b: torch.sigmoid(s + torch.outer(b, b)), normal(5)),
    bias_diff_pow=(lambda s, b: torch.sigmoid(s - (b[:, None] - b[None]) ** 2), normal(5)),
    mask_float_gate_row_col=(lambda s, b: torch.sigmoid(s) * b[:, None] * b[None], normal(5)),
    bias_detached_partly=(lambda s, b: torch.sigmoid(s + b[:, None].detach() + b[None]), normal(5)),
)


@case(plus(fp64, normal((2, 1, 5, 5))))
def bias_is_relative_gather(q, k, v, b):
    i = torch.arange(5)
    t = b.reshape(-1)[:9]
    return torch.sigmoid(q @ T(k) + t[i[:, None] - i[None] + 4]) @ v


@case(plus(fp64, normal((9, 2))))
def bias_table_heads(q, k, v, b):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + b[i[:, None] - i[None] + 4].permute(2, 0, 1)) @ v


@case(plus(fp64, normal((9, 2))))
def bias_table_negative_index(q, k, v, b):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + b[i[:, None] - i[None]].permute(2, 0, 1)) @ v


@case(plus(fp64, normal((9, 2))))
def bias_embedding(q, k, v, b):
    i = torch.arange(5)
    return (
        torch.sigmoid(
            q @ T(k) + F.embedding(i[:, None] - i[None] + 4, b, padding_idx=4).permute(2, 0, 1)
        )
        @ v
    )


@case(plus(fp64, normal((9, 2))))
def bias_embedding_scaled_grad(q, k, v, b):
    i = torch.arange(5)
    return (
        torch.sigmoid(
            q @ T(k)
            + F.embedding(i[:, None] - i[None] + 4, b, scale_grad_by_freq=True).permute(2, 0, 1)
        )
        @ v
    )


@case(plus(fp64, normal(9)))
def bias_take(q, k, v, b):
    i = torch.arange(5)
    return torch.sigmoid(q @ T(k) + torch.take(b, i[:, None] - i[None])) @ v


@case(plus(fp64, normal((2, 9))))
def bias_gather(q, k, v, b):
    i = torch.arange(5)
    ix = (i[:, None] - i[None] + 4).reshape(1, 25).expand(2, 25)
    return torch.sigmoid(q @ T(k) + b.gather(1, ix).view(2, 5, 5)) @ v
