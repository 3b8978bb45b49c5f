"""Products of several dims and operands, grids of keys; chains of products."""

import torch
import torch.nn.functional as F

from ..rows import (
    INF,
    Programs,
    after,
    normal,
    nothing,
    of_scores,
    plus,
    qkv,
    square,
)

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def einsums(first, second, between=F.relu):
    """Both products as einsums, and what is done between them."""
    return lambda q, k, v, *more: torch.einsum(second, between(torch.einsum(first, q, k), *more), v)


SCORES, GRID = "bhid,bhjd->bhij", "bnd,bxyd->bnxy"
TEN = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3)

table(
    normal(*TEN),
    einsum_with_gate_operand=(
        lambda q, k, v, w: torch.einsum(
            "bhij,bhjc,bi->bhic", torch.einsum(SCORES, q, k).relu(), v, w
        ),
        normal((2, 5)),
    ),
    einsum_of_four=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,ij,bhjc->bhic", q, k, w, v),
        normal((5, 7)),
    ),
    einsum_of_four_key_weights=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,j,bhjc->bhic", q, k, w, v),
        normal(7),
    ),
)
table(
    nothing,
    einsum_with_scale_operand=(
        lambda q, k, v, w: torch.einsum(
            "bhij,bhjc->bhic", torch.einsum("bhid,bhjd,h->bhij", q, k, w).relu(), v
        ),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 1, 7, 3), 3),
    ),
    einsum_of_four_swapped_mask=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,ji,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 3), (5, 5)),
    ),
    window_masks_per_window=(
        lambda q, k, v, mask: (
            (q @ k.mT).view(4, 2, 4, 4).masked_fill(mask, -INF).view(8, 4, 4).sigmoid() @ v
        ),
        plus(normal((8, 4, 4), (8, 4, 4), (8, 4, 4)), lambda: (torch.rand(2, 4, 4) > 0.5,)),
    ),
    rows_in_a_grid=(
        einsums(
            "bxyd,bmd->bxym",
            "bxym,bmc->bxyc",
            lambda s: (
                s * (torch.arange(3)[:, None, None] + torch.arange(2)[:, None] >= torch.arange(5))
            ).sigmoid(),
        ),
        normal((2, 3, 2, 4), (2, 5, 4), (2, 5, 3)),
    ),
)
table(
    nothing,
    einsum_output_sums_rows=(einsums(SCORES, "bhij,bhjc->bhc"), qkv()),
    transformer_xl=(
        lambda q, k, v, u, w: (
            F.silu((q + u[:, None]) @ k.mT + (q + w[:, None]).sum(-1, keepdim=True)) @ v
        ),
        square(),
        normal((2, 4), (2, 4)),
    ),
    keys_in_a_grid_masked=(
        einsums(
            GRID,
            "bnxy,bxyc->bnc",
            lambda s: (s * (torch.arange(3)[:, None] > torch.arange(2))).sigmoid(),
        ),
        normal((2, 5, 4), (2, 3, 2, 4), (2, 3, 2, 3)),
    ),
    keys_in_a_grid_with_biases=(
        einsums(GRID, "bnxy,bxyc->bnc", lambda s, a, b: (s + a + b).sigmoid()),
        normal((2, 5, 4), (2, 3, 2, 4), (2, 3, 2, 3)),
        normal((5, 3, 1), (3, 2)),
    ),
)


@case(normal((2, 8, 12), (49, 2)))
def swin_windows(x, table):
    w = x.view(2, 2, 4, 2, 2, 3).permute(0, 1, 3, 2, 4, 5)
    q = k = v = w.reshape(4, 2, 8, 3)
    i = torch.arange(8)
    rel = (i[:, None] // 4 - i // 4 + 3) * 7 + (i[:, None] % 4 - i % 4 + 3)
    s = q @ k.mT - rel.double() / 50 + table[rel].permute(2, 0, 1)
    return F.relu(s) @ v


@case(plus(square(), normal((2, 11, 4))))
def relative_by_skewing(q, k, v, e):
    r = q @ e.mT  # [2, 2, 6, 11]
    r = F.pad(r, (0, 1)).flatten(2)
    r = F.pad(r, (0, 5)).view(2, 2, 7, 11)[:, :, :6, 5:]
    return F.silu(q @ k.mT + r) @ v


@case(square(n=4))
def one_output_is_a_mask_and_written(q, k, v):
    b = F.relu(q @ k.mT) @ v
    m = b > 0
    b.mul_(2)
    return (F.silu(q @ k.mT) * m) @ b


table(
    square(n=4),
    gate_of_pooled_scores=lambda q, k, v: (
        F.silu((q @ k.mT) * (q @ k.mT).mean((-1, -2), keepdim=True).sigmoid()) @ v
    ),
    gate_of_detached_pooled_scores=lambda q, k, v: (
        F.silu(q @ k.mT / ((q.detach() @ k.detach().mT).abs().amax(-1, keepdim=True) + 1)) @ v
    ),
    gram_gate=lambda q, k, v: (F.silu(q @ k.mT) * ((q * k).sum(-1, keepdim=True) > 0)) @ v,
    differential_attention=lambda q, k, v: (
        (
            torch.sigmoid(q[..., :2] @ k[..., :2].mT)
            - 0.3 * torch.sigmoid(q[..., 2:] @ k[..., 2:].mT)
        )
        @ v
    ),
)


table(
    nothing,
    of=of_scores,
    async_assert_on_scores=(
        after(lambda s: torch._assert_async((s == s).all()), F.silu),
        square(n=4),
    ),
)
