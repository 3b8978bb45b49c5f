"""Scores: activations, special values, literals; what reduces or mixes scores."""

import math

import torch
import torch.nn.functional as F

from .rows import (
    D64,
    INF,
    Programs,
    fp32,
    fp64,
    frozen,
    ikv,
    normal,
    nothing,
    of_scores,
    plus,
    qkv,
    randn,
    square,
    values,
)

CASES, MORE = Programs(), Programs()


CASES.table(
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
CASES.table(
    fp64,
    item_scale=lambda q, k, v: F.relu(q @ k.mT * q.detach().abs().max()) @ v,
    std_scale=lambda q, k, v: F.relu(q @ k.mT / q.std()) @ v,
    batched_scale=lambda q, k, v: F.relu(q @ k.mT * q.norm(dim=-1, keepdim=True)) @ v,
)


def naninf():
    q, k, v = frozen()
    q[0, 0, 0, 0] = float("nan")
    k[0, 1, 1, 1] = float("inf")
    v[1, 1, 2, 2] = float("inf")
    v[1, 0, 2, 2] = float("nan")
    return tuple(x.requires_grad_() for x in (q, k, v))


CASES.table(
    naninf,
    of=of_scores,
    nan_to_num=lambda s: torch.nan_to_num(s, posinf=1.0),
    nan_eq_self=lambda s: (s == s).to(D64) + s.detach() * 0,
    nan_fmax=lambda s: torch.fmax(s, torch.zeros((), dtype=D64)),
    nan_minmax=lambda s: torch.minimum(
        torch.maximum(s, torch.zeros((), dtype=D64)), torch.ones((), dtype=D64)
    ),
)


CASES.table(
    fp64,
    of=of_scores,
    bias_neg_inf_exp=lambda s: torch.exp(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
    bias_neg_inf_gelu=lambda s: F.gelu(
        s + torch.zeros(5, 5, dtype=D64).masked_fill(torch.ones(5, 5).triu(1) > 0, float("-inf"))
    ),
)


CASES.table(
    fp32,
    of=of_scores,
    weights_round=torch.round,
    weights_sign_sqrt=lambda s: s.sign() * s.abs().sqrt(),
    weights_nan_to_num=lambda s: torch.nan_to_num(torch.log(s), nan=-1.0),
    weights_prelu=lambda s: F.prelu(s, torch.tensor([0.1, 0.4])),
    weights_prelu_learned=(lambda s, a: F.prelu(s, a), values([0.1, 0.4], grad=True)),
)
CASES.table(
    nothing,
    weights_glu_like=(lambda q, k, v: F.glu(torch.cat([q @ k.mT, k @ q.mT], -1)) @ v, fp32),
)
CASES.table(
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


CASES.table(
    fp64,
    relu_clamp_tensor=lambda q, k, v: (
        (q.round() @ k.round().mT).clamp(torch.zeros(1, dtype=D64), torch.ones(1, dtype=D64)) @ v
    ),
    heaviside=lambda q, k, v: (
        torch.heaviside((q.round() @ k.round().mT).detach(), torch.tensor(0.25, dtype=D64)) @ v
    ),
)


MASK = lambda: (torch.rand(5, 5) > 0.4,)


def outer(f, positions=lambda: torch.arange(5)):
    """relu times a mask, which is `f` of the position of a row and of a column."""

    def weights(s):
        i = positions()
        return F.relu(s) * f(i[:, None], i[None, :])

    return of_scores(weights)


CASES.table(
    fp64,
    positions_float_step=outer(lambda i, j: i * 3 - j <= 0.3, lambda: torch.arange(0, 0.5, 0.1)),
    positions_linspace=outer(torch.ge, lambda: torch.linspace(0, 1, 5)),
    fmod_positions=outer(lambda i, j: torch.fmod(i - j, 3) == 1),
    div_floor_positions=outer(lambda i, j: torch.div(i - j, 2, rounding_mode="floor") == -1),
    div_trunc_positions=outer(lambda i, j: torch.div(i - j, 2, rounding_mode="trunc") == 0),
    shift_positions=outer(lambda i, j: ((i - j) >> 1) == -1),
)
CASES.table(
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
CASES.table(
    nothing,
    vector_query=(
        lambda q, k, v: (torch.sigmoid(q @ k.mT).unsqueeze(-2) @ v).squeeze(-2),
        normal(4, (2, 5, 4), (2, 5, 4)),
    ),
)
CASES.table(
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


# Literals that are NaN or infinite, and casts that are spelled as copies

NAN, BF16, FP32 = float("nan"), torch.bfloat16, torch.float32


CASES.table(
    ikv(),
    of=of_scores,
    power_of_nan=lambda s: torch.pow(NAN, s),
    hardshrink_at_nan=lambda s: F.hardshrink(s, NAN),
    hardtanh_to_nan=lambda s: F.hardtanh(s, -1.0, NAN),
)


def _assigned(s, value):
    s[:] = value
    return s


CASES.table(
    qkv(),
    of=of_scores,
    copy_to_fp32_is_compared=lambda s: (
        (torch.empty_like(s, dtype=FP32).copy_(s).double() == s) * F.silu(s)
    ),
    assigned_to_fp32_is_compared=lambda s: (
        (_assigned(torch.empty_like(s, dtype=FP32), s).double() == s) * F.silu(s)
    ),
    sum_in_fp32_is_compared=lambda s: (
        (torch.zeros_like(s, dtype=FP32).add_(s).double() == s) * F.silu(s)
    ),
    copy_to_truth=lambda s: torch.empty_like(s, dtype=torch.bool).copy_(s) * F.silu(s),
)


CASES.add(
    "factor_of_uint64",
    of_scores(lambda s, count: s * count[:, None]),
    plus(qkv(), values([0, 1, 2**64 - 1, 2**63, 5], dtype=torch.uint64)),
)
CASES.table(
    nothing,
    of=of_scores,
    copy_to_16_bits=(
        lambda s: (torch.empty_like(s).copy_(s.float() * 1.001) == s) * F.silu(s),
        qkv(dtype=BF16),
    ),
    assigned_to_16_bits=(
        lambda s: (_assigned(torch.empty_like(s), s.float() * 1.001) == s) * F.silu(s),
        qkv(dtype=BF16),
    ),
)


def _each(*functions):
    return lambda s: torch.stack([f(x) for f, x in zip(functions, s.unbind(1), strict=True)], 1)


# Found right
MORE.table(
    ikv(),
    {
        f"{name}_{bound}": lambda s, f=f, bound=bound: f(s, bound)
        for name, f in {
            "elu": F.elu,
            "leaky_relu": F.leaky_relu,
            "softplus": F.softplus,
            "hardshrink_": F.hardshrink,
            "threshold": lambda s, bound: F.threshold(s, bound, 2.0),
            "at_least": lambda s, bound: F.silu(s).clamp(min=bound),
            "between": lambda s, bound: s.clamp(-1.0, bound),
            "maximum": lambda s, bound: torch.maximum(s, torch.tensor(bound, dtype=D64)),
            "power": lambda s, bound: s.abs() ** bound,
            "equal": lambda s, bound: torch.where(s == bound, 1.0, F.silu(s)),
        }.items()
        for bound in (NAN, INF, -INF, 0.0)
        if (name, bound) != ("hardshrink_", NAN)
    },
    of=of_scores,
)
MORE.table(
    qkv(),
    of=of_scores,
    power_of_one=(lambda s, b: F.silu(s) * torch.pow(1.0, b), normal((5, 7))),
    zeroth_power=(lambda s, b: F.silu(s) + b**0, normal((5, 7))),
    heads_exchanged=lambda s: torch.stack([F.silu(s[:, 1]), F.gelu(s[:, 0])], 1),
    biases_exchanged=(
        lambda s, b: torch.stack([F.silu(s[0] + b[1]), F.gelu(s[1] + b[0])]),
        normal((2, 5, 7)),
    ),
    unbound_heads=_each(F.silu, F.gelu),
)


# Activations at kinks and at special values

ACTIVATIONS = {
    "clamp_at_kinks": lambda s: s.clamp(-2, 2),
    "clamp_tensor_bounds": lambda s: s.clamp(
        torch.tensor(-2.0, dtype=s.dtype), torch.tensor(2.0, dtype=s.dtype)
    ),
    "gelu_tanh_": lambda s: F.gelu(s, approximate="tanh"),
    "rsqrt_abs_eps": lambda s: torch.rsqrt(s.abs() + 1e-3),
    "pow_two_s": lambda s: 2**s,
    "pow_base_one": lambda s: 1.0**s,
    "pow_int_exponent_tensor": lambda s: s ** torch.tensor(2),
    "expm1_": lambda s: torch.expm1(s * 0.1),
    "fmod_": lambda s: torch.fmod(s, 2.0),
    "remainder_": lambda s: torch.remainder(s, 2.0),
    "remainder_negative": lambda s: s % -3,
    "floor_st": lambda s: s + (s.floor() - s).detach(),
    "frac_": lambda s: (s / 3).frac(),
    "floor_div": lambda s: torch.div(s, 2.0, rounding_mode="floor") + s,
    "sign_times": lambda s: s.sign() * s.abs().sqrt(),
    "sgn_": lambda s: torch.sgn(s) + s,
    "copysign_": lambda s: torch.copysign(s * s, s),
    "hypot_": lambda s: torch.hypot(s, torch.ones_like(s)),
    "logaddexp_": lambda s: torch.logaddexp(s, torch.zeros_like(s)),
    "xlogy_": lambda s: torch.xlogy(s.abs(), s.abs() + 1),
    "logit_": lambda s: torch.logit(torch.sigmoid(s * 0.1)),
    "sinc_": torch.sinc,
    "sinh_": lambda s: torch.sinh(s * 0.1),
    "cosh_": lambda s: torch.cosh(s * 0.1),
    "atan_": torch.atan,
    "asinh_": torch.asinh,
    "erfc_": torch.erfc,
    "where_nan_branch": lambda s: torch.where(s > 0, s.log(), 0.0),
    "uint8_of_s": lambda s: (s.abs() + 0.5).to(torch.uint8) * s,
    "cmp_chain": lambda s: ((s > -1) & (s <= 2) | (s == 4)).to(s.dtype) * s,
    "xor_not": lambda s: (~((s > 0) ^ (s < 2))).to(s.dtype) * s,
    "isfinite_mul": lambda s: s * torch.isfinite(1 / s),
    "isposinf": lambda s: s * torch.isposinf(1 / s.abs()).to(s.dtype),
    "neg_inf_fill_exp": lambda s: torch.exp(s.masked_fill(s < 0, float("-inf"))),
    "lerp_half": lambda s: torch.lerp(s, s * s, 0.5),
    "addcmul_": lambda s: torch.addcmul(s, s, s, value=0.5),
    "rsub_alpha": lambda s: torch.rsub(s, 1.0, alpha=3),
    "add_alpha_int": lambda s: torch.add(s, 2, alpha=3),
    "square_square": lambda s: s.square().square(),
    "reciprocal_": lambda s: (s.abs() + 1).reciprocal(),
    "log1p_relu": lambda s: torch.log1p(F.relu(s)),
    "round_decimals": lambda s: torch.round(s, decimals=1) + s,
    "clone_positive": lambda s: +s.clone(),
    "bitwise_low": lambda s: (s.to(torch.int64) & 3) * s,
    "int_true_div": lambda s: (s.to(torch.int64) / 3) * s,
    "int_shift": lambda s: (s.to(torch.int64) >> 1) * s,
    "signbit": lambda s: s * torch.signbit(s),
    "rrelu_eval": lambda s: F.rrelu(s, training=False),
    "dropout_eval": lambda s: F.dropout(F.relu(s), 0.5, False),
    "alpha_dropout_eval": lambda s: F.alpha_dropout(F.relu(s), 0.5, False),
    "type_as_self": lambda s: F.relu(s).type_as(s),
    "half_then_back": lambda s: F.relu(s).half().to(s.dtype),
    "bf16_then_back": lambda s: (s * 0.3).bfloat16().to(s.dtype),
    "complex_roundtrip": lambda s: torch.view_as_real(torch.complex(s, s * s)).sum(-1),
    "view_dtype": lambda s: (s.detach().view(torch.int64) < 0) * s,
    "polar": lambda s: torch.polar(s.abs(), s).real,
}


MORE.table(ikv(), ACTIVATIONS, of=of_scores, prefix="act_")


SPECIAL = torch.tensor(
    [
        float(x)
        for x in """nan inf -inf 1e200 -1e200 1e-310 -1e-310 0 -0.0 700 -700 1e16 0.5 -0.5 3 -3 88
            20""".split()
    ],
    dtype=D64,
)


def at_scores(values):
    """They are the values."""
    return lambda: (
        values.clone()[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1, dtype=values.dtype).requires_grad_(),
        randn(1, 2, 3, dtype=values.dtype),
    )


special = at_scores(SPECIAL)
special32 = at_scores(SPECIAL.where(SPECIAL.isinf(), SPECIAL.clamp(-1e38, 1e38)).float())
BY_HAND = {
    "gelu_by_hand": lambda s: 0.5 * s * (1 + torch.erf(s / math.sqrt(2))),
    "sin_cos": lambda s: torch.sin(s) * torch.cos(s),
    "isnan_float": lambda s: s.isnan().double() + s.isinf().double() * 2,
    "prelu_nan": lambda s: F.prelu(s, torch.tensor([0.1], dtype=s.dtype)),
    "round_inf": lambda s: torch.round(s) + torch.trunc(s) + torch.ceil(s),
}
IN_FP32 = ("gelu_tanh_", "expm1_", "lerp_half", "addcmul_")
MORE.table(special, ACTIVATIONS | BY_HAND, of=of_scores, prefix="special_")
MORE.table(
    special32,
    {f"{name}_32": ACTIVATIONS[name] for name in IN_FP32},
    of=of_scores,
    prefix="special_",
)
