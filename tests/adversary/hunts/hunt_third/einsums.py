"""Products of several dims and operands, grids of keys; chains of products."""

import torch
import torch.nn.functional as F

from ..rows import Programs, after, normal, nothing, of_scores, qkv, square

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def einsums(first, second, between=F.relu):
    """Both products as einsums, and what is done between them."""
    return lambda q, k, v, *more: torch.einsum(second, between(torch.einsum(first, q, k), *more), v)


SCORES, GRID = "bhid,bhjd->bhij", "bnd,bxyd->bnxy"

table(
    nothing,
    einsum_of_four_swapped_mask=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,ji,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 3), (5, 5)),
    ),
)
table(
    nothing,
    einsum_output_sums_rows=(einsums(SCORES, "bhij,bhjc->bhc"), qkv()),
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


@case(square(n=4))
def one_output_is_a_mask_and_written(q, k, v):
    b = F.relu(q @ k.mT) @ v
    m = b > 0
    b.mul_(2)
    return (F.silu(q @ k.mT) * m) @ b


table(
    square(n=4),
    gate_of_detached_pooled_scores=lambda q, k, v: (
        F.silu(q @ k.mT / ((q.detach() @ k.detach().mT).abs().amax(-1, keepdim=True) + 1)) @ v
    ),
    gram_gate=lambda q, k, v: (F.silu(q @ k.mT) * ((q * k).sum(-1, keepdim=True) > 0)) @ v,
)


table(
    nothing,
    of=of_scores,
    async_assert_on_scores=(
        after(lambda s: torch._assert_async((s == s).all()), F.silu),
        square(n=4),
    ),
)
