"""Masks: of flags, of positions in narrow integers, of the scores themselves."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, nothing, plus
from .given import T, fp64, of_scores

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table
MASK = lambda: (torch.rand(5, 5) > 0.4,)


@case(fp64)
def positions_int8_overflow(q, k, v):
    i = torch.arange(5, dtype=torch.int8) * 60
    return (F.relu(q @ T(k)) * ((i[:, None] - i[None, :]) >= 0)) @ v


@case(fp64)
def positions_uint8_difference(q, k, v):
    i = torch.arange(5, dtype=torch.uint8)
    return (F.relu(q @ T(k)) * ((i[:, None] - i[None, :]) < 3)) @ v


@case(fp64)
def positions_half(q, k, v):
    i = torch.arange(2048, 2053).half()
    return (F.relu(q @ T(k)) * (i[:, None] > i[None, :])) @ v


@case(fp64)
def positions_bf16_arange(q, k, v):
    i = torch.arange(256, 261, dtype=torch.bfloat16)
    return (F.relu(q @ T(k)) * (i[:, None] > i[None, :])) @ v


@case(fp64)
def positions_float_step(q, k, v):
    i = torch.arange(0, 0.5, 0.1)
    return (F.relu(q @ T(k)) * (i[:, None] * 3 - i[None, :] <= 0.3)) @ v


@case(fp64)
def positions_linspace(q, k, v):
    i = torch.linspace(0, 1, 5)
    return (F.relu(q @ T(k)) * (i[:, None] >= i[None, :])) @ v


table(
    nothing,
    masked_fill_then_relu_plus1=(
        lambda q, k, v, m: torch.sigmoid((q @ T(k)).masked_fill(~m, float("-inf"))) @ v,
        plus(fp64, MASK),
    ),
    masked_fill_inf_silu=(
        lambda q, k, v, m: F.silu((q @ T(k)).masked_fill(~m, float("-inf"))) @ v,
        plus(fp64, MASK),
    ),
    masked_fill_elu1=(
        lambda q, k, v, m: (F.elu((q @ T(k)).masked_fill(~m, float("-inf"))) + 1) @ v,
        plus(fp64, MASK),
    ),
    triu_of_transposed=(lambda q, k, v: T(torch.triu(F.silu(k @ T(q)))) @ v, fp64),
)


@case(fp64)
def mod_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * ((i[:, None] - i[None, :]) % 2 == 0)) @ v


@case(fp64)
def fmod_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * (torch.fmod(i[:, None] - i[None, :], 3) == 1)) @ v


@case(fp64)
def remainder_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * (torch.remainder(i[:, None] - i[None, :], -3) == -1)) @ v


@case(fp64)
def div_floor_positions(q, k, v):
    i = torch.arange(5)
    return (
        F.relu(q @ T(k)) * (torch.div(i[:, None] - i[None, :], 2, rounding_mode="floor") == -1)
    ) @ v


@case(fp64)
def div_trunc_positions(q, k, v):
    i = torch.arange(5)
    return (
        F.relu(q @ T(k)) * (torch.div(i[:, None] - i[None, :], 2, rounding_mode="trunc") == 0)
    ) @ v


@case(fp64)
def shift_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * (((i[:, None] - i[None, :]) >> 1) == -1)) @ v


@case(fp64)
def bits_positions(q, k, v):
    i = torch.arange(5)
    return (F.relu(q @ T(k)) * ((i[:, None] ^ i[None, :]) & 2)) @ v


@case(fp64)
def lshift_positions(q, k, v):
    i = torch.arange(5, dtype=torch.uint8)
    return (F.relu(q @ T(k)) * ((i[:, None] << 7) + i[None])) @ v


@case(fp64)
def mask_bucketize(q, k, v):
    i = torch.arange(5)
    b = torch.bucketize(i, torch.tensor([1, 3]))
    return (F.relu(q @ T(k)) * (b[:, None] == b[None])) @ v


@case(fp64)
def mask_searchsorted(q, k, v):
    b = torch.searchsorted(torch.tensor([0, 2, 5]), torch.arange(5), right=True)
    return (F.relu(q @ T(k)) * (b[:, None] == b[None])) @ v


table(
    fp64,
    of=of_scores,
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
