"""Layouts: broadcasting, sizes of one and zero, views; parts that are joined again."""

import torch
import torch.nn.functional as F

from ..rows import Programs, ikv, normal, nothing, of_scores, qkv

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3), (1, 1, 7)))
def baddbmm_beta_zero(q, k, v, bias):
    bias = bias * float("nan")
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.transpose(1, 2), beta=0)), v)


@case(normal((2, 5, 4), (2, 7, 4), (2, 7, 3)))
def baddbmm_output_inplace(q, k, v):
    out = torch.ones(2, 5, 3, dtype=q.dtype)
    out.baddbmm_(torch.bmm(q, k.transpose(1, 2)).relu(), v)
    return out


table(
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
table(
    nothing,
    of=of_scores,
    prefix="joined_",
    columns_start_before=(
        lambda s: torch.cat([s[..., :4].relu(), s[..., -12:4].sigmoid()], -1),
        ikv(m=8),
    ),
)
