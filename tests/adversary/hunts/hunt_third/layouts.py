"""Layouts: broadcasting, sizes of one and zero, views; parts that are joined again."""

import torch
import torch.nn.functional as F

from ..rows import Programs, ikv, normal, nothing, of_scores, qkv, square

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
def baddbmm_output_inplace(q, k, v):
    out = torch.ones(2, 5, 3, dtype=q.dtype)
    out.baddbmm_(torch.bmm(q, k.transpose(1, 2)).relu(), v)
    return out


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
def qkv_unbind(x):
    q, k, v = x.view(2, 6, 3, 2, 4).unbind(2)
    s = torch.einsum("bihd,bjhd->bhij", q, k)
    return torch.einsum("bhij,bjhd->bihd", F.silu(s) / 6, v).flatten(2)


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
    scores_reinterpreted=(
        lambda q, k, v: F.relu((q @ k.mT).view(2, 6, 36).transpose(1, 2).reshape(2, 6, 6, 6)) @ v,
        square(h=6),
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
    x_and_its_transpose_are_masks=(
        lambda x: (F.silu(x @ x.mT + x * x.mT) * x.mT) @ x,
        normal((2, 6, 6)),
    ),
    cat_of_two_scores=(
        lambda q, k, v: F.silu(torch.cat([q @ k.mT, q @ (2 * k).mT], -1)) @ torch.cat([v, v], -2),
        qkv(),
    ),
)
table(
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
    nested_repeated=lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[0, 1].tanh()]),
            torch.stack([s[0, 0].sigmoid(), s[0, 1].exp()]),
        ]
    ),
    stack_moved=lambda s: torch.stack([s[:, 0].relu(), s[:, 1].sigmoid()], -1).movedim(-1, 1),
    stack_with_constant=lambda s: torch.stack([s[:, 0].relu(), torch.ones_like(s[:, 1])], 1),
    cat_with_constant=lambda s: torch.cat([s[:, :1].relu(), torch.full_like(s[:, :1], 0.5)], 1),
    cat_with_empty=lambda s: torch.cat([s[:, :0], s[:, :1].relu(), s[:, 1:].tanh()], 1),
    cat_of_int_and_float=lambda s: torch.cat([s[:, :1].relu(), (s[:, 1:] > 0).long()], 1),
    hstack_=lambda s: torch.hstack([s[:, :1].relu(), s[:, 1:].tanh()]),
    chunk_three_of_seven=lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh, torch.sigmoid), s.chunk(3, -1))], -1
    ),
    tensor_split=lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh), s.tensor_split([3], -1))], -1
    ),
    narrow_=lambda s: torch.cat([s.narrow(1, 0, 1).relu(), s.narrow(1, -1, 1).tanh()], 1),
    select_negative=lambda s: torch.stack([s.select(1, -2).relu(), s.select(1, -1).tanh()], 1),
    position_in_part=lambda s: torch.cat(
        [s[..., :3] * torch.arange(3), s[..., 3:] * torch.arange(4)], -1
    ),
    tril_of_part=lambda s: torch.cat([s[..., :3].tril(), s[..., 3:].triu()], -1),
    tril_of_head=lambda s: torch.stack([s[:, 0].tril(), s[:, 1].triu(2)], 1),
    select_of_parts=lambda s: (
        torch.cat([s[:, :, :, :3].relu(), s[:, :, :, 3:].relu()], -1)
        .select(1, 0)[:, None]
        .expand(-1, 2, -1, -1)
    ),
)
table(
    nothing,
    of=of_scores,
    prefix="joined_",
    columns_start_before=(
        lambda s: torch.cat([s[..., :4].relu(), s[..., -12:4].sigmoid()], -1),
        ikv(m=8),
    ),
    columns_start_before_second=(
        lambda s: torch.cat([s[..., -12:4].relu(), s[..., 4:].sigmoid()], -1),
        ikv(m=8),
    ),
)
table(
    ikv(),
    of=of_scores,
    prefix="given_joined_",
    bias_per_part=(lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[1]], 1).relu(), normal(2)),
    bias_first_of_three=(
        lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[1]], 1).relu(),
        normal(3),
    ),
    bias_whole_in_each_part=(
        lambda s, a: torch.cat([s[:, :1] + a, s[:, 1:] - a], 1).relu(),
        normal((5, 7)),
    ),
    bias_of_batch_in_head_part=(
        lambda s, a: torch.stack([s[:, 0] + a[:, None, None], s[:, 1] + a[0]], 1).relu(),
        normal(2),
    ),
)
