"""Biases and gates that are products themselves: one product gives the scores, others operands."""

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, either, fuse, refuse, rows


@fuse(varies=True, **HEADS, e="n m d")
def shaw(q, k, v, e):
    """A relative position has a key of its own: B_ij = q_i · e_ij."""
    bias = torch.einsum("bhid,ijd->bhij", q, e)
    return F.relu((q @ k.mT + bias) * q.shape[-1] ** -0.5).square() @ v


@fuse(varies=True, **SELF, r="h 2*n d")
def transformer_xl(q, k, v, r):
    """The product with relative positions is shifted, row by row."""
    b, h, n, d = q.shape
    bias = q @ r[:, 1:].mT
    bias = F.pad(bias, (1, 0)).view(b, h, -1, n)[:, :, 1:].view(b, h, n, 2 * n - 1)[..., :n]
    return F.silu((q @ k.mT + bias) * d**-0.5) @ v


rows(
    fuse,
    {**HEADS, "left": "h n 2", "right": "h 2 m", "q2": "b h n d", "k2": "b h m d"},
    low_rank_bias=lambda q, k, v, left, right: torch.sigmoid(left @ right + q @ k.mT) @ v,
    difference_of_two_weights=lambda q, k, v, q2, k2: (
        (F.silu(q @ k.mT) - 0.5 * F.silu(q2 @ k2.mT)) @ v
    ),
)


@fuse(**HEADS, other="b h m d")
def bias_without_gradient(q, k, v, other):
    with torch.no_grad():
        bias = q @ other.mT
    return F.silu(q @ k.mT + bias) @ v


@fuse(**HEADS, other="b h m d")
def bias_that_is_returned_too(q, k, v, other):
    bias = q @ other.mT
    return F.silu(q @ k.mT + bias) @ v, bias.sin()


@either(**HEADS, u="b h m e", other="b h m d")
def two_values_with_a_bias_by_a_product(q, k, v, u, other):
    w = F.silu(q @ k.mT + q @ other.mT)
    return w @ v, w @ u


@either(**HEADS, other="b h m d")
def bias_written_afterwards(q, k, v, other):
    bias = q @ other.mT
    out = F.silu(q @ k.mT + bias) @ v
    bias.zero_()
    return out, bias


@either(**SELF)
def scores_and_their_square(q, k, v):
    s = q @ k.mT
    return F.silu(s + s @ s * 0.1) @ v


@either(**HEADS, other="b h n d")
def bias_that_broadcasts_along_keys(q, k, v, other):
    return F.silu(q @ k.mT + (q * other) @ v.new_ones(v.shape[0], 3, q.shape[-1], 1)) @ v


@fuse(**SELF)
def scores_and_what_is_made_of_them(q, k, v):
    """The later product is the one that is not stored: the first one is its bias."""
    s = q @ k.mT
    return F.silu(s + s.mT @ s) @ v, s


@refuse("POINTWISE_OP", **HEADS, other="b h m d")
def a_function_that_is_not_known(q, k, v, other):
    return torch.atan(q @ k.mT + q @ other.mT) @ v


@refuse("SEVERAL_SCORES", **HEADS, other="b h m d")
def products_of_which_none_can_be_scores(q, k, v, other):
    return F.silu((q @ k.mT).flip(-1) + (q @ other.mT).roll(1, -1)) @ v
