"""Masks after and before the activation: given as tensors, or built from positions and lengths."""

from functools import partial

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, fuse, rows

# Masks after the activation


@fuse(**SELF)
def mask_causal_multiplied(q, k, v):
    n = q.shape[2]
    return F.silu(q @ k.mT) * q.new_ones(n, n).tril() @ v


rows(
    fuse,
    {**HEADS, "mask": "int: b 1 n m", "before": "bool: n m", "after": "zero_one: b 1 n m"},
    mask_of_integers=lambda q, k, v, mask: F.silu(q @ k.mT) * mask @ v,
    mask_triu_with_offset=lambda q, k, v: F.silu(q @ k.mT).triu(-1) @ v,
    mask_before_and_after=lambda q, k, v, before, after: (
        F.silu((q @ k.mT).masked_fill(before, -1e4)) * after @ v
    ),
)


@fuse(**HEADS, mask="bool: b n m")
def mask_of_bools_unsqueezed(q, k, v, mask):
    return F.silu(q @ k.mT) * mask.unsqueeze(1) @ v


@fuse(**HEADS, mask="float: n m")
def mask_learned(q, k, v, mask):
    return F.silu(q @ k.mT) * mask @ v


@fuse(varies=True, **HEADS, rows="bool: b n", columns="bool: b m")
def mask_product_of_two(q, k, v, rows, columns):
    mask = rows[:, None, :, None] * columns[:, None, None, :]
    return F.silu(q @ k.mT) * mask @ v


rows(
    partial(fuse, varies=True),
    {
        **HEADS,
        "padding": "bool: b m",
        "ids": "int: m",
        "own": "int: n",
        "mask": "zero_one: b 1 1 m",
    },
    mask_of_key_padding=lambda q, k, v, padding: (
        F.silu(q @ k.mT).masked_fill(~padding[:, None, None, :], 0) @ v
    ),
    mask_of_segments=lambda q, k, v, ids, own: F.silu(q @ k.mT) * (own[:, None] == ids) @ v,
    premask_additive=lambda q, k, v, mask: torch.sigmoid(q @ k.mT + (1.0 - mask) * -1e9) @ v,
)


@fuse(**SELF)
def mask_tril_of_weights(q, k, v):
    return torch.tril(torch.sigmoid(q @ k.mT)) @ v


@fuse(**SELF)
def mask_window_of_positions(q, k, v):
    i = torch.arange(q.shape[2])
    near = (i[:, None] - i).abs() <= 2
    return F.silu(q @ k.mT) * (near & (i[:, None] >= i)) @ v


@fuse(**HEADS, lengths="count: b")
def mask_of_lengths(q, k, v, lengths):
    mask = torch.arange(k.shape[2]) < lengths[:, None]
    return F.silu(q @ k.mT) * mask[:, None, None] @ v


@fuse(**SELF, lengths="count: b", targets="count: b")
def mask_of_targets_and_context(q, k, v, lengths, targets):
    """As a production recommender has it: causal, targets see themselves, a prefix sees all."""
    n = q.shape[2]
    ids = torch.arange(n).expand(q.shape[0], n) - 1
    ids = torch.clamp(ids, min=0)
    last = (lengths - targets).clamp(min=1).view(-1, 1)
    ids = torch.clamp(ids, max=last)
    rows, columns = ids.view(-1, n, 1), ids.view(-1, 1, n)
    mask = torch.eye(n, dtype=torch.bool).unsqueeze(0)
    mask = torch.logical_or(mask, (rows - columns) > 0)
    mask = torch.logical_or(mask, torch.logical_and(rows == 0, columns < last.unsqueeze(-1)))
    return F.silu(q @ k.mT) * mask.unsqueeze(1) @ v


@fuse(**SELF)
def mask_of_buckets(q, k, v):
    """As T5 has it, but for the logarithm."""
    i = torch.arange(q.shape[2])
    back = torch.max(i[:, None] - i, torch.zeros_like(i[:, None] - i))
    near = torch.where(back < 3, back, torch.min((back >> 1) + 2, torch.full_like(back, 4)))
    return F.silu(q @ k.mT) * (near < 4) @ v


@fuse(**SELF)
def mask_of_dilated_positions(q, k, v):
    i = torch.arange(q.shape[2])
    apart = i[:, None] - i
    return F.silu(q @ k.mT) * ((torch.fmod(apart, 3) == 0) | ((i & 1) == 0)) @ v


@fuse(**SELF)
def mask_of_blocks(q, k, v):
    i = torch.arange(-3, q.shape[2] - 3)
    block = torch.div(i, 2, rounding_mode="trunc")
    return F.silu(q @ k.mT) * (block[:, None] >= block) @ v


@fuse(**SELF)
def mask_that_rounds(q, k, v):
    """In fp32 whatever the scores are: 3 · 0.1 <= 0.3 depends on how 0.1 is rounded."""
    i = torch.arange(q.shape[2], dtype=torch.float32) * 0.1
    return F.silu(q @ k.mT) * ((i[:, None] - i) <= 0.3) @ v


@fuse(**SELF)
def mask_that_cuts(q, k, v):
    i = (torch.arange(q.shape[2]).float() * 0.29 * 100).long()
    return F.silu(q @ k.mT) * (i[:, None] >= i + 29) @ v


# Masks before it


@fuse(varies=True, **HEADS, mask="bool: n m")
def premask_fill_finfo_min(q, k, v, mask):
    s = q @ k.mT
    return torch.sigmoid(s.masked_fill(~mask, -torch.finfo(s.dtype).max)) @ v
