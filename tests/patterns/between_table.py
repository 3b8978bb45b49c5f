"""Scales, biases and what else real code puts between the products; masks have their own table."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, SINGLE, either, fuse, rows

# Scales


rows(
    fuse,
    {
        **HEADS,
        "divisor": "positive: b h 1 1",
        "attn_scale": "positive: n",
        "bias": "h n m",
        "low": "n m",
        "high": "h 1 1",
    },
    scale_on_query=lambda q, k, v: F.silu((q * 4**-0.5) @ k.mT) @ v,
    scale_on_scores=lambda q, k, v: F.silu(q @ k.mT / math.sqrt(q.shape[-1])) @ v,
    divisor_per_head=lambda q, k, v, divisor: F.silu(q @ k.mT / divisor) @ v,
    divisor_over_rows_by_view=lambda q, k, v, attn_scale: (
        F.silu(q @ k.mT) * attn_scale.view(1, 1, -1, 1) @ v
    ),
    bias_per_head=lambda q, k, v, bias: F.silu(q @ k.mT + bias) @ v,
    bias_subtracted_with_alpha=lambda q, k, v, bias: (
        F.silu(torch.sub(q @ k.mT, bias, alpha=0.5)) @ v
    ),
    dropout_of_zero=lambda q, k, v: F.dropout(F.silu(q @ k.mT), 0.0) @ v,
    dropout_in_eval=lambda q, k, v: F.dropout(F.silu(q @ k.mT), 0.4, training=False) @ v,
    clones_and_contiguous=lambda q, k, v: F.silu((q @ k.mT).clone()).contiguous() @ v.contiguous(),
    casts_to_own_type=lambda q, k, v: F.silu((q @ k.mT).to(q.dtype)).type_as(v).type(v.dtype) @ v,
    gate_of_the_query=lambda q, k, v: (
        F.silu(q @ k.mT) * torch.sigmoid(q.mean(-1, keepdim=True)) @ v
    ),
    clamp_between_tensors=lambda q, k, v, low, high: torch.clamp(q @ k.mT, low, high) @ v,
    clamp_from_a_tensor=lambda q, k, v, low: torch.clamp(q @ k.mT, min=low) @ v,
    numbers_for_nan_and_infinity=lambda q, k, v: (
        torch.nan_to_num((q @ k.mT).log(), 0.0, 1.0, -1.0) @ v
    ),
)


@fuse(**SINGLE)
def divide_before_activation(q, k, v):
    return F.relu(q @ k.mT / q.shape[1]) ** 2 @ v


rows(
    partial(fuse, varies=True),
    {**HEADS, "length": "count: b 1 1 1", "divisor": "positive: b 1 n 1", "bias": "b h n m"},
    divisor_integers_per_batch=lambda q, k, v, length: F.silu(q @ k.mT) / length @ v,
    divisor_per_batch_and_row=lambda q, k, v, divisor: F.silu(q @ k.mT) / divisor @ v,
    bias_full=lambda q, k, v, bias: F.silu(q @ k.mT + bias) @ v,
)


# Biases


@fuse(varies=True, **HEADS, bias="m")
def bias_per_key(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(varies=True, **HEADS, bias="n m h")
def bias_permuted(q, k, v, bias):
    return F.silu(q @ k.mT + bias.permute(2, 0, 1)) @ v


@fuse(**SELF, table="2*n+1")
def bias_toeplitz_of_a_learned_table(q, k, v, table):
    n = q.shape[2]
    distance = torch.arange(n)[:, None] - torch.arange(n)[None] + n
    return F.silu(q @ k.mT + table[distance]) @ v


@fuse(**HEADS, slopes="h 1 1")
def bias_alibi(q, k, v, slopes):
    far = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
    return torch.sigmoid(q @ k.mT - slopes * far) @ v


@fuse(varies=True, **HEADS, bias="h n m", mask="bool: b 1 n m")
def everything_in_place(q, k, v, bias, mask):
    s = q @ k.mT
    s.mul_(0.5).add_(bias).masked_fill_(mask, 0.0).clamp_(-3.0, 3.0)
    return F.silu(s) @ v


# What does nothing, or only rounds


@fuse(**HEADS)
def dead_uses_of_scores(q, k, v):
    s = q @ k.mT
    unused = s.clone()
    unused = s.sum()  # noqa: F841
    return F.silu(s) @ v


@either(**HEADS)
def multiplied_by_its_own_constant(q, k, v):
    return (F.silu(q @ k.mT) * torch.tensor([0.5, 1.0, 2.0], dtype=q.dtype).view(3, 1, 1)) @ v


@fuse(**HEADS, kinds="bool: h 1 1")
def activation_per_head(q, k, v, kinds):
    s = q @ k.mT
    return torch.where(kinds, F.silu(s), F.gelu(s, approximate="tanh")) @ v


# Operands that depend on q, k and v too


@fuse(**HEADS)
def gaussian_of_the_distance(q, k, v):
    """|q - k|^2 by its expansion: q has a gradient through the product and through a bias."""
    square = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2)
    return torch.exp(-0.1 * (square - 2.0 * (q @ k.mT))) @ v


@either(**HEADS, table="m d")
def bias_of_query_and_position(q, k, v, table):
    """Two products in one score: the second may be read as an operand."""
    return F.silu(q @ k.mT + q @ table.mT) @ v


@either(varies=True, **HEADS)
def product_inside_the_value(q, k, v):
    return F.silu(q @ k.mT) @ F.silu(k @ (q.mT @ q) @ k.mT @ v)


# Numbers at their ends


@fuse(**HEADS, mask="zero_one: n m")
def lerp_from_a_fill(q, k, v, mask):
    """A weight of 1 gives the scores themselves, not what is left of them beside -1e9."""
    s = q @ k.mT
    return F.relu(torch.lerp(torch.full_like(s, -1e9), s, mask)) @ v


@fuse(**HEADS)
def lerp_by_a_number(q, k, v):
    s = q @ k.mT
    return torch.lerp(s, F.relu(s), 0.7) @ v


@fuse(varies=True, **HEADS)
def scores_copied_into_an_empty_tensor(q, k, v):
    s = q @ k.mT
    return torch.empty_like(s).copy_(F.silu(s)) @ v


@fuse(varies=True, **HEADS)
def scores_assigned_to_an_empty_tensor(q, k, v):
    s = q @ k.mT
    p = torch.empty_like(s)
    p[:] = F.silu(s)
    return p @ v
