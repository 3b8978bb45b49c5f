"""Views, slices, joins, groups of heads, loops; every spelling of a product."""

import torch
import torch.nn.functional as F

from .rows import (
    D64,
    Programs,
    after,
    fp64,
    frozen,
    ikv,
    normal,
    nothing,
    of_scores,
    plus,
    qkv,
    scored,
    square,
    weighted,
)

CASES, MORE = Programs(), Programs()


CASES.table(
    fp64,
    of=of_scores,
    weights_flipped=lambda s: F.relu(s).flip(-1),
    bias_on_flat_scores=lambda s: torch.tanh(s.view(4, 25) + torch.arange(25, dtype=D64) / 10).view(
        2, 2, 5, 5
    ),
)
CASES.table(
    fp64,
    kron_like=lambda q, k, v: (
        F.relu(q @ k.mT).reshape(4, 25) @ v.reshape(4, 20).t().repeat(7, 1)[:25]
    ),
    scores_cat_sink=lambda q, k, v: (
        torch.sigmoid(torch.cat([torch.zeros(2, 2, 5, 1, dtype=D64), q @ k.mT], -1))[..., 1:] @ v
    ),
)


@CASES.case(fp64)
def loop_recurrent_q(q, k, v):
    for _ in range(3):
        q = torch.tanh(q @ k.mT) @ v
    return q


def flat():
    """Without heads: the first of each."""
    return tuple(x[:, 0].detach().clone().requires_grad_() for x in frozen())


def matrices():
    return tuple(x[0, 0].detach().clone().requires_grad_() for x in frozen())


@CASES.case(fp64)
def diff_attention(q, k, v):
    q1, q2 = q.chunk(2, -1)
    k1, k2 = k.chunk(2, -1)
    return (F.relu(q1 @ k1.mT) - 0.3 * F.relu(q2 @ k2.mT)) @ v


CASES.table(
    flat,
    baddbmm=lambda q, k, v: torch.baddbmm(v, F.silu(q @ k.mT), v, beta=0.5, alpha=2),
    baddbmm_scores=lambda q, k, v: (
        F.silu(torch.baddbmm(torch.ones(1, 5, 5, dtype=D64), q, k.mT, beta=0.5, alpha=2)) @ v
    ),
    baddbmm_empty_out=lambda q, k, v: (
        F.silu(torch.baddbmm(torch.empty(2, 5, 5, dtype=D64), q, k.mT, beta=0, alpha=0.125)) @ v
    ),
    addbmm_sum=lambda q, k, v: torch.addbmm(
        torch.ones(5, 4, dtype=D64), F.silu(q @ k.mT), v, beta=2, alpha=0.5
    ),
)
CASES.table(
    fp64,
    product_of_scores=lambda q, k, v: (torch.sigmoid(q @ k.mT) * torch.tanh(k @ q.mT)) @ v,
    scores_plus_scores=lambda q, k, v: F.relu(q @ k.mT + k @ q.mT) @ v,
    linear_attention=lambda q, k, v: F.relu(q) @ (F.relu(k).mT @ v),
    einsum_three=lambda q, k, v: torch.einsum(
        "bhqk,bhkd,bhqd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).relu(), v, q
    ),
    einsum_implicit=lambda q, k, v: torch.einsum(
        "bhqk,bhkd", torch.einsum("bhqd,bhkd->bhqk", q, k).relu(), v
    ),
    inner=lambda q, k, v: torch.inner(torch.inner(q[0, 0], k[0, 0]).relu(), v[0, 0].t()),
    cdist_scores=lambda q, k, v: torch.exp(-torch.cdist(q, k)) @ v,
    chain_matmul=lambda q, k, v: torch.linalg.multi_dot(
        [F.relu(q[0, 0] @ k[0, 0].t()), v[0, 0], k[0, 0].t()]
    ),
    vecdot=lambda q, k, v: torch.linalg.vecdot(
        torch.linalg.vecdot(q.unsqueeze(-2), k.unsqueeze(-3)).relu().unsqueeze(-2),
        v.transpose(-1, -2).unsqueeze(-3),
    ),
    tensordot=lambda q, k, v: torch.tensordot(
        torch.tensordot(q[:, 0], k[0, 0], ([2], [1])).relu(), v[0, 0], 1
    ),
    tensordot_allheads=lambda q, k, v: torch.tensordot(
        torch.tensordot(q, k, ([3], [3])).relu(), v, ([3, 4, 5], [0, 1, 2])
    ),
    bilinear=lambda q, k, v: F.bilinear(q, q, torch.randn(5, 4, 4, dtype=D64)).relu() @ v,
    same_scores_twice=weighted(F.silu)(lambda w, v: (w @ v, w @ (v + 1))),
    value_is_scores=scored(lambda s, v: torch.tanh(s) @ s),
)
CASES.table(
    matrices,
    addmm_bias_row=lambda q, k, v: F.relu(torch.addmm(torch.arange(5.0, dtype=D64), q, k.t())) @ v,
    linear_2d_bias=lambda q, k, v: F.linear(
        F.silu(F.linear(q, k, torch.arange(5.0, dtype=D64))), v.t(), torch.ones(4, dtype=D64)
    ),
    addmv=lambda q, k, v: torch.mv(F.silu(q @ k.t()), v[:, 0]),
)
CASES.table(
    fp64,
    of=of_scores,
    weights_plus_eye=lambda s: F.silu(s) + torch.eye(5, dtype=D64),
)


# Layouts: broadcasting, sizes of one and zero, views; parts that are joined again.


@MORE.case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (1, 1, 7)))
def baddbmm_beta_zero(q, k, v, bias):
    bias = bias * float("nan")
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.transpose(1, 2), beta=0)), v)


@MORE.case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3)))
def baddbmm_output_inplace(q, k, v):
    out = torch.ones(2, 5, 3, dtype=q.dtype)
    out.baddbmm_(torch.bmm(q, k.transpose(1, 2)).relu(), v)
    return out


MORE.table(
    nothing,
    x_in_bias_too=(
        lambda x: F.silu(x @ x.mT + x.sum(-1, keepdim=True) + x.mean(-1)[:, None]) @ x,
        normal((2, 6, 4)),
    ),
    chain_of_three=(
        lambda q, k, v: torch.chain_matmul(q[0, 0], k[0, 0].T, v[0, 0]),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
    ),
    x_and_its_transpose_are_masks=(
        lambda x: (F.silu(x @ x.mT + x * x.mT) * x.mT) @ x,
        normal((2, 6, 6)),
    ),
    cat_of_two_scores=(
        lambda q, k, v: F.silu(torch.cat([q @ k.mT, q @ (2 * k).mT], -1)) @ torch.cat([v, v], -2),
        qkv(),
    ),
)
CASES.table(
    ikv(),
    of=of_scores,
    prefix="joined_",
    start_before_the_beginning=lambda s: torch.cat([s[:, :1].relu(), s[:, -3:1].sigmoid()], 1),
    start_before_the_beginning_both=lambda s: torch.cat(
        [s[:, -4:1].relu(), s[:, -3:1].sigmoid()], 1
    ),
    rows_start_before=lambda s: torch.cat(
        [s[:, :, :2].relu(), s[:, :, -8:3][:, :, -3:].sigmoid()], 2
    ),
)
MORE.table(
    ikv(),
    of=of_scores,
    prefix="joined_",
    stack_moved=lambda s: torch.stack([s[:, 0].relu(), s[:, 1].sigmoid()], -1).movedim(-1, 1),
    hstack_=lambda s: torch.hstack([s[:, :1].relu(), s[:, 1:].tanh()]),
    chunk_three_of_seven=lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh, torch.sigmoid), s.chunk(3, -1))], -1
    ),
    tensor_split=lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh), s.tensor_split([3], -1))], -1
    ),
    select_negative=lambda s: torch.stack([s.select(1, -2).relu(), s.select(1, -1).tanh()], 1),
    position_in_part=lambda s: torch.cat(
        [s[..., :3] * torch.arange(3), s[..., 3:] * torch.arange(4)], -1
    ),
    tril_of_part=lambda s: torch.cat([s[..., :3].tril(), s[..., 3:].triu()], -1),
    select_of_parts=lambda s: (
        torch.cat([s[:, :, :, :3].relu(), s[:, :, :, 3:].relu()], -1)
        .select(1, 0)[:, None]
        .expand(-1, 2, -1, -1)
    ),
)
CASES.table(
    nothing,
    of=of_scores,
    prefix="joined_",
    columns_start_before=(
        lambda s: torch.cat([s[..., :4].relu(), s[..., -12:4].sigmoid()], -1),
        ikv(m=8),
    ),
)


# Products of several dims and operands, grids of keys; chains of products.


def einsums(first, second, between=F.relu):
    """Both products as einsums, and what is done between them."""
    return lambda q, k, v, *more: torch.einsum(second, between(torch.einsum(first, q, k), *more), v)


SCORES, GRID = "bhid,bhjd->bhij", "bnd,bxyd->bnxy"

MORE.table(
    nothing,
    einsum_of_four_swapped_mask=(
        lambda q, k, v, w: torch.einsum("bhid,bhjd,ji,bhjc->bhic", q, k, w, v),
        normal((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 3), (5, 5)),
    ),
)
MORE.table(
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


@MORE.case(square(n=4))
def one_output_is_a_mask_and_written(q, k, v):
    b = F.relu(q @ k.mT) @ v
    m = b > 0
    b.mul_(2)
    return (F.silu(q @ k.mT) * m) @ b


MORE.table(
    square(n=4),
    gate_of_detached_pooled_scores=lambda q, k, v: (
        F.silu(q @ k.mT / ((q.detach() @ k.detach().mT).abs().amax(-1, keepdim=True) + 1)) @ v
    ),
    gram_gate=lambda q, k, v: (F.silu(q @ k.mT) * ((q * k).sum(-1, keepdim=True) > 0)) @ v,
)


MORE.table(
    nothing,
    of=of_scores,
    async_assert_on_scores=(
        after(lambda s: torch._assert_async((s == s).all()), F.silu),
        square(n=4),
    ),
)


# Groups of heads, heads folded into the batch; what is done to query, key and value.

MORE.table(
    nothing,
    of=of_scores,
    bias_adds_a_dim=(
        lambda s, c: F.silu(s + c),
        normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (3, 1, 1, 1)),
    ),
)


@MORE.case(qkv())
def unbind_weights_stack_swapped(q, k, v):
    a, b = F.silu(q @ k.mT).unbind(1)
    return torch.stack([b, a], 1) @ v


MORE.table(
    qkv(),
    of=of_scores,
    many_biases=(
        lambda s, a, b, c, d: F.silu(s * b + a) * c + d,
        normal((2, 1, 5, 7), (1, 2, 1, 7), (5, 1), 7),
    ),
)


MORE.table(
    nothing,
    talking_heads_after=(
        lambda q, k, v, w: torch.einsum("bhij,hg->bgij", F.relu(q @ k.mT), w) @ v,
        plus(qkv(), normal((2, 2))),
    ),
    mask_on_swapped_axes=(
        lambda q, k, v, w: ((q @ k.mT).permute(0, 2, 1, 3) * w).permute(0, 2, 1, 3).relu() @ v,
        plus(square(h=4, n=3), normal((4, 3))),
    ),
    batch_times_heads_interleave_bias=(
        lambda q, k, v, bias: (q @ k.mT + bias.repeat_interleave(2, 0)).relu() @ v,
        normal((6, 5, 4), (6, 7, 4), (6, 7, 3), (3, 5, 7)),
    ),
)


def of_operands(f):
    """The program whose query, key and value are what `f` makes of its arguments."""

    def program(q, k, v):
        q, k, v = f(q, k, v)
        return F.silu(q @ k.mT) @ v

    return program


MORE.table(
    square(n=8),
    of=of_operands,
    prefix="operand_",
    normalised=lambda q, k, v: (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v),
    query_expanded=lambda q, k, v: (q[:, :, :1].expand(2, 2, 8, 4), k, v),
    written_in_place=lambda q, k, v: (
        q.clone().mul_(2),
        k.clone().neg_(),
        v.clone().zero_().add_(v),
    ),
    dropout_p0=lambda q, k, v: (F.dropout(q, 0.0), F.dropout(k, 0.5, training=False), v),
)
