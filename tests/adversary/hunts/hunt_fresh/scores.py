"""Scores: activations, masks, special values, sizes, and what reduces or mixes them."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, nothing, square, values
from .operands import T, fp32, fp64, frozen, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

table(
    fp64,
    of=of_scores,
    cumsum_weights=lambda s: torch.tanh(s).cumsum(-1),
    softmax_over_heads=lambda s: s.softmax(1),
    conv_on_scores=lambda s: F.conv2d(s, torch.ones(2, 2, 1, 1, dtype=D64)).relu(),
    talking_heads=lambda s: torch.einsum("bhqk,hg->bgqk", s, torch.ones(2, 2, dtype=D64)).relu(),
    pool_on_scores=lambda s: F.max_pool2d(s, 3, 1, 1).relu(),
    norm_on_scores=lambda s: F.layer_norm(s, (5,)).relu(),
    scale_from_scores_detached=lambda s: F.relu(s / s.detach().std()),
)
table(
    fp64,
    item_scale=lambda q, k, v: F.relu(q @ T(k) * q.detach().abs().max()) @ v,
    std_scale=lambda q, k, v: F.relu(q @ T(k) / q.std()) @ v,
    batched_scale=lambda q, k, v: F.relu(q @ T(k) * q.norm(dim=-1, keepdim=True)) @ v,
)


def naninf():
    q, k, v = frozen()
    q[0, 0, 0, 0] = float("nan")
    k[0, 1, 1, 1] = float("inf")
    v[1, 1, 2, 2] = float("inf")
    v[1, 0, 2, 2] = float("nan")
    return tuple(x.requires_grad_() for x in (q, k, v))


table(
    naninf,
    of=of_scores,
    nan_to_num=lambda s: torch.nan_to_num(s, posinf=1.0),
    nan_eq_self=lambda s: (s == s).to(D64) + s.detach() * 0,
    nan_fmax=lambda s: torch.fmax(s, torch.zeros((), dtype=D64)),
    nan_minmax=lambda s: torch.minimum(
        torch.maximum(s, torch.zeros((), dtype=D64)), torch.ones((), dtype=D64)
    ),
)


table(
    fp64,
    of=of_scores,
    bias_neg_inf_exp=lambda s: torch.exp(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
    bias_neg_inf_gelu=lambda s: F.gelu(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
)


table(
    fp32,
    of=of_scores,
    weights_round=torch.round,
    weights_sign_sqrt=lambda s: s.sign() * s.abs().sqrt(),
    weights_nan_to_num=lambda s: torch.nan_to_num(torch.log(s), nan=-1.0),
    weights_prelu=lambda s: F.prelu(s, torch.tensor([0.1, 0.4])),
    weights_prelu_learned=(lambda s, a: F.prelu(s, a), values([0.1, 0.4], grad=True)),
)
table(
    nothing,
    weights_glu_like=(lambda q, k, v: F.glu(torch.cat([q @ T(k), k @ T(q)], -1)) @ v, fp32),
)
table(
    fp64,
    of=of_scores,
    weights_pow_zero=lambda s: F.relu(s) ** 0,
    hypot=lambda s: torch.hypot(s, torch.ones((), dtype=D64)),
    atan2=lambda s: torch.atan2(s, s + 1),
    lerp=lambda s: torch.lerp(s, s.tanh(), 0.3),
    addcmul=lambda s: torch.addcmul(s, s, s.tanh(), value=0.3),
    add_alpha=lambda s: torch.add(s, s.tanh(), alpha=-2),
    rsub=lambda s: torch.rsub(s, 1, alpha=3).relu(),
    sinc_frac=lambda s: torch.sinc(s).frac(),
)


table(
    fp64,
    relu_clamp_tensor=lambda q, k, v: (
        (q.round() @ T(k.round())).clamp(torch.zeros(1, dtype=D64), torch.ones(1, dtype=D64)) @ v
    ),
    heaviside=lambda q, k, v: (
        torch.heaviside((q.round() @ T(k.round())).detach(), torch.tensor(0.25, dtype=D64)) @ v
    ),
)


MASK = lambda: (torch.rand(5, 5) > 0.4,)


def outer(f, positions=lambda: torch.arange(5)):
    """relu times a mask, which is `f` of the position of a row and of a column."""

    def weights(s):
        i = positions()
        return F.relu(s) * f(i[:, None], i[None, :])

    return of_scores(weights)


table(
    fp64,
    positions_float_step=outer(lambda i, j: i * 3 - j <= 0.3, lambda: torch.arange(0, 0.5, 0.1)),
    positions_linspace=outer(torch.ge, lambda: torch.linspace(0, 1, 5)),
    fmod_positions=outer(lambda i, j: torch.fmod(i - j, 3) == 1),
    div_floor_positions=outer(lambda i, j: torch.div(i - j, 2, rounding_mode="floor") == -1),
    div_trunc_positions=outer(lambda i, j: torch.div(i - j, 2, rounding_mode="trunc") == 0),
    shift_positions=outer(lambda i, j: ((i - j) >> 1) == -1),
)
table(
    fp64,
    of=of_scores,
    masked_fill_elu1=(lambda s, m: F.elu(s.masked_fill(~m, float("-inf"))) + 1, MASK),
    mask_where_nan=(lambda s, m: torch.where(m, torch.sqrt(s), 0.0), MASK),
    mask_where_log=(lambda s, m: torch.where(s > 0, torch.log(s), torch.zeros_like(s)), MASK),
    mask_add_int=(lambda s, m: torch.sigmoid(s + m.to(torch.int64) * -100), MASK),
    max_subtracted_detached=lambda s: torch.exp(s - s.amax(-1, keepdim=True).detach()),
    mask_flip=lambda s: F.relu(s) * torch.flip(torch.ones(5, 5).tril(), (1,)),
    mask_cumsum=lambda s: F.relu(s) * (torch.ones(5, 5).cumsum(-1) > torch.ones(5, 5).cumsum(-2)),
    mask_one_hot=lambda s: F.relu(s) * F.one_hot(torch.tensor([0, 2, 1, 4, 3]), 5),
    mask_scatter=lambda s: (
        F.relu(s)
        * torch.zeros(5, 5, dtype=D64).scatter(1, torch.tensor([[0], [1], [1], [4], [2]]), 1.0)
    ),
    mask_topk_detached=lambda s: F.relu(s) * (s >= s.detach().topk(2, -1).values[..., -1:]),
)
table(
    nothing,
    vector_query=(
        lambda q, k, v: (torch.sigmoid(q @ T(k)).unsqueeze(-2) @ v).squeeze(-2),
        normal(4, (2, 5, 4), (2, 5, 4)),
    ),
)
table(
    nothing,
    of=of_scores,
    empty_depth=(torch.sigmoid, normal((2, 2, 5, 0), (2, 2, 3, 0), (2, 2, 3, 4))),
    empty_value=(torch.sigmoid, normal((2, 2, 5, 4), (2, 2, 3, 4), (2, 2, 3, 0))),
    one_token=(torch.sigmoid, square(n=1)),
    one_query_bias_broadcasts_rows=(
        lambda s: torch.sigmoid(s + torch.arange(3, dtype=D64)[:, None]),
        normal((2, 2, 1, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
)
