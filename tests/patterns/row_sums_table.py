"""Weights that are divided by their row sums: fused, with these as a second result, or left."""

import torch
import torch.nn.functional as F

from tests.patterns.rows import HEADS, SELF, SINGLE, fuse, refuse, rows

APART = ("NORMALISED", "REDUCTION", "CROSS_ELEMENT", "LAYOUT")

rows(
    fuse,
    {**HEADS, "mask": "b 1 n m"},
    sums_before=lambda q, k, v: (w := torch.sigmoid(q @ k.mT)) / w.sum(-1, keepdim=True) @ v,
    sums_after=lambda q, k, v: ((w := F.silu(q @ k.mT)) @ v) / w.sum(-1, keepdim=True),
    sums_by_axis=lambda q, k, v: ((w := F.silu(q @ k.mT)) @ v) / w.sum(axis=3)[..., None],
    sums_with_eps=lambda q, k, v: (w := F.relu(q @ k.mT)) / (w.sum(-1, True) + 1e-6) @ v,
    sums_as_a_factor=lambda q, k, v: (w := F.relu(q @ k.mT)) * (1 / (w.sum(-1, True) + 1)) @ v,
    sums_as_a_factor_after=lambda q, k, v: (
        ((w := torch.sigmoid(q @ k.mT)) @ v) * (1 / w.sum(dim=3).clamp(min=1e-6)).unsqueeze(-1)
    ),
    sums_of_squares=lambda q, k, v: (
        (w := F.relu(q @ k.mT)) / w.square().sum(-1, True).sqrt().clamp(min=1e-2) @ v
    ),
    sums_before_a_mask=lambda q, k, v, mask: (
        ((w := F.relu(q @ k.mT)) * mask @ v) / (w.sum(-1, keepdim=True) + 1)
    ),
    sums_under_another_mask=lambda q, k, v, mask: (
        ((w := F.relu(q @ k.mT)).tril() @ v) / ((w * mask).sum(-1, keepdim=True).abs() + 1)
    ),
    sums_of_masked_weights=lambda q, k, v: (
        (w := torch.sigmoid(q @ k.mT).tril(-1)) / w.sum(-1, keepdim=True).clamp(min=1) @ v
    ),
    sums_of_weights_after_idle_dropout=lambda q, k, v: (
        (w := F.dropout(torch.sigmoid(q @ k.mT), 0.3, False)) / w.sum(-1, keepdim=True) @ v
    ),
    sums_by_einsum=lambda q, k, v: (
        (w := torch.sigmoid(q @ k.mT)) / torch.einsum("bhij->bhi", w)[..., None] @ v
    ),
    sums_by_einsum_after=lambda q, k, v: (
        ((w := F.silu(q @ k.mT)) @ v) / torch.einsum("...ij->...i", w).unsqueeze(-1)
    ),
    sums_added=lambda q, k, v: (w := torch.sigmoid(q @ k.mT)) @ v + w.sum(-1, keepdim=True),
    sums_beside_the_output=lambda q, k, v: ((w := F.silu(q @ k.mT)) @ v, w.sum(-1)),
)


@fuse(**HEADS)
def retention(q, k, v):
    """RetNet: the divisor has no gradient, and a clamp keeps it from 0."""
    w = torch.tril(q @ k.mT)
    w = w / w.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.matmul(w, v)


@fuse(**HEADS)
def by_einsum_with_heads_last(q, k, v):
    w = F.relu(torch.einsum("bhnd,bhmd->bhnm", q, k)) ** 2 + 1.0
    out = torch.einsum("bhnm,bhme->bnhe", w / w.sum(-1).unsqueeze(-1), v)
    return out.flatten(2)


@fuse(**HEADS)
def keys_in_front(q, k, v):
    """EfficientViT has Kᵀ Q, and sums its columns."""
    w = F.relu(k @ q.mT)
    return v.mT @ (w / (torch.sum(w, dim=2, keepdim=True) + 1e-15))


@fuse(**SINGLE)
def sums_used_twice(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    total = w.sum(-1, keepdim=True)
    return (w / total) @ v + total.log(), total


@fuse(**HEADS, varies=True)
def a_product_of_features(q, k, v):
    """cosFormer's quadratic form: no activation stands between the products."""
    q, k = F.relu(q), F.relu(k)
    place = torch.arange(q.shape[-2]).to(q.dtype) / q.shape[-2]
    other = torch.arange(k.shape[-2]).to(k.dtype) / k.shape[-2]
    q = torch.cat([q * place.sin()[:, None], q * place.cos()[:, None]], -1)
    k = torch.cat([k * other.sin()[:, None], k * other.cos()[:, None]], -1)
    w = q @ k.mT
    return (w / torch.clamp_min(w.sum(-1, keepdim=True), 1e-6)) @ v


rows(
    lambda **specs: refuse(*APART, **specs),
    {**HEADS, "mask": "b 1 n m"},
    sums_of_columns=lambda q, k, v: (w := F.relu(q @ k.mT)) / (w.sum(-2, True) + 1) @ v,
    sums_of_heads=lambda q, k, v: (w := F.relu(q @ k.mT)) / (w.sum(1, True) + 1) @ v,
    sums_of_columns_by_einsum=lambda q, k, v: (
        (w := F.relu(q @ k.mT)) / (torch.einsum("bhij->bhj", w)[..., None, :] + 1) @ v
    ),
    sums_of_two_dims=lambda q, k, v: (w := F.relu(q @ k.mT)) / (w.sum((-2, -1), True) + 1) @ v,
    sums_that_may_cancel=lambda q, k, v: (w := F.silu(q @ k.mT)) / w.sum(-1, True) @ v,
    sums_and_a_mask_after=lambda q, k, v: (
        ((w := F.relu(q @ k.mT)) / (w.sum(-1, True) + 1)).tril() @ v
    ),
    sums_subtracted=lambda q, k, v: ((w := F.relu(q @ k.mT)) - w.sum(-1, True)) @ v,
    sums_less_one=lambda q, k, v: (w := F.relu(q @ k.mT)) / (w.sum(-1, True) - 1) @ v,
    sums_of_other_weights=lambda q, k, v, mask: (
        (w := F.relu(q @ k.mT)).tril() / ((w * mask).sum(-1, True) + 1e-3) @ v
    ),
    squares_of_normalised=lambda q, k, v: (
        ((w := F.relu(q @ k.mT)) / (w.sum(-1, True) + 1)) ** 2 @ v
    ),
    sums_of_two_kinds=lambda q, k, v: (
        (w := F.relu(q @ k.mT)) / (w.sum(-1, True) + 1) / (w.abs().sum(-1, True) + 1) @ v
    ),
    sums_twice_over=lambda q, k, v: (
        (w := (s := F.relu(q @ k.mT)) / (s.sum(-1, True) + 1)) / (w.sum(-1, True) + 1) @ v
    ),
    by_means=lambda q, k, v: (w := torch.sigmoid(q @ k.mT)) / w.mean(-1, keepdim=True) @ v,
    by_normalize=lambda q, k, v: F.normalize(F.relu(q @ k.mT), p=1.0, dim=-1) @ v,
)


@refuse(*APART, q="1 n d", k="1 n d", v="1 n e")
def sums_that_broadcast_along_the_keys(q, k, v):
    """Without keepdim they divide columns."""
    w = torch.sigmoid(q @ k.mT)
    return (w / w.sum(-1)) @ v


@refuse(*APART, "SCORES_ESCAPE", **SELF)
def sums_of_the_transposed_weights(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return (w @ v) / w.mT.sum(-1, keepdim=True)


@refuse(*APART, "SCORES_ESCAPE", **HEADS)
def sums_of_a_part(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return (w @ v) / w[..., 1:].sum(-1, keepdim=True)


@refuse("MUTATED_SCORES", **HEADS)
def sums_that_are_changed_in_place(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    total = w.sum(-1, keepdim=True)
    total.add_(1)
    return (w / total) @ v


@refuse("SCORES_ESCAPE", **HEADS)
def sums_that_are_written_into_a_tensor(q, k, v):
    w = F.silu(q @ k.mT)
    total = torch.empty(w.shape[:-1], dtype=w.dtype)
    torch.sum(w.detach(), -1, out=total)
    return (w @ v) / (total.abs() + 1)[..., None]


@refuse("MUTATED_SCORES", "SCORES_ESCAPE", "NORMALISED", **HEADS)
def sums_after_a_write(q, k, v):
    """The weights are those before it."""
    w = F.silu(q @ k.mT)
    kept = w.clone()
    w.mul_(2)
    total = w.sum(-1, keepdim=True)
    return (kept / total) @ v


@refuse("SCORES_ESCAPE", **HEADS)
def sums_before_the_values_are_known(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    total = w.sum(-1, keepdim=True)
    return (w / total) @ (v * 2)


def in_fp32(total):
    """Weights in fp32, whose sums are in another dtype."""

    def attention(q, k, v):
        q, k, v = q.float(), k.float(), v.float()
        w = F.silu(q @ k.mT)
        return (w @ v) / (total(w).abs() + 1)

    return attention


# Over many keys a sum in fp32 has larger errors than the weights. Before a narrower sum each weight
# is rounded.
rows(
    lambda **operands: refuse("NORMALISED", **operands),
    HEADS,
    sums_in_fp64=in_fp32(lambda w: w.double().sum(-1, keepdim=True)),
    sums_given_in_fp64=in_fp32(lambda w: w.sum(-1, True, dtype=torch.float64)),
    sums_given_in_fp16=in_fp32(lambda w: w.sum(-1, True, dtype=torch.float16)),
)


@refuse("NORMALISED", **HEADS)
def quotients_that_are_rounded_to_fp16(q, k, v):
    """They fit where the weights overflow."""
    w = torch.sigmoid(q @ k.mT) * 1e6
    return (w / w.sum(-1, keepdim=True)).half().to(v.dtype) @ v


@refuse("SCORES_ESCAPE", **HEADS)
def sums_of_two_dims_by_einsum(q, k, v):
    w = F.relu(q @ k.mT)
    return (w @ v) / (torch.einsum("bhij->bh", w)[..., None, None] + 1)


@refuse("SCORES_ESCAPE", **HEADS)
def sums_of_what_is_returned_too(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    large = w.abs()
    return (w @ v) / large.sum(-1, keepdim=True), large


@fuse(**HEADS)
def sums_after_a_write_of_both(q, k, v):
    """As fla's Based has it: the weights are masked in place."""
    w = 1 + q @ k.mT
    w.masked_fill_(~torch.ones(w.shape[-2:], dtype=torch.bool).tril(), 0)
    return (w @ v) / (w.sum(-1)[..., None] + 1e-6)


@refuse("SCORES_ESCAPE", "MUTATED_SCORES", "MUTATED_OPERAND", **HEADS, x="b h n m")
def sums_with_a_mask_that_is_made_later(q, k, v, x):
    w = torch.sigmoid(q @ k.mT)
    out = w @ v
    return out / (w * x.square().exp2()).sum(-1, keepdim=True)


@refuse("SCORES_ESCAPE", "MUTATED_SCORES", "MUTATED_OPERAND", **HEADS, x="b h n m")
def sums_with_a_mask_that_changes_later(q, k, v, x):
    x = x.clone()
    w = torch.sigmoid(q @ k.mT)
    out = w @ v
    x.add_(1)
    return out / (w * x).sum(-1, keepdim=True).clamp(min=1)


@fuse(2, **HEADS)
def sums_beside_two_products(q, k, v):
    other = v.square()
    w = F.relu(q @ k.mT)
    return (w @ v + w @ other) / (w.sum(-1, keepdim=True) + 1)


@fuse(2, **HEADS)
def sums_that_divide_each_of_two_products(q, k, v):
    """The call of the first product gives the sums."""
    other = v.square()
    w = F.relu(q @ k.mT)
    total = w.sum(-1, keepdim=True) + 1
    return (w @ v) / total, (w @ other) / (total + 1)


@fuse(2, **HEADS)
def sums_beside_a_product_that_is_not_divided(q, k, v):
    w = F.relu(q @ k.mT)
    total = w.sum(-1, keepdim=True)
    return (w @ v) / (total + 1), total, w @ v


@refuse("SCORES_ESCAPE", **HEADS)
def sums_within_two_products(q, k, v):
    other = v.square()
    w = F.relu(q @ k.mT)
    w = w / (w.sum(-1, keepdim=True) + 1)
    return w @ v, w @ other


@fuse(2, **SELF)
def sums_of_two_layers(q, k, v):
    w = F.relu(q @ k.mT)
    v = (w @ v) / (w.sum(-1, keepdim=True) + 1)
    w = F.relu(k @ q.mT)
    return (w / (w.sum(-1, keepdim=True) + 1)) @ v
