"""The spellings of the two products."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, SINGLE, either, fuse, leave, refuse, rows

BNHD = {"q": "b n h d", "k": "b m h d", "v": "b m h e"}


rows(
    fuse,
    {**HEADS, "decay": "n m"},
    at_sign_transpose=lambda q, k, v: F.silu(q @ k.transpose(-2, -1)) @ v,
    swapaxes=lambda q, k, v: F.silu(q @ torch.swapaxes(k, 2, 3)) @ v,
    mirrored=lambda q, k, v: (v.mT @ F.silu(k @ q.mT)).mT,
    decay_by_hand=lambda q, k, v, decay: ((q @ k.mT) * decay) @ v,
    product_of_torch_linalg=lambda q, k, v: torch.linalg.matmul(
        F.silu(torch.linalg.matmul(q, k.mT)), v
    ),
    same_product_in_two_spellings=lambda q, k, v: (
        (F.silu(q @ k.mT) + F.relu(torch.matmul(q, k.transpose(-1, -2)) / 2)) @ v
    ),
    product_and_that_of_other_rows=lambda q, k, v: (
        (F.silu(q @ k.mT) + F.relu(q.flip(2) @ k.mT)) @ v
    ),
)


@fuse(**HEADS)
def assigned_in_place(q, k, v):
    p = F.silu(q @ k.mT)
    p @= v  # a new tensor
    return p


rows(
    partial(fuse, varies=True),
    {"q": "b h n d", "k": "b h d m", "v": "b h m e", "x": "b h n d"},
    key_stored_transposed=lambda q, k, v: F.silu(q @ k) @ v,
    query_is_key_is_value=lambda x: F.silu(x @ x.mT) @ x,
)


@fuse(**BNHD)
def einsum_bnhd(q, k, v):
    p = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k))
    return torch.einsum("bhnm,bmhd->bnhd", p, v)


@fuse(varies=True, q="b g h n d", k="b g h m d", v="b g h m e")
def einsum_ellipsis_five_dims(q, k, v):
    p = F.relu(torch.einsum("... i d, ... j d -> ... i j", q, k) / 8) ** 2
    return torch.einsum("... i j, ... j d -> ... i d", p, v)


@fuse(varies=True, q="b n h d", k="m b d h", v="h e m b")
def einsum_any_order(q, k, v):
    p = F.silu(torch.einsum("bnhd,mbdh->nbmh", q, k))
    return torch.einsum("nbmh,hemb->ehbn", p, v)


@fuse(varies=True, q="b g n h d", k="b g m h d", v="b g m h e")
def matmul_five_dims_permuted(q, k, v):
    q, k, v = (x.transpose(2, 3) for x in (q, k, v))
    return (F.silu(q @ k.mT) @ v).transpose(2, 3)


@fuse(varies=True, q="b h n d", k="b m d", v="b m e")
def multi_query_by_broadcast(q, k, v):
    return F.silu(q @ k.unsqueeze(1).mT) @ v[:, None]


@fuse(varies=True, q="n h d", k="b m h d", v="b m h e")
def seeds_shared_by_the_batch(q, k, v):
    p = F.gelu(torch.einsum("nhd,bmhd->bhnm", q, k) * 0.5, approximate="tanh")
    return torch.einsum("bhnm,bmhd->bnhd", p, v)


@fuse(q="b h n d", k="b h m d", v="h m e")
def value_shared_by_the_batch(q, k, v):
    return F.silu(torch.einsum("bhnd,bhmd->bhnm", q, k)) @ v


@fuse(q="b h*g n d", k="b h m d", v="b h m e")
def grouped_by_repeat_interleave(q, k, v):
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


@fuse(q="b h*g n d", k="b h m d", v="b h m e")
def grouped_by_expand(q, k, v):
    b, h, m, _ = k.shape
    k, v = (x[:, :, None].expand(b, h, 2, m, x.shape[-1]).reshape(b, h * 2, m, -1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


@fuse(q="b h*g n d", k="b h m d", v="b h m e")
def grouped_by_repeat(q, k, v):
    k, v = (x.repeat(1, 2, 1, 1) for x in (k, v))
    return F.silu(q @ k.mT) @ v


@fuse(q="b h*g n d", k="b h m d", v="b h m e", bias="h*g n m")
def grouped_by_its_own_dim(q, k, v, bias):
    q = q.unflatten(1, (3, 2))
    s = q @ k.unsqueeze(2).mT + bias.unflatten(0, (3, 2))
    return (F.silu(s) @ v.unsqueeze(2)).flatten(1, 2)


@fuse(q="b h*g n d", k="b h m d", v="b h m e")
def grouped_by_einsum(q, k, v):
    q = q.view(q.shape[0], 3, 2, q.shape[2], 4)
    p = F.silu(torch.einsum("bhgnd,bhmd->bhgnm", q, k))
    return torch.einsum("bhgnm,bhme->bhgne", p, v).flatten(1, 2)


@fuse(varies=True, **HEADS, bias="m n", mask="bool: b 1 m n")
def mirrored_with_bias_and_mask(q, k, v, bias, mask):
    p = F.silu(k @ q.transpose(2, 3) + bias).masked_fill(mask, 0)
    return (v.transpose(2, 3) @ p).transpose(2, 3)


rows(
    partial(fuse, varies=True),
    HEADS,
    scores_transposed_between=lambda q, k, v: F.silu(k @ q.mT).mT @ v,
    keys_sliced_before=lambda q, k, v: F.silu(q[:, :, 1:] @ k[:, :, :-1].mT) @ v[:, :, :-1],
)


@fuse(varies=True, **SINGLE, bias="b n m")
def baddbmm_alpha_beta(q, k, v, bias):
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.mT, beta=0.5, alpha=0.125)), v)


@fuse(varies=True, **SINGLE, bias="1 n m")
def baddbmm_broadcast(q, k, v, bias):
    return torch.bmm(F.silu(bias.baddbmm(q, k.mT)), v)


@fuse(**SINGLE, bias="b n m")
def baddbmm_without_its_bias(q, k, v, bias):
    # beta=0 ignores the bias, NaN and all.
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.mT, beta=0, alpha=0.5)), v)


@fuse(**HEADS, bias="b h n m")
def folded_heads_unfolded_for_the_bias(q, k, v, bias):
    b, h, n, m = bias.shape
    s = torch.bmm(q.reshape(b * h, n, 4), k.reshape(b * h, m, 4).mT)
    p = F.silu(s.view(b, h, n, m) + bias)
    return torch.bmm(p.view(b * h, n, m), v.reshape(b * h, m, 6)).view(b, h, n, 6)


@fuse(**SELF)
def decay_of_retention(q, k, v):
    """As its reference spells it: positions of a range, and a rate for each head."""
    rate = (1 - q.new_tensor(2.0).pow(-5.0 - q.new_tensor(range(q.shape[1])))).log2()
    n = q.new_tensor(range(q.shape[2]))
    decay = torch.exp2((n.unsqueeze(-1) - n) * rate.view(-1, 1, 1)) * n.unsqueeze(-1).ge(n)
    return torch.einsum("bhnm,bhme->bhne", torch.einsum("bhnd,bhmd,hnm->bhnm", q, k, decay), v)


@fuse(x="b n 4*h*d")
def strided_split_views(x):
    u, q, k, v = F.silu(x).split([12, 12, 12, 12], dim=-1)
    q, k, v = (t.view(t.shape[0], -1, 3, 4) for t in (q, k, v))
    p = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k)) / x.shape[1]
    return torch.einsum("bhnm,bmhd->bnhd", p, v).flatten(2) * u


@fuse(x="b n 6", w="6 3*h*d")
def one_projection(x, w):
    q, k, v = (x @ w).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    return (F.silu(q @ k.mT / math.sqrt(4)) @ v).transpose(1, 2).flatten(2)


@fuse(varies=True, regions=2, **HEADS, other="b h n d")
def two_regions(q, k, v, other):
    return F.silu(q @ k.mT) @ v + F.gelu(other @ k.mT) @ v


@fuse(varies=True, regions=2, q="b h n d", k="b h m d", v="b h m d", k2="b h m d", v2="b h m e")
def one_after_the_other(q, k, v, k2, v2):
    q = F.layer_norm(q + F.silu(q @ k.mT) @ v, (4,))
    return F.silu(q @ k2.mT) @ v2


@either(**HEADS)
def loop_over_heads(q, k, v):
    return torch.stack([F.silu(q[:, i] @ k[:, i].mT) @ v[:, i] for i in range(3)], dim=1)


@leave(**HEADS)
def product_by_hand(q, k, v):
    return F.silu((q.unsqueeze(3) * k.unsqueeze(2)).sum(-1)) @ v


@leave(varies=True, **HEADS)
def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v)


@leave(varies=True, q="b h n d", k="b h n d", v="b h n d")
def cross_covariance_attention(q, k, v):
    s = F.normalize(q.mT, dim=-1) @ F.normalize(k, dim=-2)
    return (s.softmax(-1) @ v.mT).mT


@fuse(**HEADS)
def einsum_by_lists_of_dims(q, k, v):
    p = F.silu(torch.einsum(q, [0, 1, 2, 3], k, [0, 1, 4, 3], [0, 1, 2, 4]))
    return torch.einsum(p, [0, 1, 2, 4], v, [0, 1, 4, 5], [0, 1, 2, 5])


@fuse(varies=True, q="1 n d", k="1 m d", v="1 m e")
def linear_with_values_for_a_weight(q, k, v):
    return F.linear(F.silu(q @ k.mT), v[0].mT)


@leave(q="1 n d", weight="m d", other="e m")
def linear_with_a_scaled_weight(q, weight, other):
    return F.linear(F.silu(F.linear(q, weight * 2)), other * 3)


@fuse(**HEADS, mask="bool: n m")
def same_product_three_times(q, k, v, mask):
    gate = torch.where(mask, torch.sigmoid(q @ k.mT), 0.0)
    return (gate * F.relu(q @ k.mT) + torch.tanh(q @ k.mT)) @ v


@fuse(**SELF)
def product_and_its_mirror(q, k, v):
    return (F.silu(q @ k.mT) + F.relu(k @ q.mT)) @ v


@refuse(
    "MUTATED_OPERAND",
    "SEVERAL_SCORES",
    varies=True,
    q="const: b h n d",
    k="const: b h m d",
    v="b h m e",
)
def product_again_after_a_write(q, k, v):
    q = q * 1
    s = q @ k.mT
    q.mul_(2)
    return (F.silu(s) + F.relu(q @ k.mT)) @ v


@refuse("LAYOUT", **SINGLE, out="b n e")
def second_product_added_to_something(q, k, v, out):
    return torch.baddbmm(out, F.silu(torch.bmm(q, k.mT)), v)
