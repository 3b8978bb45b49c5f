"""Activations: kinks, ties, strange constants; at scores that are special values."""

import math

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, ikv, of_scores, randn

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

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


table(ikv(), ACTIVATIONS, of=of_scores, prefix="act_")


SPECIAL = torch.tensor(
    [
        float(x)
        for x in """nan inf -inf 1e200 -1e200 1e-310 -1e-310 0 -0.0 700 -700 1e16 0.5 -0.5 3 -3 88
            20""".split()
    ],
    dtype=D64,
)


def scores(values):
    """They are the values."""
    return lambda: (
        values.clone()[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1, dtype=values.dtype).requires_grad_(),
        randn(1, 2, 3, dtype=values.dtype),
    )


special = scores(SPECIAL)
special32 = scores(SPECIAL.where(SPECIAL.isinf(), SPECIAL.clamp(-1e38, 1e38)).float())
BY_HAND = {
    "gelu_by_hand": lambda s: 0.5 * s * (1 + torch.erf(s / math.sqrt(2))),
    "sin_cos": lambda s: torch.sin(s) * torch.cos(s),
    "isnan_float": lambda s: s.isnan().double() + s.isinf().double() * 2,
    "prelu_nan": lambda s: F.prelu(s, torch.tensor([0.1], dtype=s.dtype)),
    "round_inf": lambda s: torch.round(s) + torch.trunc(s) + torch.ceil(s),
}
IN_FP32 = ("gelu_tanh_", "expm1_", "lerp_half", "addcmul_")
table(special, ACTIVATIONS | BY_HAND, of=of_scores, prefix="special_")
table(
    special32,
    {f"{name}_32": ACTIVATIONS[name] for name in IN_FP32},
    of=of_scores,
    prefix="special_",
)
