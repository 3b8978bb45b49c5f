"""Views, slices, joins, groups of heads and loops."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, nothing
from .given import T, fp64, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    fp64,
    of=of_scores,
    reshape_mixes=lambda s: F.relu(s).reshape(2, 2, 5, 5).permute(0, 1, 3, 2).reshape(2, 2, 5, 5),
    view_heads_wrong=lambda s: F.relu(s.permute(1, 0, 2, 3).reshape(2, 2, 5, 5)),
    weights_flipped=lambda s: F.relu(s).flip(-1),
    weights_rolled=lambda s: F.relu(s).roll(1, -1),
    weights_through_view_and_back=lambda s: torch.tanh(s.view(4, 25)).view(2, 2, 5, 5),
    weights_square_reshape=lambda s: torch.tanh(s.view(2, 2, 25)).view(2, 2, 5, 5).mT,
    bias_on_flat_scores=lambda s: torch.tanh(s.view(4, 25) + torch.arange(25, dtype=D64) / 10).view(
        2, 2, 5, 5
    ),
    bias_on_transposed_scores=lambda s: torch.tanh(s.mT + torch.arange(5, dtype=D64)[:, None]).mT,
    bias_on_permuted_heads=lambda s: torch.tanh(
        s.permute(0, 2, 3, 1) + torch.arange(2, dtype=D64)
    ).permute(0, 3, 1, 2),
    bias_swapped_batch_head=lambda s: torch.tanh(
        s.transpose(0, 1) + torch.arange(2, dtype=D64)[:, None, None]
    ).transpose(0, 1),
    bias_swapped_not_back=lambda s: torch.tanh(
        s.transpose(0, 1) + torch.arange(2, dtype=D64)[:, None, None]
    ),
)


table(
    fp64,
    kron_like=lambda q, k, v: (
        F.relu(q @ T(k)).reshape(4, 25) @ v.reshape(4, 20).t().repeat(7, 1)[:25]
    ),
    reshape_heads_mix=lambda q, k, v: F.relu(q @ T(k)).reshape(2, 10, 5) @ v[:, 0],
    weights_sliced=lambda q, k, v: F.relu(q @ T(k))[..., 1:, :-1] @ v[..., 1:, :],
    weights_strided_slice=lambda q, k, v: F.relu(q @ T(k))[..., ::2, ::2] @ v[..., ::2, :],
    weights_padded=lambda q, k, v: (
        F.pad(torch.sigmoid(q @ T(k)), (1, 0)) @ F.pad(v, (0, 0, 1, 0), value=2.0)
    ),
    scores_padded=lambda q, k, v: (
        torch.sigmoid(F.pad(q @ T(k), (1, 0))) @ F.pad(v, (0, 0, 1, 0), value=2.0)
    ),
    memory_tokens=lambda q, k, v: (
        F.relu(q @ T(torch.cat([k, k.mean(-2, keepdim=True)], -2)))
        @ torch.cat([v, torch.zeros_like(v[..., :1, :])], -2)
    ),
    gqa_repeat=lambda q, k, v: (
        F.relu(q @ T(k[:, :1].repeat_interleave(2, 1))) @ v[:, :1].repeat_interleave(2, 1)
    ),
    loop_heads=lambda q, k, v: torch.stack(
        [F.relu(q[:, i] @ T(k[:, i])) @ v[:, i] for i in range(2)], 1
    ),
    scores_cat_sink=lambda q, k, v: (
        torch.sigmoid(torch.cat([torch.zeros(2, 2, 5, 1, dtype=D64), q @ T(k)], -1))[..., 1:] @ v
    ),
)


@case(fp64, of=of_scores)
def rel_shift(s):
    s = F.pad(s, (1, 0)).view(2, 2, 6, 5)[:, :, 1:].view(2, 2, 5, 5)
    return F.relu(s)


@case(fp64)
def index_select_keys(q, k, v):
    i = torch.tensor([4, 0, 0, 2])
    return F.relu(q @ T(k[..., i, :])) @ v[..., i, :]


@case(fp64)
def index_weights(q, k, v):
    i = torch.tensor([4, 0, 0, 2])
    return F.relu(q @ T(k))[..., i] @ v[..., i, :]


@case(fp64)
def boolean_index_keys(q, k, v):
    i = torch.tensor([True, False, True, True, False])
    return F.relu(q @ T(k[..., i, :])) @ v[..., i, :]


@case(normal((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)))
def gqa_expand(q, k, v):
    q = q.view(2, 2, 2, 5, 4)
    return (F.relu(q @ T(k).unsqueeze(2)) @ v.unsqueeze(2).expand(2, 2, 2, 5, 4)).reshape(
        2, 4, 5, 4
    )


@case(normal((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)))
def gqa_transposed_groups(q, k, v):
    q = q.view(2, 2, 2, 5, 4)
    return (F.relu(q @ T(k).unsqueeze(1)) @ v.unsqueeze(1)).reshape(2, 4, 5, 4)


table(
    nothing,
    gqa_tile_vs_interleave=(
        lambda q, k, v: F.relu(q @ T(k.repeat(1, 2, 1, 1))) @ v.repeat_interleave(2, 1),
        normal((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
    gqa_mixed=(
        lambda q, k, v: (
            F.relu(q @ T(k.repeat_interleave(2, 1))).view(2, 2, 2, 5, 5) @ v.unsqueeze(2)
        ).sum(2),
        normal((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
)


@case(fp64)
def loop_chunks_acc(q, k, v):
    o = 0
    for s in (slice(0, 2), slice(2, 5)):
        o = o + F.relu(q @ T(k[..., s, :])) @ v[..., s, :]
    return o


@case(fp64)
def loop_chunks_into(q, k, v):
    o = torch.zeros_like(v)
    for s in (slice(0, 2), slice(2, 5)):
        o[..., s, :] += F.relu(q[..., s, :] @ T(k)) @ v
    return o


@case(fp64)
def loop_recurrent(q, k, v):
    for _ in range(3):
        v = F.silu(q @ T(k)) @ v
    return v


@case(fp64)
def loop_recurrent_q(q, k, v):
    for _ in range(3):
        q = torch.tanh(q @ T(k)) @ v
    return q
