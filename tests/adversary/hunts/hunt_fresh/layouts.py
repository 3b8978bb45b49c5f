"""Views, slices, joins, groups of heads, loops; every spelling of a product."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs
from .operands import T, fp64, frozen, of_scores, scored, weighted

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

table(
    fp64,
    of=of_scores,
    weights_flipped=lambda s: F.relu(s).flip(-1),
    bias_on_flat_scores=lambda s: torch.tanh(s.view(4, 25) + torch.arange(25, dtype=D64) / 10).view(
        2, 2, 5, 5
    ),
)
table(
    fp64,
    kron_like=lambda q, k, v: (
        F.relu(q @ T(k)).reshape(4, 25) @ v.reshape(4, 20).t().repeat(7, 1)[:25]
    ),
    scores_cat_sink=lambda q, k, v: (
        torch.sigmoid(torch.cat([torch.zeros(2, 2, 5, 1, dtype=D64), q @ T(k)], -1))[..., 1:] @ v
    ),
)


@case(fp64)
def loop_recurrent_q(q, k, v):
    for _ in range(3):
        q = torch.tanh(q @ T(k)) @ v
    return q


def flat():
    """Without heads: the first of each."""
    return tuple(x[:, 0].detach().clone().requires_grad_() for x in frozen())


def matrices():
    return tuple(x[0, 0].detach().clone().requires_grad_() for x in frozen())


@case(fp64)
def diff_attention(q, k, v):
    q1, q2 = q.chunk(2, -1)
    k1, k2 = k.chunk(2, -1)
    return (F.relu(q1 @ T(k1)) - 0.3 * F.relu(q2 @ T(k2))) @ v


table(
    flat,
    baddbmm=lambda q, k, v: torch.baddbmm(v, F.silu(q @ T(k)), v, beta=0.5, alpha=2),
    baddbmm_scores=lambda q, k, v: (
        F.silu(torch.baddbmm(torch.ones(1, 5, 5, dtype=D64), q, T(k), beta=0.5, alpha=2)) @ v
    ),
    baddbmm_empty_out=lambda q, k, v: (
        F.silu(torch.baddbmm(torch.empty(2, 5, 5, dtype=D64), q, T(k), beta=0, alpha=0.125)) @ v
    ),
    addbmm_sum=lambda q, k, v: torch.addbmm(
        torch.ones(5, 4, dtype=D64), F.silu(q @ T(k)), v, beta=2, alpha=0.5
    ),
)
table(
    fp64,
    product_of_scores=lambda q, k, v: (torch.sigmoid(q @ T(k)) * torch.tanh(k @ T(q))) @ v,
    scores_plus_scores=lambda q, k, v: F.relu(q @ T(k) + k @ T(q)) @ v,
    linear_attention=lambda q, k, v: F.relu(q) @ (T(F.relu(k)) @ v),
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
table(
    matrices,
    addmm_bias_row=lambda q, k, v: F.relu(torch.addmm(torch.arange(5.0, dtype=D64), q, k.t())) @ v,
    linear_2d_bias=lambda q, k, v: F.linear(
        F.silu(F.linear(q, k, torch.arange(5.0, dtype=D64))), v.t(), torch.ones(4, dtype=D64)
    ),
    addmv=lambda q, k, v: torch.mv(F.silu(q @ k.t()), v[:, 0]),
)
table(
    fp64,
    of=of_scores,
    weights_plus_eye=lambda s: F.silu(s) + torch.eye(5, dtype=D64),
)
