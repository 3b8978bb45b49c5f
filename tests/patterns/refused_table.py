"""What must keep its meaning: refused with a reason, or fused to the letter.

The codes of a row are those that say what is the matter; where two say it, both will do.
"""

from functools import partial

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, SINGLE, either, fuse, leave, refuse, rows

NORMALISED = ("NORMALISED", "REDUCTION", "CROSS_ELEMENT")
ACCUMULATED = ("REDUCTION", "CROSS_ELEMENT")
ESCAPES = ("SCORES_ESCAPE",)
MIXED = ("CROSS_ELEMENT", "REDUCTION", "LAYOUT", "SEVERAL_SCORES")

# Normalised weights


@refuse(*NORMALISED, varies=True, **HEADS)
def softmax(q, k, v):
    return F.softmax(q @ k.mT / 2, dim=-1) @ v


rows(
    partial(refuse, *NORMALISED),
    HEADS,
    softmax_over_queries=lambda q, k, v: (q @ k.mT).softmax(dim=-2) @ v,
    log_softmax=lambda q, k, v: F.log_softmax(q @ k.mT, -1) @ v,
)


@refuse(*NORMALISED, **HEADS)
def softmax_by_hand(q, k, v):
    s = q @ k.mT
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return p / p.sum(-1, keepdim=True) @ v


@refuse(*NORMALISED, varies=True, **HEADS)
def row_mean(q, k, v):
    p = F.silu(q @ k.mT)
    return (p - p.mean(-1, keepdim=True)) @ v


@refuse(*NORMALISED, **HEADS)
def column_norm(q, k, v):
    p = F.relu(q @ k.mT)
    return p / p.norm(dim=-2, keepdim=True).clamp(min=1e-3) @ v


@refuse(*NORMALISED, **HEADS)
def layer_norm_of_weights(q, k, v):
    s = q @ k.mT
    return F.layer_norm(s, s.shape[-1:]) @ v


# Weights that depend on several scores


@refuse(*ACCUMULATED, **HEADS)
def cumulative_sum(q, k, v):
    return torch.sigmoid(q @ k.mT).cumsum(-1) @ v


@refuse(*ACCUMULATED, **HEADS)
def stick_breaking(q, k, v):
    s = torch.sigmoid(q @ k.mT)
    return s * torch.cumprod(1 - s + 1e-4, -1) @ v


@refuse(*MIXED, **HEADS)
def top_two(q, k, v):
    s = q @ k.mT
    return torch.where(s >= s.topk(2, -1).values[..., -1:], F.relu(s), 0.0) @ v


rows(
    partial(refuse, *MIXED, varies=True),
    HEADS,
    keys_reversed=lambda q, k, v: F.silu((q @ k.mT).flip(-1)) @ v,
    keys_rolled=lambda q, k, v: torch.roll(F.silu(q @ k.mT), 1, -1) @ v,
)


@refuse("CROSS_ELEMENT", varies=True, q="b h n d", k="b h n d", v="b h n e")
def scores_plus_their_transpose(q, k, v):
    s = q @ k.mT
    return F.silu(s + s.mT) @ v


@refuse(*MIXED, **HEADS)
def heads_scrambled_by_a_view(q, k, v):
    b, h, n, m = q.shape[0], 3, q.shape[2], k.shape[2]
    return F.silu((q @ k.mT).view(b, n, h, m).transpose(1, 2)) @ v


@refuse(*MIXED, "CONTRACTION", varies=True, **HEADS, kernel="h 1 3 3")
def convolved_scores(q, k, v, kernel):
    return F.silu(F.conv2d(q @ k.mT, kernel, padding=1, groups=3)) @ v


# Scores that something else sees


@refuse(*ESCAPES, *NORMALISED, **HEADS)
def softmax_plus_relu_of_one_score(q, k, v):
    s = q @ k.mT
    return s.softmax(-1) @ v + F.relu(s) ** 2 @ v


@leave(**HEADS)
def indexer_without_values(q, k, v):
    return F.relu(q @ k.mT).sum(1), v * 2


# Where the letter counts


@either(**HEADS)
def straight_through(q, k, v):
    s = q @ k.mT
    return (s + (F.relu(s) - s).detach()) @ v


@either(varies=True, **SELF)
def weights_transposed(q, k, v):
    return F.silu(q @ k.mT).mT @ v


rows(
    partial(either, varies=True),
    {"q": "b h n d", "k": "b h n d", "v": "b h n d", "x": "g n d", "up": "g d m", "down": "g m d"},
    channel_attention=lambda q, k, v: (F.silu(q.mT @ k) @ v.mT).mT,
    experts=lambda x, up, down: torch.bmm(F.relu(torch.bmm(x, up)), down),
)


@fuse(q="b n 300", k="b m 300", v="b m e")
def head_dim_beyond_the_fused_kernels(q, k, v):
    return F.silu(q @ k.mT) @ v


@either(x="n d", up="3*h d", down="d 3*h")
def feed_forward_linear(x, up, down):
    return F.linear(F.gelu(F.linear(x, up)), down)


@either(varies=True, **SINGLE)
def one_key(q, k, v):
    return F.silu(q @ k[:, :1].mT) @ v[:, :1]


# Randomness


@refuse("DROPOUT", **HEADS)
def rrelu_in_training(q, k, v):
    return F.rrelu(q @ k.mT, 0.1, 0.4, training=True) @ v


@refuse("DROPOUT", **HEADS)
def rrelu_in_training_with_one_slope(q, k, v):
    """It draws numbers that later calls then do not get."""
    return F.rrelu(q @ k.mT, 0.2, 0.2, training=True) @ v


@refuse("OPAQUE_CALL", "POINTWISE_OP", "DROPOUT", "CROSS_ELEMENT", **HEADS)
def noise_of_the_scores(q, k, v):
    s = q @ k.mT
    return F.relu(s + torch.rand_like(s)) @ v


@refuse("SCORES_BROADCAST", varies=True, q="b 1 n d", k="b 1 m d", v="b h m e", bias="h n m")
def bias_with_more_heads_than_scores(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@refuse("CONTRACTION", "LAYOUT", "REDUCTION", varies=True, **HEADS)
def heads_contracted_too(q, k, v):
    return torch.einsum("bhnm,bhme->bne", F.silu(q @ k.mT), v)


# Functions that no score program has, by their names


rows(
    partial(refuse, "POINTWISE_OP"),
    {**HEADS, "bias": "n m"},
    complementary_error_function=lambda q, k, v: torch.erfc(q @ k.mT) @ v,
    hyperbolic_cosine=lambda q, k, v: torch.cosh(q @ k.mT) @ v,
    sum_of_exponentials=lambda q, k, v, bias: torch.logaddexp(q @ k.mT, bias) @ v,
)


@refuse("POINTWISE_OP", **HEADS, divisor="positive: n m")
def quotient_added(q, k, v, divisor):
    """Its gradient squares the divisor, so that it overflows and vanishes where ours does not."""
    s = q @ k.mT
    return torch.addcdiv(s, s, divisor) @ v


@refuse("POINTWISE_OP", **HEADS, bias="n m")
def decision_by_a_product_that_is_added_at_once(q, k, v, bias):
    """addcmul rounds once where a product and a sum round twice."""
    s = q @ k.mT
    return ((torch.addcmul(s * 0.6, s, bias, value=0.3) >= 0.9) * s) @ v
