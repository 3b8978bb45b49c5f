"""Masks: of flags, of positions in narrow integers, of the scores themselves."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs
from .given import T, fp64, of_scores

PROGRAMS = Programs()
table = PROGRAMS.table
MASK = lambda: (torch.rand(5, 5) > 0.4,)


def outer(f, positions=lambda: torch.arange(5)):
    """relu times a mask, which is `f` of the position of a row and of a column."""

    def weights(s):
        i = positions()
        return F.relu(s) * f(i[:, None], i[None, :])

    return of_scores(weights)


table(
    fp64,
    positions_int8_overflow=outer(
        lambda i, j: i - j >= 0, lambda: torch.arange(5, dtype=torch.int8) * 60
    ),
    positions_uint8_difference=outer(
        lambda i, j: i - j < 3, lambda: torch.arange(5, dtype=torch.uint8)
    ),
    positions_half=outer(torch.gt, lambda: torch.arange(2048, 2053).half()),
    positions_bf16_arange=outer(torch.gt, lambda: torch.arange(256, 261, dtype=torch.bfloat16)),
    positions_float_step=outer(lambda i, j: i * 3 - j <= 0.3, lambda: torch.arange(0, 0.5, 0.1)),
    positions_linspace=outer(torch.ge, lambda: torch.linspace(0, 1, 5)),
    mod_positions=outer(lambda i, j: (i - j) % 2 == 0),
    fmod_positions=outer(lambda i, j: torch.fmod(i - j, 3) == 1),
    remainder_positions=outer(lambda i, j: torch.remainder(i - j, -3) == -1),
    div_floor_positions=outer(lambda i, j: torch.div(i - j, 2, rounding_mode="floor") == -1),
    div_trunc_positions=outer(lambda i, j: torch.div(i - j, 2, rounding_mode="trunc") == 0),
    shift_positions=outer(lambda i, j: ((i - j) >> 1) == -1),
    bits_positions=outer(lambda i, j: (i ^ j) & 2),
    lshift_positions=outer(lambda i, j: (i << 7) + j, lambda: torch.arange(5, dtype=torch.uint8)),
    mask_bucketize=outer(torch.eq, lambda: torch.bucketize(torch.arange(5), torch.tensor([1, 3]))),
    mask_searchsorted=outer(
        torch.eq,
        lambda: torch.searchsorted(torch.tensor([0, 2, 5]), torch.arange(5), right=True),
    ),
    triu_of_transposed=lambda q, k, v: T(torch.triu(F.silu(k @ T(q)))) @ v,
)
table(
    fp64,
    of=of_scores,
    masked_fill_then_relu_plus1=(
        lambda s, m: torch.sigmoid(s.masked_fill(~m, float("-inf"))),
        MASK,
    ),
    masked_fill_inf_silu=(lambda s, m: F.silu(s.masked_fill(~m, float("-inf"))), MASK),
    masked_fill_elu1=(lambda s, m: F.elu(s.masked_fill(~m, float("-inf"))) + 1, MASK),
    mask_where_nan=(lambda s, m: torch.where(m, torch.sqrt(s), 0.0), MASK),
    mask_where_log=(lambda s, m: torch.where(s > 0, torch.log(s), torch.zeros_like(s)), MASK),
    mask_add_int=(lambda s, m: torch.sigmoid(s + m.to(torch.int64) * -100), MASK),
    mask_minus_bool_invert=(lambda s, m: F.relu(s) * (1 - m.to(torch.uint8)), MASK),
    mask_uint8_neg=(lambda s, m: F.relu(s) * (-m.to(torch.uint8)), MASK),
    mask_uint8_minus2=(lambda s, m: F.relu(s) * (m.to(torch.uint8) - 2), MASK),
    mask_uint8_invert=(lambda s, m: F.relu(s) * (~m.to(torch.uint8)), MASK),
    mask_int8_overflow=(
        lambda s, m: F.relu(s) * (m.to(torch.int8) * 100 + m.to(torch.int8) * 100),
        MASK,
    ),
    tril_of_scores_diag=lambda s: F.silu(torch.tril(s, -1)),
    tril_before_sigmoid=lambda s: torch.sigmoid(torch.tril(s)),
    mask_from_scores_threshold=lambda s: s * (s > 0.3),
    mask_from_scores_float=lambda s: torch.exp(-s.abs()) * (s > 0.3).to(torch.int8),
    max_subtracted=lambda s: torch.exp(s - s.amax(-1, keepdim=True)),
    max_subtracted_detached=lambda s: torch.exp(s - s.amax(-1, keepdim=True).detach()),
    mask_roll=lambda s: F.relu(s) * torch.roll(torch.ones(5, 5).tril(), 1, 0),
    mask_flip=lambda s: F.relu(s) * torch.flip(torch.ones(5, 5).tril(), (1,)),
    mask_cumsum=lambda s: F.relu(s) * (torch.ones(5, 5).cumsum(-1) > torch.ones(5, 5).cumsum(-2)),
    mask_one_hot=lambda s: F.relu(s) * F.one_hot(torch.tensor([0, 2, 1, 4, 3]), 5),
    mask_scatter=lambda s: (
        F.relu(s)
        * torch.zeros(5, 5, dtype=D64).scatter(1, torch.tensor([[0], [1], [1], [4], [2]]), 1.0)
    ),
    mask_topk=lambda s: F.relu(s) * (s >= s.topk(2, -1).values[..., -1:]),
    mask_topk_detached=lambda s: F.relu(s) * (s >= s.detach().topk(2, -1).values[..., -1:]),
)
