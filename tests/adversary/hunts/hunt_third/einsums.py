"""Products of several dims and of more than two operands, grids of keys, relative positions."""

import torch
import torch.nn.functional as F

from ..rows import INF, Programs, normal, nothing, plus, qkv, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    qkv(),
    einsum_scrambled=lambda q, k, v: torch.einsum(
        "jzih,zhjc->cihz", F.silu(torch.einsum("zhid,zhjd->jzih", q, k)), v
    ),
    einsum_three=lambda q, k, v: torch.einsum("bhid,bhjd,bhjc->bhic", q, k, v),
    einsum_output_sums_rows=lambda q, k, v: torch.einsum(
        "bhij,bhjc->bhc", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
    ),
    einsum_sums_heads=lambda q, k, v: torch.einsum(
        "bhij,bhjc->bic", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
    ),
)


table(
    square(),
    einsum_diagonal_of_scores=lambda q, k, v: torch.einsum(
        "bhii,bhic->bhic", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
    ),
    einsum_contracts_rows=lambda q, k, v: torch.einsum(
        "bhij,bhic->bhjc", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
    ),
    einsum_ellipsis=lambda q, k, v: torch.einsum(
        "...ij,...jc->i...c", torch.einsum("...id,...jd->...ij", q, k).sigmoid(), v
    ),
    relative_keys_shaw=(
        lambda q, k, v, e: F.silu(q @ k.mT + torch.einsum("bhid,ijd->bhij", q, e)) @ v,
        normal((6, 6, 4)),
    ),
    transformer_xl=(
        lambda q, k, v, u, w: (
            F.silu((q + u[:, None]) @ k.mT + (q + w[:, None]).sum(-1, keepdim=True)) @ v
        ),
        normal((2, 4), (2, 4)),
    ),
    einsum_sublists=lambda q, k, v: torch.einsum(
        F.relu(torch.einsum(q, [0, 1, 2, 3], k, [0, 1, 4, 3], [0, 1, 2, 4])),
        [0, 1, 2, 4],
        v,
        [0, 1, 4, 5],
    ),
)


@case(normal((2, 3, 2, 4), (2, 5, 4), (2, 5, 3)))
def rows_in_a_grid(q, k, v):
    s = torch.einsum("bxyd,bmd->bxym", q, k)
    s = s * (torch.arange(3)[:, None, None] + torch.arange(2)[:, None] >= torch.arange(5))
    return torch.einsum("bxym,bmc->bxyc", s.sigmoid(), v)


table(
    square(h=4, n=4),
    axial_rows=lambda q, k, v: torch.einsum(
        "bxyz,bxzc->bxyc", torch.einsum("bxyd,bxzd->bxyz", q, k).sigmoid(), v
    ),
    axial_columns=lambda q, k, v: torch.einsum(
        "bxyz,bzyc->bxyc", torch.einsum("bxyd,bzyd->bxyz", q, k).sigmoid(), v
    ),
    axial_mixed_up=lambda q, k, v: torch.einsum(
        "bxyz,bxzc->bxyc", torch.einsum("bxyd,bzyd->bxyz", q, k).sigmoid(), v
    ),
    triangle_multiplication=lambda q, k, v: torch.einsum(
        "bijc,bjkc->bikc", torch.einsum("bikc,bjkc->bijc", q.sigmoid(), k).relu(), v
    ),
)


@case(normal((2, 8, 8, 6)))
def swin_windows(x):
    w = x.view(2, 2, 4, 2, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(8, 16, 6)
    q, k, v = w.chunk(3, -1)
    i = torch.arange(16)
    rel = (i[:, None] // 4 - i // 4 + 3) * 7 + (i[:, None] % 4 - i % 4 + 3)
    s = q @ k.mT - rel.double() / 50
    o = F.relu(s) @ v
    return o.view(2, 2, 2, 4, 4, 2).permute(0, 1, 3, 2, 4, 5).reshape(2, 8, 8, 2)


@case(normal((2, 8, 12), (49, 2)))
def swin_table(x, table):
    w = x.view(2, 2, 4, 2, 2, 3).permute(0, 1, 3, 2, 4, 5)
    q = k = v = w.reshape(4, 2, 8, 3)
    i = torch.arange(8)
    rel = (i[:, None] // 4 - i // 4 + 3) * 7 + (i[:, None] % 4 - i % 4 + 3)
    s = q @ k.mT + table[rel].permute(2, 0, 1)
    return F.relu(s) @ v


table(
    nothing,
    einsum_broadcasts_ones=(
        lambda q, k, v: torch.einsum(
            "bhij,bhjc->bhic", torch.einsum("bhid,bhjd->bhij", q, k).relu(), v
        ),
        normal((2, 1, 5, 4), (1, 3, 7, 4), (2, 3, 7, 3)),
    ),
    einsum_with_scale_operand=(
        lambda q, k, v, w: torch.einsum(
            "bhij,bhjc->bhic", torch.einsum("bhid,bhjd,h->bhij", q, k, w).relu(), v
        ),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 1, 7, 3), 3),
    ),
    einsum_with_gate_operand=(
        lambda q, k, v, w: torch.einsum(
            "bhij,bhjc,bi->bhic", torch.einsum("bhid,bhjd->bhij", q, k).relu(), v, w
        ),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3), (2, 5)),
    ),
    einsum_of_four_swapped_mask=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,ji,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 3), (5, 5)),
    ),
    einsum_of_four_key_weights=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,j,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3), 7),
    ),
    einsum_of_four_channel_weights=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,d,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3), 4),
    ),
    einsum_wrong_axis=(
        lambda q, k, v: torch.einsum(
            "bhij,bhcj->bhic", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
        ),
        square(h=6, n=6, d=6),
    ),
    einsum_swapped_batch_of_v=(
        lambda q, k, v: torch.einsum(
            "bhij,bjhc->bihc", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
        ),
        square(h=6, n=6, d=6),
    ),
    einsum_v_has_other_batch=(
        lambda q, k, v: torch.einsum(
            "bhij,hbjc->bhic", F.relu(torch.einsum("bhid,bhjd->bhij", q, k)), v
        ),
        square(b=6, h=6, n=6, d=6),
    ),
    einsum_cross_keys=(
        lambda q, k, v: torch.einsum(
            "bhij,bjhc->bihc", F.relu(torch.einsum("bhid,bjhd->bhij", q, k)), v
        ),
        square(b=6, h=6, n=6, d=6),
    ),
    einsum_scores_contract_heads=(
        lambda q, k, v: torch.einsum(
            "bij,bhjc->bhic", F.relu(torch.einsum("bhid,bjhd->bij", q, k)), v
        ),
        square(b=6, h=6, n=6, d=6),
    ),
    keys_in_a_grid=(
        lambda q, k, v: torch.einsum(
            "bnxy,bxyc->bnc", torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid(), v
        ),
        normal((2, 5, 4), (2, 3, 2, 4), (2, 3, 2, 3)),
    ),
    keys_in_a_grid_masked=(
        lambda q, k, v: torch.einsum(
            "bnxy,bxyc->bnc",
            (
                torch.einsum("bnd,bxyd->bnxy", q, k) * (torch.arange(3)[:, None] > torch.arange(2))
            ).sigmoid(),
            v,
        ),
        normal((2, 5, 4), (2, 3, 2, 4), (2, 3, 2, 3)),
    ),
    keys_in_a_grid_with_biases=(
        lambda q, k, v, a, b: torch.einsum(
            "bnxy,bxyc->bnc", (torch.einsum("bnd,bxyd->bnxy", q, k) + a + b).sigmoid(), v
        ),
        normal((2, 5, 4), (2, 3, 2, 4), (2, 3, 2, 3), (5, 3, 1), (3, 2)),
    ),
    keys_in_a_grid_transposed_values=(
        lambda q, k, v: torch.einsum(
            "bnxy,byxc->bnc", torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid(), v
        ),
        normal((2, 5, 4), (2, 3, 2, 4), (2, 2, 3, 3)),
    ),
    keys_in_a_square_grid_transposed_values=(
        lambda q, k, v: torch.einsum(
            "bnxy,byxc->bnc", torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid(), v
        ),
        normal((2, 5, 4), (2, 2, 2, 4), (2, 2, 2, 3)),
    ),
    one_dim_of_the_grid_is_summed=(
        lambda q, k, v: torch.einsum(
            "bnxy,bxyc->bnxc", torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid(), v
        ),
        normal((2, 5, 4), (2, 2, 2, 4), (2, 2, 2, 3)),
    ),
    einsum_with_mask_operand=(
        lambda q, k, v, w: torch.einsum(
            "bhij,ij,bhjc->bhic", torch.einsum("bhid,bhjd->bhij", q, k).relu(), w, v
        ),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3), (5, 7)),
    ),
    einsum_of_four=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,ij,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3), (5, 7)),
    ),
    window_masks_per_window=(
        lambda q, k, v, mask: (
            (q @ k.mT).view(4, 2, 4, 4).masked_fill(mask, -INF).view(8, 4, 4).sigmoid() @ v
        ),
        plus(normal((8, 4, 4), (8, 4, 4), (8, 4, 4)), lambda: (torch.rand(2, 4, 4) > 0.5,)),
    ),
)


@case(plus(square(), normal((2, 11, 4))))
def relative_by_skewing(q, k, v, e):
    r = q @ e.mT  # [2, 2, 6, 11]
    r = F.pad(r, (0, 1)).flatten(2)
    r = F.pad(r, (0, 5)).view(2, 2, 7, 11)[:, :, :6, 5:]
    return F.silu(q @ k.mT + r) @ v


@case(plus(square(), normal((2, 11, 4))))
def relative_by_as_strided(q, k, v, e):
    r = (q @ e.mT).contiguous()
    r = r.as_strided((2, 2, 6, 6), (132, 66, 10, 1), 5)
    return F.silu(q @ k.mT + r) @ v


@case(plus(square(), normal((6, 6, 4))))
def relative_values_shaw(q, k, v, e):
    w = F.silu(q @ k.mT)
    return w @ v + torch.einsum("bhij,ijd->bhid", w, e)
