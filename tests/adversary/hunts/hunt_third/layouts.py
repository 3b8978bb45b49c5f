"""Layouts: broadcasting, sizes of one and zero, views, transposed and sliced results."""

import torch
import torch.nn.functional as F

from ..rows import Programs, normal, nothing, of_scores, qkv, randn, scored, square, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (1, 1, 7)))
def baddbmm_beta_zero(q, k, v, bias):
    bias = bias * float("nan")
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.transpose(1, 2), beta=0)), v)


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3)))
def baddbmm_of_itself(q, k, v):
    s = torch.bmm(q, k.transpose(1, 2))
    s = torch.baddbmm(s, q, k.transpose(1, 2), beta=2)
    return torch.bmm(s.relu(), v)


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3)))
def baddbmm_inplace(q, k, v):
    s = torch.zeros(2, 5, 7, dtype=q.dtype)
    s.baddbmm_(q, k.transpose(1, 2))
    return torch.bmm(s.relu(), v)


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3)))
def baddbmm_output_inplace(q, k, v):
    out = torch.ones(2, 5, 3, dtype=q.dtype)
    out.baddbmm_(torch.bmm(q, k.transpose(1, 2)).relu(), v)
    return out


table(
    normal((2, 5, 4), (2, 7, 4), (2, 7, 3)),
    bmm_chain=lambda q, k, v: torch.bmm(F.silu(torch.bmm(q, k.transpose(1, 2))), v),
    inner_products=lambda q, k, v: torch.inner(torch.inner(q[1], k[1]).sigmoid(), v[1].mT),
    tensordot_pair=lambda q, k, v: torch.tensordot(
        F.relu(torch.tensordot(q[0], k[0], dims=([1], [1]))), v[0], dims=1
    ),
    tensordot_over_all=lambda q, k, v: torch.tensordot(
        F.relu(torch.tensordot(q, k, dims=([2], [2]))), v, dims=([2, 3], [0, 1])
    ),
    tensordot_cross_batch=lambda q, k, v: torch.tensordot(
        F.relu(torch.tensordot(q, k, dims=([2], [2]))), v[1], dims=([3], [0])
    ),
    outer_batch_by_unsqueeze=lambda q, k, v: F.relu(q[:, None] @ k[None].mT) @ v[None],
    outer_batch_v_of_query=lambda q, k, v: F.relu(q[:, None] @ k[None].mT) @ v[:, None],
    v_channels_from_scores_size=scored(lambda s, v: s.relu() @ v / s.shape[-1] + s.size(1)),
)


@case(normal((2, 12, 8)))
def unfolded_windows(x):
    w = x.unfold(1, 4, 2)  # [2, 5, 8, 4]
    q, k, v = w.mT, w.mT, w.mT
    return F.relu(q @ k.mT) @ v


@case(normal((2, 12, 8)))
def blocked_local(x):
    w = x.view(2, 3, 4, 8)
    prev = F.pad(w, (0, 0, 0, 0, 1, 0))[:, :-1]
    k = torch.cat([prev, w], 2)
    s = F.relu(w @ k.mT)
    i = torch.arange(4)[:, None] + 4
    s = s * (torch.arange(8)[None] <= i)
    return (s @ k).reshape(2, 12, 8)


@case(normal((2, 6, 24)))
def qkv_chunk_heads(x):
    q, k, v = x.view(2, 6, 2, 12).permute(0, 2, 1, 3).chunk(3, -1)
    return (F.silu(q @ k.mT) @ v).transpose(1, 2).reshape(2, 6, 8)


@case(normal((2, 6, 24)))
def qkv_unbind(x):
    q, k, v = x.view(2, 6, 3, 2, 4).unbind(2)
    s = torch.einsum("bihd,bjhd->bhij", q, k)
    return torch.einsum("bhij,bjhd->bihd", F.silu(s) / 6, v).flatten(2)


table(
    normal((2, 6, 6)),
    everything_is_one_square=lambda x: F.silu(x @ x) @ x,
    everything_is_one_transposed=lambda x: x.mT @ F.silu(x.mT @ x.mT),
    x_is_the_bias=lambda x: F.silu(x @ x.mT + x) @ x,
    x_and_its_transpose_are_masks=lambda x: (F.silu(x @ x.mT + x * x.mT) * x.mT) @ x,
)


table(
    nothing,
    of=of_scores,
    only_v_has_batch=(F.relu, normal((1, 1, 5, 4), (1, 1, 7, 4), (2, 3, 7, 3))),
    v_is_shared_2d=(F.relu, normal((2, 3, 5, 4), (2, 3, 7, 4), (7, 3))),
    value_vector_matmul=(F.silu, normal((2, 5, 4), (2, 7, 4), 7)),
    all_channels_one=(F.silu, normal((2, 5, 1), (2, 7, 1), (2, 7, 1))),
    one_by_one=(F.silu, normal((2, 1, 4), (2, 1, 4), (2, 1, 3))),
    one_key=(F.silu, normal((2, 5, 4), (2, 1, 4), (2, 1, 3))),
    no_rows=(F.silu, normal((2, 0, 4), (2, 7, 4), (2, 7, 3))),
    no_keys=(F.silu, normal((2, 5, 4), (2, 0, 4), (2, 0, 3))),
    no_inner=(torch.sigmoid, normal((2, 5, 0), (2, 7, 0), (2, 7, 3))),
    no_channels=(torch.sigmoid, normal((2, 5, 4), (2, 7, 4), (2, 7, 0))),
    no_batch=(torch.sigmoid, normal((0, 5, 4), (0, 7, 4), (0, 7, 3))),
    expanded_query_input=(
        torch.sigmoid,
        lambda: (randn(1, 5, 4).detach().expand(3, 5, 4).requires_grad_(),),
        normal((3, 7, 4), (3, 7, 3)),
    ),
    transposed_weights=(lambda s: F.relu(s).mT, square()),
    keys_flipped_once=(lambda s: F.silu(s).flip(-1), qkv()),
    scores_sliced_rows=(lambda s: F.silu(s)[..., 1:4, :], qkv()),
    scores_rolled=(lambda s: F.silu(s).roll(1, -1), qkv()),
)


table(
    qkv(),
    product_in_three_dims_of_five=lambda q, k, v: (
        F.silu((q[:, :, None] @ k[:, :, None].mT).squeeze(2))[:, :, None] @ v[:, :, None]
    )[:, :, 0],
    movedim_out=lambda q, k, v: (F.silu(q @ k.mT) @ v).movedim(1, -1).flatten(-2),
    result_rows_flipped=lambda q, k, v: (F.silu(q @ k.mT).flip(-1) @ v.flip(-2)).flip(-2),
    scores_sliced=lambda q, k, v: F.silu(q @ k.mT)[..., 1:] @ v[..., 1:, :],
    scores_step_sliced=lambda q, k, v: F.silu(q @ k.mT)[..., ::2] @ v[..., ::2, :],
    cat_of_two_scores=lambda q, k, v: (
        F.silu(torch.cat([q @ k.mT, q @ (2 * k).mT], -1)) @ torch.cat([v, v], -2)
    ),
    cat_of_weights=weighted(F.silu)(lambda w, v: torch.cat([w, w], -1) @ torch.cat([v, v], -2)),
)


table(
    nothing,
    baddbmm_bias=(
        lambda q, k, v, bias: torch.bmm(
            F.silu(torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.5, alpha=2)), v
        ),
        normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (2, 5, 7)),
    ),
    baddbmm_second=(
        lambda q, k, v, res: torch.baddbmm(res, F.silu(torch.bmm(q, k.transpose(1, 2))), v),
        normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (2, 5, 3)),
    ),
    mm_of_squeezed=(
        lambda q, k, v: F.relu(q[0] @ k[0].T) @ v[0],
        normal((1, 5, 4), (1, 7, 4), (1, 7, 3)),
    ),
    value_vector=(
        lambda q, k, v: (F.silu(q @ k.mT) @ v[..., None])[..., 0],
        normal((2, 5, 4), (2, 7, 4), (2, 7)),
    ),
    all_transposed=(
        lambda q, k, v: (torch.sigmoid(q.mT @ k) @ v.mT).mT.contiguous(),
        normal((2, 4, 5), (2, 4, 7), (2, 3, 7)),
    ),
    two_linears=(
        lambda x, w1, w2: F.linear(F.relu(F.linear(x, w1)), w2),
        normal((2, 5, 4), (7, 4), (3, 7)),
    ),
    two_linears_biases=(
        lambda x, w1, b1, w2, b2: F.linear(F.relu(F.linear(x, w1, b1)), w2, b2),
        normal((2, 5, 4), (7, 4), 7, (3, 7), 3),
    ),
    value_on_the_left=(lambda q, k, v: v.mT @ F.relu(q @ k.mT), square()),
    value_on_the_left_transposed=(lambda q, k, v: (v.mT @ F.relu(k @ q.mT)).mT, square()),
    scores_viewed_across=(
        lambda q, k, v: F.relu(q @ k.mT).transpose(1, 2).reshape(2, 6, 12) @ v.reshape(2, 12, 4),
        square(),
    ),
    scores_reinterpreted=(
        lambda q, k, v: F.relu((q @ k.mT).view(2, 6, 36).transpose(1, 2).reshape(2, 6, 6, 6)) @ v,
        square(h=6),
    ),
    batch_of_v_is_rows=(
        lambda q, k, v: torch.einsum("bhij,bijc->bhic", F.relu(q @ k.mT), v),
        square(h=6),
    ),
    query_vector=(
        lambda q, k, v: (F.silu(k @ q)[:, None] @ v)[:, 0],
        normal(4, (2, 7, 4), (2, 7, 3)),
    ),
    as_strided_overlap=(
        lambda x: (
            F.relu(
                x.as_strided((2, 5, 4), (40, 4, 1), 0) @ x.as_strided((2, 6, 4), (40, 2, 1), 3).mT
            )
            @ x.as_strided((2, 6, 3), (40, 1, 1), 1)
        ),
        normal((2, 40)),
    ),
    everything_is_one=(lambda x: F.silu(x @ x.mT) @ x, normal((2, 6, 4))),
    x_in_bias_too=(
        lambda x: F.silu(x @ x.mT + x.sum(-1, keepdim=True) + x.mean(-1)[:, None]) @ x,
        normal((2, 6, 4)),
    ),
    multi_dot=(
        lambda q, k, v: torch.linalg.multi_dot([q[0, 0], k[0, 0].T, v[0, 0]]),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
    ),
    chain_of_three=(
        lambda q, k, v: torch.chain_matmul(q[0, 0], k[0, 0].T, v[0, 0]),
        normal((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
    ),
)
