"""Einsums between the products that sum an operand of their own: they only scale the weights."""

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SINGLE, either, fuse, leave, refuse


@fuse(varies=True, **HEADS)
def rows_by_a_diagonal(q, k, v):
    """Apple's ml-sigmoid-attention: the sum of row i of a diagonal matrix scales row i."""
    weights = torch.sigmoid(q @ k.mT)
    scale = torch.diag(1 / torch.arange(1, q.shape[-2] + 1).to(weights.dtype).sqrt())
    wide = scale[None, None].expand(*weights.shape[:3], q.shape[-2])
    return torch.einsum("bhij,bhik->bhij", weights, wide) @ v


@fuse(**HEADS, scale="b h n d")
def rows_by_a_learned_sum(q, k, v, scale):
    return torch.einsum("bhij,bhik->bhij", F.silu(q @ k.mT), scale) @ v


@fuse(**HEADS, scale="b h m d")
def keys_by_a_sum_in_front(q, k, v, scale):
    return torch.einsum("bhjk,bhij->bhij", scale, F.silu(q @ k.mT)) @ v


@fuse(**HEADS, scale="d b n", other="h e")
def rows_and_heads_by_sums(q, k, v, scale, other):
    return torch.einsum("bhij,kbi,hl->bhij", F.silu(q @ k.mT), scale, other) @ v


@fuse(**HEADS, scale="b d n e")
def rows_by_a_sum_of_two_dims(q, k, v, scale):
    return torch.einsum("...hij,...kil->...hij", F.silu(q @ k.mT), scale) @ v


@fuse(**HEADS, scale="d")
def all_by_a_sum(q, k, v, scale):
    return torch.einsum("bhij,k->bhij", F.silu(q @ k.mT), scale) @ v


@fuse(**HEADS, scale="b h n d")
def scores_by_a_sum_before_the_activation(q, k, v, scale):
    s = torch.einsum("bhnd,bhmd->bhnm", q, k)
    return torch.einsum("bhnm,bhme->bhne", torch.einsum("bhnm,bhnk->bhnm", s, scale).relu(), v)


@fuse(**SINGLE, scale="n b d")
def transposed_by_the_same_einsum(q, k, v, scale):
    p = torch.einsum("bij,ibk->bji", F.silu(q @ k.mT), scale)
    return p.mT @ v


@either(**HEADS, scale="n d d")
def rows_by_a_trace(q, k, v, scale):
    """A letter that one operand has twice is a diagonal, which is summed."""
    return torch.einsum("bhij,ikk->bhij", F.silu(q @ k.mT), scale) @ v


@leave(varies=True, **HEADS, x="b h n d")
def weights_summed_by_their_own_letter(q, k, v, x):
    return torch.einsum("bhij,bhid->bhid", F.silu(q @ k.mT), x), v * 2


@refuse("NORMALISED", "CROSS_ELEMENT", "REDUCTION", **HEADS)
def weights_by_their_own_sum(q, k, v):
    p = F.silu(q @ k.mT)
    return torch.einsum("bhij,bhik->bhij", p, p) @ v


@refuse("NORMALISED", "CROSS_ELEMENT", "REDUCTION", **HEADS, x="b h n m")
def weights_summed_and_spread(q, k, v, x):
    p = torch.einsum("bhij,bhik->bhik", F.silu(q @ k.mT), x)
    return p @ v
