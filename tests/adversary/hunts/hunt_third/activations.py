"""Activations: kinks, ties, strange constants; at scores that are special values."""

import math

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, ikv, of_scores, randn

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table

ACTIVATIONS = {
    "max_zero_tensor": lambda s: torch.maximum(s, torch.zeros((), dtype=s.dtype)),
    "min_neg_self": lambda s: torch.minimum(s, -s),
    "max_self_self": lambda s: torch.maximum(s, s),
    "fmax_zero": lambda s: torch.fmax(s, torch.zeros_like(s)),
    "clamp_min_over_max": lambda s: s.clamp(1.0, -1.0),
    "clamp_at_kinks": lambda s: s.clamp(-2, 2),
    "clamp_tensor_bounds": lambda s: s.clamp(
        torch.tensor(-2.0, dtype=s.dtype), torch.tensor(2.0, dtype=s.dtype)
    ),
    "clamp_nan": lambda s: s.clamp(min=float("nan")),
    "hardtanh_flipped": lambda s: F.hardtanh(s, -2.0, 2.0) * F.hardtanh(s, 0.0, 1.0),
    "threshold_inf": lambda s: F.threshold(s, 1.0, -20.0),
    "hardshrink_one": lambda s: F.hardshrink(s, 1.0),
    "softshrink_one": lambda s: F.softshrink(s, 1.0),
    "tanhshrink": F.tanhshrink,
    "hardswish_kinks": F.hardswish,
    "hardsigmoid_kinks": F.hardsigmoid,
    "relu6_kinks": F.relu6,
    "elu_negative_alpha": lambda s: F.elu(s, -1.5),
    "celu_two": lambda s: F.celu(s, 2.0),
    "selu_": F.selu,
    "leaky_negative_slope": lambda s: F.leaky_relu(s, -0.5),
    "softplus_threshold": lambda s: F.softplus(s, 2.0, 3.0),
    "mish_": F.mish,
    "logsigmoid_": F.logsigmoid,
    "gelu_tanh_": lambda s: F.gelu(s, approximate="tanh"),
    "softsign_": F.softsign,
    "abs_zero": lambda s: s.abs(),
    "sqrt_relu": lambda s: F.relu(s).sqrt(),
    "rsqrt_abs_eps": lambda s: torch.rsqrt(s.abs() + 1e-3),
    "pow_negative_base_3": lambda s: s**3,
    "pow_half_of_square": lambda s: (s**2) ** 0.5,
    "pow_zero": lambda s: s**0,
    "pow_zero_zero_grad": lambda s: s**0.0 + s**1.0,
    "pow_minus_two": lambda s: (s * s + 1) ** -2,
    "pow_two_s": lambda s: 2**s,
    "pow_half_base": lambda s: 0.5**s,
    "pow_self": lambda s: (s.abs() + 1) ** s,
    "pow_base_one": lambda s: 1.0**s,
    "pow_base_zero": lambda s: 0.0 ** (s.abs()),
    "pow_int_exponent_tensor": lambda s: s ** torch.tensor(2),
    "exp2_": lambda s: torch.exp2(s * 0.1),
    "expm1_": lambda s: torch.expm1(s * 0.1),
    "fmod_": lambda s: torch.fmod(s, 2.0),
    "remainder_": lambda s: torch.remainder(s, 2.0),
    "remainder_negative": lambda s: s % -3,
    "floor_st": lambda s: s + (s.floor() - s).detach(),
    "round_st": lambda s: (s / 3).round() * 3 - s.detach() + s,
    "frac_": lambda s: (s / 3).frac(),
    "trunc_div": lambda s: torch.div(s, 2.0, rounding_mode="trunc"),
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
    "where_gt_scalar": lambda s: torch.where(s > 0, s, -1),
    "where_scalar_scalar": lambda s: torch.where(s > 0, 1.0, 0.0) * s,
    "where_int_scalars": lambda s: torch.where(s > 0, 1, 0) * s,
    "where_nan_branch": lambda s: torch.where(s > 0, s.log(), 0.0),
    "where_inf_safe": lambda s: torch.where(s == 0, 0.0, 1.0 / torch.where(s == 0, 1.0, s)),
    "eq_self_nan": lambda s: torch.where(s == s, s, 7.0),
    "bool_of_s": lambda s: s.bool() * s,
    "int_of_s": lambda s: s.to(torch.int64) * s,
    "int8_of_s": lambda s: s.to(torch.int8) * s,
    "uint8_of_s": lambda s: (s.abs() + 0.5).to(torch.uint8) * s,
    "sum_bool": lambda s: ((s > 0).int() + (s > 1).int() - (s < -1).int()) * s,
    "cmp_chain": lambda s: ((s > -1) & (s <= 2) | (s == 4)).to(s.dtype) * s,
    "xor_not": lambda s: (~((s > 0) ^ (s < 2))).to(s.dtype) * s,
    "gt_self_detach": lambda s: s * (s > s.detach()),
    "ge_bool_compare": lambda s: s * ((s > 0) >= (s > 1)),
    "nan_to_num_all": lambda s: torch.nan_to_num(1.0 / s, nan=1.0, posinf=2.0, neginf=-3.0),
    "nan_to_num_default": lambda s: torch.nan_to_num(s / s),
    "isfinite_mul": lambda s: s * torch.isfinite(1 / s),
    "isposinf": lambda s: s * torch.isposinf(1 / s.abs()).to(s.dtype),
    "inf_times_zero": lambda s: s * float("inf") * 0.0,
    "plus_nan": lambda s: s + float("nan"),
    "neg_inf_fill_sigmoid": lambda s: torch.sigmoid(s.masked_fill(s < 0, float("-inf"))),
    "neg_inf_fill_exp": lambda s: torch.exp(s.masked_fill(s < 0, float("-inf"))),
    "neg_inf_fill_silu": lambda s: F.silu(s.masked_fill(s < 0, float("-inf"))),
    "lerp_half": lambda s: torch.lerp(s, s * s, 0.5),
    "lerp_tensor": lambda s: torch.lerp(s, s * s, s.sigmoid()),
    "addcmul_": lambda s: torch.addcmul(s, s, s, value=0.5),
    "addcdiv_": lambda s: torch.addcdiv(s, s, s * s + 1, value=0.5),
    "rsub_alpha": lambda s: torch.rsub(s, 1.0, alpha=3),
    "sub_alpha": lambda s: torch.sub(s, s * s, alpha=-0.25),
    "add_alpha_int": lambda s: torch.add(s, 2, alpha=3),
    "softcap": lambda s: 5.0 * torch.tanh(s / 5.0),
    "softcap_zero": lambda s: torch.tanh(s / 1e-300) * 1e-300,
    "huge_const": lambda s: F.relu(s) * 1e308 / 1e308,
    "glu_self": lambda s: F.silu(s) * s + s.sigmoid(),
    "detach_gate": lambda s: s.detach().sigmoid() * s,
    "detach_all_but_const": lambda s: s.detach() + 0 * s,
    "double_relu": lambda s: F.relu(s) - F.relu(-s),
    "rational": lambda s: s / (1 + s.abs()),
    "square_square": lambda s: s.square().square(),
    "reciprocal_": lambda s: (s.abs() + 1).reciprocal(),
    "log1p_relu": lambda s: torch.log1p(F.relu(s)),
    "round_decimals": lambda s: torch.round(s, decimals=1) + s,
    "clone_positive": lambda s: +s.clone(),
    "bitwise_low": lambda s: (s.to(torch.int64) & 3) * s,
    "int_floordiv": lambda s: (s.to(torch.int64) // 2) * s,
    "int_mod_neg": lambda s: (s.to(torch.int64) % -3) * s,
    "int_fmod": lambda s: torch.fmod(s.to(torch.int64), 3) * s,
    "int_true_div": lambda s: (s.to(torch.int64) / 3) * s,
    "int_shift": lambda s: (s.to(torch.int64) >> 1) * s,
    "int_square_16": lambda s: (s * 40).to(torch.int16) * (s * 40).to(torch.int16) * s,
    "gradless_sign_only": lambda s: s.sign(),
    "gradless_bool": lambda s: (s > 0).to(s.dtype),
    "signbit": lambda s: s * torch.signbit(s),
    "clip_grad_st": lambda s: s.clamp(-1, 1).detach() - s.detach() + s,
    "prelu_scalar": lambda s: F.prelu(s, torch.tensor([0.25], dtype=s.dtype)),
    "rrelu_eval": lambda s: F.rrelu(s, training=False),
    "dropout_p0": lambda s: F.dropout(F.relu(s), 0.0, True),
    "dropout_eval": lambda s: F.dropout(F.relu(s), 0.5, False),
    "dropout_p1": lambda s: F.dropout(F.relu(s), 1.0, True),
    "alpha_dropout_eval": lambda s: F.alpha_dropout(F.relu(s), 0.5, False),
    "max_of_scalar_where": lambda s: torch.where(s.isnan(), s, torch.where(s > 1, s, 1.0)),
    "type_as_self": lambda s: F.relu(s).type_as(s),
    "float_then_double": lambda s: F.relu(s).float().double(),
    "half_then_back": lambda s: F.relu(s).half().to(s.dtype),
    "bf16_then_back": lambda s: (s * 0.3).bfloat16().to(s.dtype),
    "complex_roundtrip": lambda s: torch.view_as_real(torch.complex(s, s * s)).sum(-1),
    "real_of_complex": lambda s: (s + 1j * s).real,
    "abs_of_complex": lambda s: (s * 1j).abs(),
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
    "silu_by_hand": lambda s: s * torch.sigmoid(s),
    "silu_as_quotient": lambda s: s / (1 + torch.exp(-s)),
    "gelu_by_hand": lambda s: 0.5 * s * (1 + torch.erf(s / math.sqrt(2))),
    "gelu_by_hand_2": lambda s: s * 0.5 * (1 + torch.erf(s * math.sqrt(0.5))),
    "gelu_by_hand_3": lambda s: s * (0.5 * (1 + torch.erf(s * math.sqrt(0.5)))),
    "gelu_tanh_by_hand": lambda s: (
        0.5 * s * (1 + torch.tanh(math.sqrt(2 / math.pi) * (s + 0.044715 * s**3)))
    ),
    "gelu_tanh_by_hand_2": lambda s: (
        0.5 * s * (1 + torch.tanh(math.sqrt(2 / math.pi) * (s + 0.044715 * s * s * s)))
    ),
    "two_scales": lambda s: s * 0.1 * 0.7,
    "two_large_scales": lambda s: s * 1e10 * 1e10,
    "scales_that_cancel": lambda s: s * 1e200 * 1e-200,
    "scales_that_vanish": lambda s: s * 1e-200 * 1e-120,
    "clamp_between_tensors": lambda s: s.clamp(-s.abs(), s.abs()),
    "minimum_of_tensors": lambda s: torch.minimum(s, s * 2) + torch.maximum(s, s * 0.5),
    "where_nan": lambda s: torch.where(s.isnan(), 0.0, s),
    "glu_masked": lambda s: torch.where(s.abs() < 100, F.elu(s), 0.0),
    "glu_masked_2": lambda s: F.hardswish(s).nan_to_num(0.0, 1.0, 2.0),
    "log_sigmoid_exp": lambda s: F.logsigmoid(s).exp(),
    "exp_minus_one": lambda s: torch.exp(s) - 1,
    "sigmoid_twice": lambda s: torch.sigmoid(torch.sigmoid(s) * s),
    "sin_cos": lambda s: torch.sin(s) * torch.cos(s),
    "isnan_float": lambda s: s.isnan().double() + s.isinf().double() * 2,
    "pow_negative": lambda s: s**-1,
    "pow_negative_half": lambda s: s**-0.5,
    "pow_huge": lambda s: s**101,
    "pow_1_5": lambda s: s.abs() ** 1.5,
    "celu_nan": lambda s: F.celu(s, 0.5),
    "rsub_": lambda s: 1 - s,
    "threshold_nan": lambda s: F.threshold(s, 0.1, 5.0),
    "hardtanh_nan": F.hardtanh,
    "prelu_nan": lambda s: F.prelu(s, torch.tensor([0.1], dtype=s.dtype)),
    "lerp_inf": lambda s: torch.lerp(s, -s, 0.7),
    "round_inf": lambda s: torch.round(s) + torch.trunc(s) + torch.ceil(s),
}
IN_FP32 = """
    gelu_tanh_ softplus_threshold logsigmoid_ mish_ elu_negative_alpha hardswish_kinks softcap
    expm1_ pow_negative_base_3 lerp_half neg_inf_fill_silu huge_const rational addcmul_
    nan_to_num_all
""".split()
left_out = {"nan_to_int", "floordiv_op", "heaviside_"}
known = {name: f for name, f in ACTIVATIONS.items() if name not in left_out}
table(special, known | BY_HAND, of=of_scores, prefix="special_")
table(
    special32,
    {f"{name}_32": ACTIVATIONS[name] for name in IN_FP32},
    of=of_scores,
    prefix="special_",
)
