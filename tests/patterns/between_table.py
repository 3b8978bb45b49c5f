"""Scales, biases and what else real code puts between the products; masks have their own table."""

import math

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, SINGLE, either, fuse

# Scales


@fuse(**HEADS)
def scale_on_query(q, k, v):
    return F.silu((q * 4**-0.5) @ k.mT) @ v


@fuse(**HEADS)
def scale_on_scores(q, k, v):
    return F.silu(q @ k.mT / math.sqrt(q.shape[-1])) @ v


@fuse(**SINGLE)
def divide_before_activation(q, k, v):
    return F.relu(q @ k.mT / q.shape[1]) ** 2 @ v


@fuse(varies=True, **HEADS, length="count: b 1 1 1")
def divisor_integers_per_batch(q, k, v, length):
    return F.silu(q @ k.mT) / length @ v


@fuse(varies=True, **HEADS, divisor="positive: b 1 n 1")
def divisor_per_batch_and_row(q, k, v, divisor):
    return F.silu(q @ k.mT) / divisor @ v


@fuse(**HEADS, divisor="positive: b h 1 1")
def divisor_per_head(q, k, v, divisor):
    return F.silu(q @ k.mT / divisor) @ v


@fuse(**HEADS, attn_scale="positive: n")
def divisor_over_rows_by_view(q, k, v, attn_scale):
    return F.silu(q @ k.mT) * attn_scale.view(1, 1, -1, 1) @ v


# Biases


@fuse(**HEADS, bias="h n m")
def bias_per_head(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(varies=True, **HEADS, bias="b h n m")
def bias_full(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(varies=True, **HEADS, bias="m")
def bias_per_key(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@fuse(varies=True, **HEADS, bias="n m h")
def bias_permuted(q, k, v, bias):
    return F.silu(q @ k.mT + bias.permute(2, 0, 1)) @ v


@fuse(**HEADS, bias="h n m")
def bias_subtracted_with_alpha(q, k, v, bias):
    return F.silu(torch.sub(q @ k.mT, bias, alpha=0.5)) @ v


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
def dropout_of_zero(q, k, v):
    return F.dropout(F.silu(q @ k.mT), 0.0) @ v


@fuse(**HEADS)
def dropout_in_eval(q, k, v):
    return F.dropout(F.silu(q @ k.mT), 0.4, training=False) @ v


@fuse(**HEADS)
def clones_and_contiguous(q, k, v):
    return F.silu((q @ k.mT).clone()).contiguous() @ v.contiguous()


@fuse(**HEADS)
def casts_to_own_type(q, k, v):
    return F.silu((q @ k.mT).to(q.dtype)).type_as(v).type(v.dtype) @ v


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


@fuse(**HEADS)
def gate_of_the_query(q, k, v):
    return F.silu(q @ k.mT) * torch.sigmoid(q.mean(-1, keepdim=True)) @ v


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


@fuse(**HEADS, low="n m", high="h 1 1")
def clamp_between_tensors(q, k, v, low, high):
    return torch.clamp(q @ k.mT, low, high) @ v


@fuse(**HEADS, low="n m")
def clamp_from_a_tensor(q, k, v, low):
    return torch.clamp(q @ k.mT, min=low) @ v


@fuse(**HEADS)
def numbers_for_nan_and_infinity(q, k, v):
    return torch.nan_to_num((q @ k.mT).log(), 0.0, 1.0, -1.0) @ v


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
