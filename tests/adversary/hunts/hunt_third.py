# ruff: noqa: E402, E501, E743, F841, RUF059
"""Third hunt: programs written by somebody who had not seen what was tried before."""

import math

import torch
import torch.nn.functional as F

CASES = []
D64 = torch.float64


SIZES = {}  # other sizes for a second call: {5: 9, 7: 11}


def T(*shape, dtype=D64, grad=True):
    shape = tuple(SIZES.get(n, n) for n in shape)
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def I(*shape, low=-2, high=3, dtype=D64, grad=True):
    """Whole numbers, so that scores tie and meet the kinks."""
    shape = tuple(SIZES.get(n, n) for n in shape)
    return torch.randint(low, high, shape).to(dtype).requires_grad_(grad)


def qkv(b=2, h=2, n=5, m=7, d=4, dtype=D64):
    return lambda: (
        T(b, h, n, d, dtype=dtype),
        T(b, h, m, d, dtype=dtype),
        T(b, h, m, 3, dtype=dtype),
    )


def ikv(b=2, h=2, n=5, m=7, d=4, dtype=D64):
    return lambda: (
        I(b, h, n, d, dtype=dtype),
        I(b, h, m, d, dtype=dtype),
        T(b, h, m, 3, dtype=dtype),
    )


def square(b=2, h=2, n=6, d=4, dtype=D64):
    return lambda: tuple(T(b, h, n, d, dtype=dtype) for _ in range(3))


def case(make, before=None):
    def add(function):
        CASES.append(((function, before) if before else function, make))
        return function

    return add


def plus(make, *more):
    """Arguments of `make` and further ones."""
    return lambda: (*make(), *(f() for f in more))


# 1. Activations: kinks, ties, constants that are strange

ACTS = {
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
    "tanhshrink": lambda s: F.tanhshrink(s),
    "hardswish_kinks": lambda s: F.hardswish(s),
    "hardsigmoid_kinks": lambda s: F.hardsigmoid(s),
    "relu6_kinks": lambda s: F.relu6(s),
    "elu_negative_alpha": lambda s: F.elu(s, -1.5),
    "celu_two": lambda s: F.celu(s, 2.0),
    "selu_": lambda s: F.selu(s),
    "leaky_negative_slope": lambda s: F.leaky_relu(s, -0.5),
    "softplus_threshold": lambda s: F.softplus(s, 2.0, 3.0),
    "mish_": lambda s: F.mish(s),
    "logsigmoid_": lambda s: F.logsigmoid(s),
    "gelu_tanh_": lambda s: F.gelu(s, approximate="tanh"),
    "softsign_": lambda s: F.softsign(s),
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
    "floordiv_op": lambda s: s // 2 + s,
    "sign_times": lambda s: s.sign() * s.abs().sqrt(),
    "sgn_": lambda s: torch.sgn(s) + s,
    "heaviside_": lambda s: torch.heaviside(s, torch.tensor(0.5, dtype=s.dtype)) * s,
    "copysign_": lambda s: torch.copysign(s * s, s),
    "hypot_": lambda s: torch.hypot(s, torch.ones_like(s)),
    "logaddexp_": lambda s: torch.logaddexp(s, torch.zeros_like(s)),
    "xlogy_": lambda s: torch.xlogy(s.abs(), s.abs() + 1),
    "logit_": lambda s: torch.logit(torch.sigmoid(s * 0.1)),
    "sinc_": lambda s: torch.sinc(s),
    "sinh_": lambda s: torch.sinh(s * 0.1),
    "cosh_": lambda s: torch.cosh(s * 0.1),
    "atan_": lambda s: torch.atan(s),
    "asinh_": lambda s: torch.asinh(s),
    "erfc_": lambda s: torch.erfc(s),
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


def _act(name, f):
    def program(q, k, v):
        return f(q @ k.mT) @ v

    program.__name__ = "act_" + name
    return program


for _name, _f in ACTS.items():
    CASES.append((_act(_name, _f), ikv()))


# 2. Layouts: einsum in strange orders, broadcasting, groups, transposed results


@case(qkv())
def einsum_scrambled(q, k, v):
    s = torch.einsum("zhid,zhjd->jzih", q, k)
    return torch.einsum("jzih,zhjc->cihz", F.silu(s), v)


@case(qkv())
def einsum_three(q, k, v):
    return torch.einsum("bhid,bhjd,bhjc->bhic", q, k, v)


@case(qkv())
def einsum_output_sums_rows(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,bhjc->bhc", F.relu(s), v)


@case(qkv())
def einsum_sums_heads(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,bhjc->bic", F.relu(s), v)


@case(square())
def einsum_diagonal_of_scores(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhii,bhic->bhic", F.relu(s), v)


@case(square())
def einsum_contracts_rows(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,bhic->bhjc", F.relu(s), v)


@case(square())
def transposed_weights(q, k, v):
    return F.relu(q @ k.mT).mT @ v


@case(square())
def value_on_the_left(q, k, v):
    return v.mT @ F.relu(q @ k.mT)


@case(square())
def value_on_the_left_transposed(q, k, v):
    return (v.mT @ F.relu(k @ q.mT)).mT


@case(lambda: (T(2, 1, 5, 4), T(1, 3, 7, 4), T(2, 3, 7, 3)))
def heads_of_one(q, k, v):
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(1, 1, 5, 4), T(1, 1, 7, 4), T(2, 3, 7, 3)))
def only_v_has_batch(q, k, v):
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(7, 3)))
def v_is_shared_2d(q, k, v):
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3)))
def gqa_repeat_interleave(q, k, v):
    k, v = (x.repeat_interleave(3, dim=1) for x in (k, v))
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3)))
def gqa_repeat(q, k, v):
    k, v = (x.repeat(1, 3, 1, 1) for x in (k, v))
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3)))
def gqa_expand_mixed(q, k, v):
    k = k[:, :, None].expand(2, 2, 3, 7, 4).reshape(2, 6, 7, 4)
    v = v[:, None].expand(2, 3, 2, 7, 3).reshape(2, 6, 7, 3)
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 3, 7, 3)))
def gqa_different_groups(q, k, v):
    k = k.repeat_interleave(3, 1)
    v = v.repeat_interleave(2, 1)
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3)))
def gqa_by_rows(q, k, v):
    q = q.view(2, 2, 3, 5, 4).reshape(2, 2, 15, 4)
    s = torch.sigmoid(q @ k.mT)
    return (s @ v).view(2, 2, 3, 5, 3).flatten(1, 2)


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), T(5, 7)))
def gqa_by_rows_with_bias(q, k, v, bias):
    q = q.view(2, 2, 3, 5, 4).reshape(2, 2, 15, 4)
    s = torch.sigmoid((q @ k.mT).view(2, 2, 3, 5, 7) + bias).view(2, 2, 15, 7)
    return (s @ v).view(2, 2, 3, 5, 3).flatten(1, 2)


@case(lambda: (T(2, 6, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3)))
def gqa_by_interleaved_rows_causal(q, k, v):
    q = q.view(2, 2, 3, 5, 4).transpose(2, 3).reshape(2, 2, 15, 4)
    s = torch.sigmoid(q @ k.mT)
    i = torch.arange(15) // 3
    s = s * (torch.arange(7) <= i[:, None])
    return (s @ v).view(2, 2, 5, 3, 3).transpose(2, 3).flatten(1, 2)


@case(square())
def scores_viewed_across(q, k, v):
    s = q @ k.mT
    return F.relu(s).transpose(1, 2).reshape(2, 6, 12) @ v.reshape(2, 12, 4)


@case(square(h=6))
def scores_reinterpreted(q, k, v):
    s = (q @ k.mT).view(2, 6, 36).transpose(1, 2).reshape(2, 6, 6, 6)
    return F.relu(s) @ v


@case(square(h=6))
def heads_swapped_for_rows(q, k, v):
    return F.relu(q @ k.mT).transpose(1, 2) @ v


@case(square(h=6))
def batch_of_v_is_rows(q, k, v):
    s = F.relu(q @ k.mT)
    return torch.einsum("bhij,bijc->bhic", s, v)


@case(square(h=6, n=6, d=6))
def all_sizes_equal(q, k, v):
    return torch.einsum("abcd,abed,bafd->bacf", F.silu(q), k, v)


@case(square(h=6, n=6, d=6))
def einsum_wrong_axis(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,bhcj->bhic", F.relu(s), v)


@case(square(h=6, n=6, d=6))
def einsum_swapped_batch_of_v(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,bjhc->bihc", F.relu(s), v)


@case(square(b=6, h=6, n=6, d=6))
def einsum_v_has_other_batch(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,hbjc->bhic", F.relu(s), v)


@case(square(b=6, h=6, n=6, d=6))
def einsum_cross_keys(q, k, v):
    s = torch.einsum("bhid,bjhd->bhij", q, k)
    return torch.einsum("bhij,bjhc->bihc", F.relu(s), v)


@case(square(b=6, h=6, n=6, d=6))
def einsum_scores_contract_heads(q, k, v):
    s = torch.einsum("bhid,bjhd->bij", q, k)
    return torch.einsum("bij,bhjc->bhic", F.relu(s), v)


@case(square())
def einsum_ellipsis(q, k, v):
    return torch.einsum("...ij,...jc->i...c", torch.einsum("...id,...jd->...ij", q, k).sigmoid(), v)


@case(square())
def einsum_sublists(q, k, v):
    s = torch.einsum(q, [0, 1, 2, 3], k, [0, 1, 4, 3], [0, 1, 2, 4])
    return torch.einsum(F.relu(s), [0, 1, 2, 4], v, [0, 1, 4, 5])


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def bmm_chain(q, k, v):
    return torch.bmm(F.silu(torch.bmm(q, k.transpose(1, 2))), v)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3), T(2, 5, 7)))
def baddbmm_bias(q, k, v, bias):
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.5, alpha=2)), v)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3), T(1, 1, 7)))
def baddbmm_beta_zero(q, k, v, bias):
    bias = bias * float("nan")
    return torch.bmm(F.silu(torch.baddbmm(bias, q, k.transpose(1, 2), beta=0)), v)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3), T(2, 5, 3)))
def baddbmm_second(q, k, v, res):
    return torch.baddbmm(res, F.silu(torch.bmm(q, k.transpose(1, 2))), v)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def baddbmm_of_itself(q, k, v):
    s = torch.bmm(q, k.transpose(1, 2))
    s = torch.baddbmm(s, q, k.transpose(1, 2), beta=2)
    return torch.bmm(s.relu(), v)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def baddbmm_inplace(q, k, v):
    s = torch.zeros(2, 5, 7, dtype=q.dtype)
    s.baddbmm_(q, k.transpose(1, 2))
    return torch.bmm(s.relu(), v)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def baddbmm_output_inplace(q, k, v):
    out = torch.ones(2, 5, 3, dtype=q.dtype)
    out.baddbmm_(torch.bmm(q, k.transpose(1, 2)).relu(), v)
    return out


@case(lambda: (T(1, 5, 4), T(1, 7, 4), T(1, 7, 3)))
def mm_of_squeezed(q, k, v):
    return F.relu(q[0] @ k[0].T) @ v[0]


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def tensordot_pair(q, k, v):
    s = torch.tensordot(q[0], k[0], dims=([1], [1]))
    return torch.tensordot(F.relu(s), v[0], dims=1)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def tensordot_over_all(q, k, v):
    s = torch.tensordot(q, k, dims=([2], [2]))
    return torch.tensordot(F.relu(s), v, dims=([2, 3], [0, 1]))


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def tensordot_cross_batch(q, k, v):
    s = torch.tensordot(q, k, dims=([2], [2]))
    return torch.tensordot(F.relu(s), v[1], dims=([3], [0]))


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def inner_products(q, k, v):
    return torch.inner(torch.inner(q[1], k[1]).sigmoid(), v[1].mT)


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def outer_batch_by_unsqueeze(q, k, v):
    s = q[:, None] @ k[None].mT
    return F.relu(s) @ v[None]


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def outer_batch_v_of_query(q, k, v):
    s = q[:, None] @ k[None].mT
    return F.relu(s) @ v[:, None]


@case(lambda: (T(4), T(2, 7, 4), T(2, 7, 3)))
def query_vector(q, k, v):
    s = k @ q
    return (F.silu(s)[:, None] @ v)[:, 0]


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7)))
def value_vector(q, k, v):
    return (F.silu(q @ k.mT) @ v[..., None])[..., 0]


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(7)))
def value_vector_matmul(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(lambda: (T(2, 5, 1), T(2, 7, 1), T(2, 7, 1)))
def all_channels_one(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(lambda: (T(2, 1, 4), T(2, 1, 4), T(2, 1, 3)))
def one_by_one(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(lambda: (T(2, 5, 4), T(2, 1, 4), T(2, 1, 3)))
def one_key(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(lambda: (T(2, 0, 4), T(2, 7, 4), T(2, 7, 3)))
def no_rows(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(lambda: (T(2, 5, 4), T(2, 0, 4), T(2, 0, 3)))
def no_keys(q, k, v):
    return F.silu(q @ k.mT) @ v


@case(lambda: (T(2, 5, 0), T(2, 7, 0), T(2, 7, 3)))
def no_inner(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 0)))
def no_channels(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


@case(lambda: (T(0, 5, 4), T(0, 7, 4), T(0, 7, 3)))
def no_batch(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


@case(lambda: (T(1, 5, 4).detach().expand(3, 5, 4).requires_grad_(), T(3, 7, 4), T(3, 7, 3)))
def expanded_query_input(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


@case(lambda: (T(2, 4, 5), T(2, 4, 7), T(2, 3, 7)))
def all_transposed(q, k, v):
    return (torch.sigmoid(q.mT @ k) @ v.mT).mT.contiguous()


@case(lambda: (T(2, 12, 8),))
def unfolded_windows(x):
    w = x.unfold(1, 4, 2)  # [2, 5, 8, 4]
    q, k, v = w.mT, w.mT, w.mT
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 40),))
def as_strided_overlap(x):
    q = x.as_strided((2, 5, 4), (40, 4, 1), 0)
    k = x.as_strided((2, 6, 4), (40, 2, 1), 3)
    v = x.as_strided((2, 6, 3), (40, 1, 1), 1)
    return F.relu(q @ k.mT) @ v


@case(lambda: (T(2, 12, 8),))
def blocked_local(x):
    w = x.view(2, 3, 4, 8)
    prev = F.pad(w, (0, 0, 0, 0, 1, 0))[:, :-1]
    k = torch.cat([prev, w], 2)
    s = F.relu(w @ k.mT)
    i = torch.arange(4)[:, None] + 4
    s = s * (torch.arange(8)[None] <= i)
    return (s @ k).reshape(2, 12, 8)


@case(lambda: (T(2, 6, 24),))
def qkv_chunk_heads(x):
    q, k, v = x.view(2, 6, 2, 12).permute(0, 2, 1, 3).chunk(3, -1)
    return (F.silu(q @ k.mT) @ v).transpose(1, 2).reshape(2, 6, 8)


@case(lambda: (T(2, 6, 24),))
def qkv_unbind(x):
    q, k, v = x.view(2, 6, 3, 2, 4).unbind(2)
    s = torch.einsum("bihd,bjhd->bhij", q, k)
    return torch.einsum("bhij,bjhd->bihd", F.silu(s) / 6, v).flatten(2)


@case(lambda: (T(2, 6, 4),))
def everything_is_one(x):
    return F.silu(x @ x.mT) @ x


@case(lambda: (T(2, 6, 6),))
def everything_is_one_square(x):
    return F.silu(x @ x) @ x


@case(lambda: (T(2, 6, 6),))
def everything_is_one_transposed(x):
    return x.mT @ F.silu(x.mT @ x.mT)


@case(lambda: (T(2, 6, 4),))
def x_in_bias_too(x):
    return F.silu(x @ x.mT + x.sum(-1, keepdim=True) + x.mean(-1)[:, None]) @ x


@case(lambda: (T(2, 6, 6),))
def x_is_the_bias(x):
    return F.silu(x @ x.mT + x) @ x


@case(lambda: (T(2, 6, 6),))
def x_and_its_transpose_are_masks(x):
    return (F.silu(x @ x.mT + x * x.mT) * x.mT) @ x


@case(qkv())
def product_in_three_dims_of_five(q, k, v):
    s = (q[:, :, None] @ k[:, :, None].mT).squeeze(2)
    return (F.silu(s)[:, :, None] @ v[:, :, None])[:, :, 0]


@case(qkv())
def movedim_out(q, k, v):
    return (F.silu(q @ k.mT) @ v).movedim(1, -1).flatten(-2)


@case(qkv())
def result_rows_flipped(q, k, v):
    return (F.silu(q @ k.mT).flip(-1) @ v.flip(-2)).flip(-2)


@case(qkv())
def keys_flipped_once(q, k, v):
    return F.silu(q @ k.mT).flip(-1) @ v


@case(qkv())
def scores_sliced(q, k, v):
    return F.silu(q @ k.mT)[..., 1:] @ v[..., 1:, :]


@case(qkv())
def scores_sliced_rows(q, k, v):
    return F.silu(q @ k.mT)[..., 1:4, :] @ v


@case(qkv())
def scores_step_sliced(q, k, v):
    return F.silu(q @ k.mT)[..., ::2] @ v[..., ::2, :]


@case(qkv())
def scores_rolled(q, k, v):
    return F.silu(q @ k.mT).roll(1, -1) @ v


@case(qkv())
def cat_of_weights(q, k, v):
    w = F.silu(q @ k.mT)
    return torch.cat([w, w], -1) @ torch.cat([v, v], -2)


@case(qkv())
def cat_of_two_scores(q, k, v):
    w = torch.cat([q @ k.mT, q @ (2 * k).mT], -1)
    return F.silu(w) @ torch.cat([v, v], -2)


@case(qkv())
def stack_heads_loop(q, k, v):
    return torch.stack([F.silu(q[:, i] @ k[:, i].mT) @ v[:, i] for i in range(2)], 1)


@case(qkv())
def stack_heads_swapped_v(q, k, v):
    return torch.stack([F.silu(q[:, i] @ k[:, i].mT) @ v[:, 1 - i] for i in range(2)], 1)


@case(qkv())
def stack_scores_then_one_product(q, k, v):
    s = torch.stack([q[:, i] @ k[:, i].mT * (i + 1) for i in range(2)], 1)
    return F.silu(s) @ v


@case(qkv())
def stack_scores_swapped(q, k, v):
    s = torch.stack([q[:, 1 - i] @ k[:, 1 - i].mT for i in range(2)], 1)
    return F.silu(s) @ v


@case(qkv())
def stack_scores_acts(q, k, v):
    acts = [F.silu, torch.relu]
    s = torch.stack([acts[i](q[:, i] @ k[:, i].mT) for i in range(2)], 1)
    return s @ v


@case(qkv())
def unbind_weights_stack_swapped(q, k, v):
    a, b = F.silu(q @ k.mT).unbind(1)
    return torch.stack([b, a], 1) @ v


@case(qkv())
def mean_over_heads_after(q, k, v):
    return (F.silu(q @ k.mT) @ v).mean(1)


@case(qkv())
def mean_over_heads_before(q, k, v):
    return F.silu(q @ k.mT).mean(1, keepdim=True) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), T(2, 2)))
def talking_heads(q, k, v, w):
    s = torch.einsum("bhij,hg->bgij", q @ k.mT, w)
    return F.silu(s) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), T(2, 2)))
def talking_heads_after(q, k, v, w):
    s = torch.einsum("bhij,hg->bgij", F.relu(q @ k.mT), w)
    return s @ v


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3), T(3, 1, 1, 1)))
def bias_adds_a_dim(q, k, v, c):
    return F.silu(q @ k.mT + c) @ v


@case(
    lambda: (
        T(2, 2, 5, 4),
        T(2, 2, 7, 4),
        T(2, 2, 7, 3),
        T(2, 1, 5, 7),
        T(1, 2, 1, 7),
        T(5, 1),
        T(7),
    )
)
def many_biases(q, k, v, a, b, c, d):
    return (F.silu(q @ k.mT * b + a) * c + d) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), T(7, 5)))
def bias_transposed(q, k, v, bias):
    return F.silu(q @ k.mT + bias.T) @ v


@case(lambda: (T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 2, 6, 3), T(6, 6)))
def bias_symmetrised(q, k, v, bias):
    return F.silu(q @ k.mT + bias.T * bias) @ v


@case(
    lambda: (
        T(2, 2, 5, 4),
        T(2, 2, 7, 4),
        T(2, 2, 7, 3),
        T(1, 1).detach().expand(5, 7).requires_grad_(),
    )
)
def bias_stride_zero(q, k, v, bias):
    return F.silu(q @ k.mT + bias) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), T(70)))
def bias_as_strided_overlap(q, k, v, x):
    return F.silu(q @ k.mT + x.as_strided((5, 7), (1, 2), 3)) @ v


@case(lambda: (T(2, 4, 3, 4), T(2, 4, 3, 4), T(2, 4, 3, 4), T(2, 12)))
def mask_on_folded_heads(q, k, v, w):
    s = (q @ k.mT).permute(0, 2, 1, 3)  # b n h m
    s = s.reshape(2, 3, 12) * w[:, None]
    s = s.view(2, 3, 4, 3).permute(0, 2, 1, 3)
    return s.relu() @ v


@case(lambda: (T(2, 4, 3, 4), T(2, 4, 3, 4), T(2, 4, 3, 4), T(4, 3)))
def mask_on_swapped_axes(q, k, v, w):
    s = (q @ k.mT).permute(0, 2, 1, 3) * w
    return s.permute(0, 2, 1, 3).relu() @ v


@case(lambda: (T(2, 3, 3, 4), T(2, 3, 3, 4), T(2, 3, 3, 4), T(3)))
def same_sizes_swapped_axis_bias(q, k, v, w):
    s = (q @ k.mT).transpose(-1, -2) + w
    t = s.transpose(1, 2) * w
    return t.transpose(1, 2).transpose(-1, -2).relu() @ v


@case(lambda: (T(6, 5, 4), T(6, 7, 4), T(6, 7, 3), T(3, 5, 7)))
def batch_times_heads_repeat_bias(q, k, v, bias):
    s = q @ k.mT + bias.repeat(2, 1, 1)
    return s.relu() @ v


@case(lambda: (T(6, 5, 4), T(6, 7, 4), T(6, 7, 3), T(3, 5, 7)))
def batch_times_heads_interleave_bias(q, k, v, bias):
    s = q @ k.mT + bias.repeat_interleave(2, 0)
    return s.relu() @ v


@case(lambda: (T(6, 5, 4), T(6, 7, 4), T(6, 7, 3), T(3, 5, 7)))
def batch_times_heads_view_bias(q, k, v, bias):
    s = (q @ k.mT).view(2, 3, 5, 7) + bias
    return s.view(6, 5, 7).relu() @ v


@case(lambda: (T(2, 5, 4), T(2, 7, 4), T(2, 7, 3)))
def v_channels_from_scores_size(q, k, v):
    s = q @ k.mT
    return s.relu() @ v / s.shape[-1] + s.size(1)


@case(lambda: (T(2, 5, 3, 4), T(2, 7, 3, 4), T(2, 7, 3, 4)))
def heads_last_linear(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.silu(F.linear(q[0, 0], k[0, 0])) @ v[0, 0]


@case(lambda: (T(2, 5, 4), T(7, 4), T(3, 7)))
def two_linears(x, w1, w2):
    return F.linear(F.relu(F.linear(x, w1)), w2)


@case(lambda: (T(2, 5, 4), T(7, 4), T(7), T(3, 7), T(3)))
def two_linears_biases(x, w1, b1, w2, b2):
    return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 4)))
def multi_dot(q, k, v):
    return torch.linalg.multi_dot([q[0, 0], k[0, 0].T, v[0, 0]])


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 4)))
def chain_of_three(q, k, v):
    return torch.chain_matmul(q[0, 0], k[0, 0].T, v[0, 0])


# 3. Writes in place, through views, before, between and after the products


def _written(name, body, make=None):
    def program(q, k, v, *more):
        return body(q, k, v, *more)

    program.__name__ = "write_" + name
    CASES.append((program, make or ikv()))


def _w1(q, k, v):
    s = q @ k.mT
    s.mul_(0.5).add_(1).relu_()
    return s @ v


def _w2(q, k, v):
    s = q @ k.mT
    t = s.view(2, 2, 35)
    t.clamp_(-1, 1)
    return s @ v


def _w3(q, k, v):
    s = q @ k.mT
    s[..., 0] = 0
    return F.relu(s) @ v


def _w4(q, k, v):
    s = q @ k.mT
    s[:, 1] *= 2
    return F.silu(s) @ v


def _w5(q, k, v):
    s = F.silu(q @ k.mT)
    s[s < 0] = 0
    return s @ v


def _w6(q, k, v):
    s = F.silu(q @ k.mT)
    s[..., torch.arange(5)[:, None] < torch.arange(7)] = 0.5
    return s @ v


def _w7(q, k, v):
    s = q @ k.mT
    s.index_put_((torch.tensor([0, 0]),), torch.ones((), dtype=s.dtype), accumulate=True)
    return F.silu(s) @ v


def _w8(q, k, v):
    s = q @ k.mT
    s.tril_(1)
    return torch.sigmoid(s) @ v


def _w9(q, k, v):
    s = q @ k.mT
    s.diagonal(dim1=-2, dim2=-1).zero_()
    return torch.sigmoid(s) @ v


def _w10(q, k, v):
    s = q @ k.mT
    w = torch.sigmoid(s)
    s.zero_()
    return w @ v + s.sum()


def _w11(q, k, v):
    s = q @ k.mT
    w = s * 2
    s.fill_(3.0)
    return (w.relu() + s) @ v


def _w12(q, k, v):
    q2 = q.clone()
    s = q2 @ k.mT
    with torch.no_grad():
        s = s + q2.sum()
    return F.relu(s) @ v


def _w13(q, k, v):
    v2 = v.clone()
    w = F.relu(q @ k.mT)
    v2.mul_(2)
    return w @ v2


def _w14(q, k, v):
    v2 = v * 1
    w = F.relu(q @ k.mT)
    o = w @ v2.clone()
    v2.mul_(2)
    return o + v2.sum()


def _w15(q, k, v):
    buf = torch.zeros(2, 2, 5, 7, dtype=q.dtype)
    buf.copy_(q @ k.mT)
    return F.relu(buf) @ v


def _w16(q, k, v):
    buf = torch.full((2, 2, 5, 8), 2.0, dtype=q.dtype)
    buf[..., :7] = q @ k.mT
    return F.relu(buf) @ F.pad(v, (0, 0, 0, 1), value=1.0)


def _w17(q, k, v):
    buf = torch.full((2, 2, 5, 8), 2.0, dtype=q.dtype)
    buf[..., :7] = q @ k.mT
    return F.relu(buf)[..., :7] @ v


def _w18(q, k, v):
    out = torch.ones(2, 2, 6, 3, dtype=q.dtype)
    out[:, :, :5] = F.relu(q @ k.mT) @ v
    return out


def _w19(q, k, v):
    out = torch.ones(2, 2, 5, 3, dtype=q.dtype)
    out += F.relu(q @ k.mT) @ v
    return out


def _w20(q, k, v):
    o = F.relu(q @ k.mT) @ v
    o.mul_(2)
    o[0] = 0
    return o


def _w21(q, k, v):
    o = F.relu(q @ k.mT) @ v
    p = o.transpose(1, 2)
    p.add_(1)
    return o, p.reshape(2, 5, 6)


def _w22(q, k, v):
    s = q @ k.mT
    m = s > 0
    s.masked_fill_(m, 2.0)
    m.logical_not_()
    return (s * m) @ v


def _w23(q, k, v):
    m = torch.ones(5, 7, dtype=torch.bool)
    m.tril_()
    s = F.silu(q @ k.mT) * m
    m.zero_()
    return s @ v


def _w24(q, k, v):
    m = torch.zeros(5, 7, dtype=q.dtype)
    m[:, :3] = 1
    m[2] = 0.5
    return (F.silu(q @ k.mT) * m) @ v


def _w25(q, k, v):
    s = q @ k.mT
    torch.mul(s, 2, out=s) if not s.requires_grad else s.mul_(2)
    return F.silu(s) @ v


def _w26(q, k, v):
    s = q @ k.mT
    d = s.detach()
    d.mul_(2)
    return F.silu(s) @ v


def _w27(q, k, v):
    s = q @ k.mT
    s.data.mul_(2)
    return F.silu(s) @ v


def _w28(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        s.mul_(2)
    return F.silu(s) @ v


def _w29(q, k, v):
    s = (q @ k.mT).contiguous()
    t = s.reshape(2, 2, 5, 7)
    t.mul_(2)
    return F.silu(s) @ v


def _w30(q, k, v):
    s = q @ k.mT
    t = s.mT.contiguous()
    t.mul_(2)
    return (F.silu(s) + t.mT) @ v


def _w31(q, k, v):
    s = (q @ k.mT).expand(2, 2, 5, 7)
    s.mul_(2)
    return F.silu(s) @ v


def _w32(q, k, v):
    s = q @ k.mT
    s.t_ = None if False else 0
    return F.silu(s) @ v


def _w33(q, k, v):
    s = k @ q.mT
    s.transpose_(-1, -2)
    return F.silu(s) @ v


def _w34(q, k, v):
    s = q @ k.mT
    s.unsqueeze_(0).squeeze_(0)
    return F.silu(s) @ v


def _w35(q, k, v):
    s = F.relu(q @ k.mT, inplace=True)
    F.dropout(s, 0.0, True, True)
    return s @ v


def _w36(q, k, v):
    s = F.silu(q @ k.mT, True)
    return s @ v


def _w37(q, k, v):
    s = F.hardtanh_(q @ k.mT)
    s = F.threshold_(s, 0.5, 0.1)
    return s @ v


def _w38(q, k, v):
    s = q @ k.mT
    a, b = s.unbind(1)
    a.mul_(2) if not a.requires_grad else None
    return F.silu(s) @ v


def _w39(q, k, v):
    s = q @ k.mT
    for i, part in enumerate(s.split(1, dim=1)):
        s[:, i : i + 1] = part * (i + 1)
    return F.silu(s) @ v


def _w40(q, k, v):
    s = q @ k.mT
    s.add_(s)
    s.mul_(s)
    s.sub_(s.clone(), alpha=0.5)
    return s @ v


def _w41(q, k, v):
    s = q @ k.mT
    s += s.mT[..., :5, :].mT.sum() * 0
    return s.relu() @ v


def _w42(q, k, v):
    s = q @ k.mT
    s.copy_(s.relu())
    s.swapaxes(0, 1).mul_(torch.arange(2, dtype=s.dtype)[:, None, None, None] + 1)
    return s @ v


def _w43(q, k, v):
    s = q @ k.mT
    s.index_fill_(-1, torch.tensor([1, 3]), 0.0)
    return s.sigmoid() @ v


def _w44(q, k, v):
    s = (q @ k.mT).relu()
    s.index_add_(-1, torch.tensor([1, 1]), torch.ones(2, 2, 5, 2, dtype=s.dtype))
    return s @ v


def _w45(q, k, v):
    s = (q @ k.mT).relu()
    s.scatter_(-1, torch.zeros(2, 2, 5, 1, dtype=torch.int64), 5.0)
    return s @ v


def _w46(q, k, v):
    x = torch.cat([q, k], 2)
    a, b = x[:, :, :5], x[:, :, 5:]
    s = a @ b.mT
    x.mul_(2)
    return s.relu() @ v


def _w47(q, k, v):
    x = torch.cat([v, v], -1)
    s = (q @ k.mT).relu()
    x[..., 3:].zero_()
    return s @ x[..., :3] + s @ x[..., 3:]


def _w48(q, k, v):
    s = q @ k.mT
    s.sigmoid_()
    s.pow_(2)
    s.neg_()
    s.exp_()
    return s @ v


def _w49(q, k, v):
    s = q @ k.mT
    s[0, 0, 0, 0] = float("nan")
    return torch.nan_to_num_(s.clone(), 3.0).sigmoid() @ v


def _w50(q, k, v):
    s = q @ k.mT
    s.masked_scatter_(s > 0, torch.arange(2 * 2 * 5 * 7, dtype=s.dtype))
    return s.sigmoid() @ v


for _name, _body in sorted(
    (n, f) for n, f in globals().items() if n[:2] == "_w" and n[2:].isdigit()
):
    _written(_name[2:], _body)


@case(plus(ikv(), lambda: torch.zeros(5, 7, dtype=D64)))
def input_bias_is_written_between(q, k, v, bias):
    s = q @ k.mT + bias
    bias.add_(1)
    return F.silu(s) @ v


@case(plus(ikv(), lambda: torch.zeros(5, 7, dtype=D64)))
def input_bias_is_written_before(q, k, v, bias):
    bias.add_(1)
    return F.silu(q @ k.mT + bias) @ v


@case(plus(ikv(), lambda: torch.zeros(5, 7, dtype=D64)))
def input_bias_is_written_after(q, k, v, bias):
    out = F.silu(q @ k.mT + bias) @ v
    bias.add_(1)
    return out


@case(plus(ikv(), lambda: torch.zeros(5, 7, dtype=D64)))
def input_bias_is_written_with_the_scores(q, k, v, bias):
    s = q @ k.mT + bias
    with torch.no_grad():
        bias.lerp_(s.detach().mean((0, 1)), 0.1)
    return F.silu(s) @ v


@case(plus(ikv(), lambda: torch.zeros(5, 3, dtype=D64)))
def output_is_accumulated_in_an_input(q, k, v, acc):
    out = F.silu(q @ k.mT) @ v
    with torch.no_grad():
        acc += out.mean((0, 1))
    return out


@case(plus(ikv(), lambda: torch.zeros(2, 2, 7, 3, dtype=D64)))
def value_cache_is_written(q, k, v, cache):
    cache.copy_(v.detach())
    s = F.silu(q @ k.mT)
    out = s @ cache
    cache.zero_()
    return out


@case(
    lambda: (
        T(2, 2, 1, 4),
        T(2, 2, 1, 4),
        T(2, 2, 1, 3),
        torch.randn(2, 2, 8, 4, dtype=D64),
        torch.randn(2, 2, 8, 3, dtype=D64),
        torch.tensor([3]),
    )
)
def kv_cache_step(q, k, v, ks, vs, at):
    ks = ks.index_copy(2, at, k)
    vs.index_copy_(2, at, v.detach())
    s = q @ ks.mT
    s = s * (torch.arange(8) <= at)
    out = F.silu(s) @ vs
    at.add_(1)
    return out


@case(
    lambda: (
        T(2, 2, 1, 4, grad=False),
        T(2, 2, 1, 4, grad=False),
        torch.randn(2, 2, 8, 4, dtype=D64),
        torch.randn(2, 2, 8, 4, dtype=D64),
        torch.tensor(3),
    )
)
def kv_cache_number(q, k, ks, vs, at):
    at.add_(1)
    mask = torch.arange(8) <= at
    at.add_(1)
    return (F.silu(q @ ks.mT) * mask) @ vs


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3, 5])))
def lengths_written_between(q, k, v, lengths):
    mask = torch.arange(7) < lengths[:, None, None, None]
    s = q @ k.mT
    lengths.fill_(1)
    return (F.silu(s) * mask) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3, 5])))
def lengths_written_after(q, k, v, lengths):
    mask = torch.arange(7) < lengths[:, None, None, None]
    out = (F.silu(q @ k.mT) * mask) @ v
    lengths.fill_(1)
    return out


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3, 5])))
def lengths_clone_written(q, k, v, lengths):
    mine = lengths.clone()
    mine -= 1
    mask = torch.arange(7) < mine[:, None, None, None]
    mine.zero_()
    out = (F.silu(q @ k.mT) * mask) @ v
    return out


def _change_all(*args):
    with torch.no_grad():
        for x in args:
            if isinstance(x, torch.Tensor) and not x.requires_grad:
                x.zero_()


def _change_all_data(*args):
    for x in args:
        if isinstance(x, torch.Tensor):
            x.data.mul_(2)


def _change_values(q, k, v, *_):
    v.data.add_(1)


def _some(*flags):
    def make():
        a = (
            torch.randn(2, 2, 5, 4, dtype=D64),
            torch.randn(2, 2, 7, 4, dtype=D64),
            torch.randn(2, 2, 7, 3, dtype=D64),
            torch.randn(5, 7, dtype=D64),
        )
        return tuple(x.requires_grad_(f) for x, f in zip(a, flags))

    return make


for _index in range(1, 16):
    _flags = tuple(bool(_index >> bit & 1) for bit in range(4))

    def _caller(q, k, v, bias):
        return F.relu(q @ k.mT + bias) @ v

    _caller.__name__ = "caller_zeroes_what_needs_no_gradient_" + "".join("01"[f] for f in _flags)
    CASES.append(((_caller, _change_all), _some(*_flags)))


@case(_some(True, True, True, True), _change_all_data)
def caller_scales_data(q, k, v, bias):
    return F.relu(q @ k.mT + bias) @ v


@case(_some(True, True, True, True), _change_values)
def caller_changes_value_data(q, k, v, bias):
    return F.relu(q @ k.mT + bias) @ v


@case(_some(True, True, False, False), _change_values)
def caller_changes_value_without_gradient(q, k, v, bias):
    return F.relu(q @ k.mT + bias) @ v


@case(_some(False, False, True, True), _change_all)
def caller_changes_view_of_query(q, k, v, bias):
    return F.relu(q.mT.mT @ (k * 1).mT + bias) @ v


@case(_some(False, False, True, True), _change_all)
def caller_changes_cast_query(q, k, v, bias):
    return F.relu(q.float() @ k.float().mT + bias.float()) @ v.float()


@case(_some(False, False, True, False), _change_all)
def caller_changes_mask_of_index(q, k, v, bias):
    m = bias[:, :1] > torch.arange(7) - 3
    return (F.relu(q @ k.mT) * m) @ v


def _change_out(q, k, v, bias):
    q.data.zero_()


@case(_some(False, False, True, False), _change_out)
def query_is_an_output_too(q, k, v, bias):
    p = q * 2
    return F.relu(p @ k.mT) @ v, p


# 4. Gradient modes, hooks, functions of autograd's, checkpoints, higher-order calls


@case(ikv())
def no_grad_scores(q, k, v):
    with torch.no_grad():
        s = q @ k.mT
    return F.silu(s) @ v


@case(ikv())
def no_grad_activation(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        w = F.silu(s)
    return w @ v


@case(ikv())
def no_grad_all(q, k, v):
    with torch.no_grad():
        o = F.silu(q @ k.mT) @ v
    return o * q.sum()


@case(ikv())
def no_grad_all_then_write(q, k, v):
    with torch.no_grad():
        o = (F.silu(q @ k.mT) @ v).transpose(1, 2)
    o.mul_(v.sum())
    return o


@case(ikv())
def no_grad_twin(q, k, v):
    with torch.no_grad():
        g = (q @ k.mT).sigmoid()
    return (q @ k.mT * g) @ v


@case(ikv())
def detached_twin(q, k, v):
    g = (q.detach() @ k.detach().mT).sigmoid()
    return (q @ k.mT * g) @ v


@case(ikv())
def detached_query_twin(q, k, v):
    g = (q.detach() @ k.mT).sigmoid()
    return (q @ k.mT * g) @ v


@case(ikv())
def detached_query_only(q, k, v):
    return (q.detach() @ k.mT).sigmoid() @ v


@case(ikv())
def detached_value_and_scores(q, k, v):
    s = q @ k.mT
    return (s.detach().sigmoid() * s) @ v.detach()


@case(ikv())
def detached_weights(q, k, v):
    return (q @ k.mT).sigmoid().detach() @ v


@case(square())
def query_as_value_detached(q, k, v):
    return (q @ k.mT).sigmoid() @ k.detach() + (q @ q.mT).relu() @ q


@case(ikv())
def twin_written_twice(q, k, v):
    return ((q @ k.mT).sigmoid() * (q @ k.mT)) @ v


@case(ikv())
def twin_transposed(q, k, v):
    return ((k @ q.mT).mT.sigmoid() * (q @ k.mT)) @ v


@case(ikv())
def twin_of_scaled_query(q, k, v):
    return ((2 * q @ k.mT).sigmoid() * (q @ k.mT)) @ v


@case(ikv())
def twin_of_cloned_query(q, k, v):
    return ((q.clone() @ k.mT).sigmoid() * (q @ k.mT)) @ v


@case(ikv())
def twin_after_write(q, k, v):
    p = q.clone()
    a = p @ k.mT
    p.mul_(2)
    return (a.sigmoid() * (p @ k.mT)) @ v


@case(square())
def twin_with_swapped_factors(q, k, v):
    return ((k @ q.mT).sigmoid() * (q @ k.mT)) @ v


@case(ikv(h=2))
def twin_of_flipped_heads(q, k, v):
    return ((q[:, [1, 0]] @ k[:, [1, 0]].mT).sigmoid() * (q @ k.mT)) @ v


@case(ikv())
def set_grad_enabled_inside(q, k, v):
    s = q @ k.mT
    torch._C._set_grad_enabled(False)
    m = s > 0
    torch._C._set_grad_enabled(True)
    return (s * m) @ v


@case(ikv())
def mask_made_without_gradient(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        m = (s > 0).to(s.dtype) * s.sigmoid()
    return (s * m) @ v


@case(ikv())
def enable_grad_inside_no_grad(q, k, v):
    with torch.no_grad():
        with torch.enable_grad():
            s = q @ k.mT
            o = s.relu() @ v
    return o


@case(ikv())
def inference_mode_mask(q, k, v):
    with torch.inference_mode():
        m = torch.ones(5, 7, dtype=q.dtype).tril()
    return (F.relu(q @ k.mT)) @ v


@case(ikv())
def hook_on_scores(q, k, v):
    s = q @ k.mT
    s.register_hook(lambda g: g * 2)
    return F.silu(s) @ v


@case(ikv())
def hook_on_query(q, k, v):
    p = q * 1
    p.register_hook(lambda g: g * 3)
    return F.silu(p @ k.mT) @ v


@case(ikv())
def hook_on_output(q, k, v):
    o = F.silu(q @ k.mT) @ v
    o.register_hook(lambda g: g * 3)
    return o + 1


@case(ikv())
def requires_grad_on_scores(q, k, v):
    s = (q @ k.mT).detach()
    s.requires_grad_()
    return (F.silu(s) @ v), s


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


@case(ikv())
def function_straight_through(q, k, v):
    return _Straight.apply(q @ k.mT) @ v


@case(ikv())
def function_reverses_scores(q, k, v):
    return F.silu(_Reverse.apply(q @ k.mT)) @ v


@case(ikv())
def function_reverses_query(q, k, v):
    return F.silu(_Reverse.apply(q) @ k.mT) @ _Reverse.apply(v)


@case(ikv())
def function_reverses_output(q, k, v):
    return _Reverse.apply(F.silu(q @ k.mT) @ v)


@case(ikv())
def function_makes_mask(q, k, v):
    return (F.silu(q @ k.mT) * _Straight.apply(q.sum(-1, keepdim=True))) @ v


from torch.utils.checkpoint import checkpoint


@case(ikv())
def checkpoint_all(q, k, v):
    return checkpoint(lambda q, k, v: F.silu(q @ k.mT) @ v, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_scores_only(q, k, v):
    s = checkpoint(lambda q, k: F.silu(q @ k.mT), q, k, use_reentrant=False)
    return s @ v


@case(ikv())
def checkpoint_second_only(q, k, v):
    s = q @ k.mT
    return checkpoint(lambda s, v: F.silu(s) @ v, s, v, use_reentrant=False)


@case(ikv())
def checkpoint_with_closure_mask(q, k, v):
    m = torch.arange(5)[:, None] >= torch.arange(7)

    def inner(q, k, v):
        return (F.silu(q @ k.mT) * m) @ v

    return checkpoint(inner, q, k, v, use_reentrant=False) * 2 + checkpoint(
        inner, q, k, v, use_reentrant=False
    )


@case(ikv())
def checkpoint_returns_scores(q, k, v):
    def inner(q, k, v):
        s = q @ k.mT
        return F.silu(s) @ v, s

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_writes_inside(q, k, v):
    def inner(q, k, v):
        s = q @ k.mT
        s.relu_()
        o = s @ v
        o.mul_(2)
        return o

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def vmap_over_batch(q, k, v):
    return torch.vmap(lambda q, k, v: F.silu(q @ k.mT) @ v)(q, k, v)


@case(ikv())
def vmap_over_heads_out(q, k, v):
    return torch.vmap(lambda q, k, v: F.silu(q @ k.mT) @ v, in_dims=1, out_dims=-1)(q, k, v)


@case(lambda: (T(2, 2, 5, 4, grad=False), T(2, 2, 7, 4, grad=False), T(2, 2, 7, 3, grad=False)))
def func_grad(q, k, v):
    return torch.func.grad(lambda q: (F.silu(q @ k.mT) @ v).sum())(q)


@case(lambda: (T(2, 2, 5, 4, grad=False), T(2, 2, 7, 4, grad=False), T(2, 2, 7, 3, grad=False)))
def func_jvp(q, k, v):
    return torch.func.jvp(lambda q: F.silu(q @ k.mT) @ v, (q,), (torch.ones_like(q),))


@case(
    lambda: (
        T(2, 2, 5, 4, grad=False),
        T(2, 2, 7, 4, grad=False),
        T(2, 2, 7, 3, grad=False),
        torch.tensor(True),
    )
)
def cond_activation(q, k, v, flag):
    s = q @ k.mT
    w = torch.cond(flag, lambda s: s.relu(), lambda s: s.sigmoid(), (s,))
    return w @ v


@case(plus(ikv(), lambda: torch.tensor(True)))
def cond_of_attention(q, k, v, flag):
    return torch.cond(
        flag, lambda q, k, v: F.silu(q @ k.mT) @ v, lambda q, k, v: F.relu(q @ k.mT) @ v, (q, k, v)
    )


@case(lambda: (T(2, 5, 4, grad=False), T(2, 7, 4, grad=False), T(2, 7, 4, grad=False)))
def while_loop_of_attention(q, k, v):
    def body(i, x):
        return i + 1, torch.sigmoid(x @ k.mT) @ v

    return torch._higher_order_ops.while_loop(lambda i, x: i < 3, body, (torch.tensor(0), q))


@case(lambda: (T(2, 5, 4, grad=False), T(2, 7, 4, grad=False), T(2, 7, 4, grad=False)))
def map_of_attention(q, k, v):
    from torch._higher_order_ops.map import map as hop_map

    return (
        hop_map(lambda q, k, v: torch.sigmoid(q @ k.mT) @ v, q, k, v)
        if False
        else hop_map(lambda q: torch.sigmoid(q @ k[0].mT) @ v[0], q)
    )


@case(ikv())
def autocast_first_only(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
    return F.silu(s.float()) @ v


@case(ikv())
def autocast_all(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(q @ k.mT) @ v


@case(ikv())
def autocast_disabled_inside(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
        with torch.autocast("cpu", enabled=False):
            w = F.silu(s.float() / 3)
        return w @ v


@case(ikv())
def autocast_second_only(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    s = q @ k.mT
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(s) @ v


@case(plus(ikv(), lambda: T(5, 7, dtype=torch.float32)))
def autocast_with_bias_and_mask(q, k, v, bias):
    q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ k.mT
        s = s + bias
        s = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(), s, float("-inf"))
        return torch.sigmoid(s) @ v


@torch.library.custom_op("hunt_third::relu", mutates_args=())
def _custom(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


_custom.register_fake(lambda x: torch.empty_like(x))
_custom.register_autograd(lambda ctx, g: g * 2, setup_context=lambda ctx, inputs, output: None)


@case(ikv())
def custom_op_between(q, k, v):
    return _custom(q @ k.mT) @ v


@case(ikv())
def custom_op_on_operands(q, k, v):
    return F.silu(_custom(q) @ k.mT) @ _custom(v)


@case(ikv())
def saved_tensor_hooks_around(q, k, v):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x):
        return F.relu(q @ k.mT) @ v


@case(ikv())
def save_on_cpu_around(q, k, v):
    with torch.autograd.graph.save_on_cpu():
        return F.relu(q @ k.mT) @ v


@case(ikv())
def grad_inside(q, k, v):
    s = q @ k.mT
    o = (F.silu(s) @ v).sum()
    return o


@case(ikv())
def scores_returned(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, s


@case(ikv())
def weights_returned(q, k, v):
    w = F.silu(q @ k.mT)
    return w @ v, w.detach()


@case(ikv())
def shape_of_scores_returned(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, s.shape, s.dtype == torch.float64, s.numel(), s.requires_grad


@case(ikv())
def zeros_like_scores_returned(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, torch.zeros_like(s), s.new_ones(3), torch.empty_like(s).shape


@case(ikv())
def entropy_of_weights(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return w @ v, -(w * w.log()).sum()


@case(ikv())
def two_values_one_weight(q, k, v):
    w = torch.sigmoid(q @ k.mT)
    return w @ v + (w @ v.flip(-1)) * 2


@case(ikv())
def is_grad_of_scores_scaled(q, k, v):
    s = q @ k.mT
    s = s * s.detach().sigmoid() / s.detach().abs().clamp_min(1)
    return s @ v


@case(square())
def output_feeds_mask_of_the_next(q, k, v):
    o = torch.sigmoid(q @ k.mT) @ v
    m = o.sum(-1, keepdim=True) > 0
    return (F.relu(q @ k.mT) * m) @ v


@case(square())
def output_feeds_everything(q, k, v):
    for _ in range(3):
        q = torch.sigmoid(q @ k.mT) @ v
        v = torch.tanh(k @ q.mT) @ v
    return q


@case(square())
def scores_from_last_layer(q, k, v):
    s = q @ k.mT
    o = F.relu(s) @ v
    s2 = o @ k.mT + s
    return F.relu(s2) @ v


@case(square(n=4))
def scores_as_values(q, k, v):
    s = q @ k.mT
    return F.relu(s) @ s


@case(square(n=4))
def power_of_weights(q, k, v):
    w = F.relu(q @ k.mT)
    return w @ (w @ v)


@case(square(n=4))
def product_of_scores(q, k, v):
    return F.relu(q @ k.mT) @ F.relu(k @ v.mT)


@case(square(n=4))
def associativity(q, k, v):
    return q @ F.relu(k.mT @ v)


# 5. Masks and biases of positions, lengths and odd integers


def _rows(s):
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None]


def _a8(s, dtype):
    return torch.arange(s.shape[-2], dtype=dtype)[:, None], torch.arange(s.shape[-1], dtype=dtype)[
        None
    ]


def _m(f):
    return lambda s: s.sigmoid() * f(*_rows(s))


INF = float("inf")
MASKS = {
    "uint8_difference": lambda s: s.sigmoid() * (torch.sub(*_a8(s, torch.uint8)) < 3),
    "int8_product": lambda s: (
        s.sigmoid() * ((_a8(s, torch.int8)[0] * 40) * (_a8(s, torch.int8)[1] * 40) > 0)
    ),
    "int16_square": lambda s: s.sigmoid() * ((_a8(s, torch.int16)[0] * 100) ** 2 > 0),
    "int32_square": lambda s: (
        s.sigmoid() * ((_a8(s, torch.int32)[0] * 50000) * (_a8(s, torch.int32)[1] * 50000) >= 0)
    ),
    "cast_wraps": _m(lambda i, j: (i * 100).to(torch.int8) > (j * 50).to(torch.uint8)),
    "cast_of_negative_to_uint8": _m(lambda i, j: (i - j).to(torch.uint8) > 250),
    "int_overflow_64": _m(lambda i, j: (i + 2**62) + (j + 2**62) > 0),
    "int_min_abs": _m(lambda i, j: (i - j - 2**63 + 9).abs() > 0),
    "int_neg_of_min": _m(lambda i, j: -(i * 0 + (-(2**63))) < j),
    "bool_add": lambda s: s.sigmoid() * ((_rows(s)[0] > 2) + (_rows(s)[1] > 3)),
    "bool_mul": lambda s: s.sigmoid() * ((_rows(s)[0] > 2) * (_rows(s)[1] > 3)),
    "bool_times_int": lambda s: s.sigmoid() * ((_rows(s)[0] > 2) * 2 - 1),
    "bool_count": lambda s: (
        s.sigmoid() * (((_rows(s)[0] > 2).int() + (_rows(s)[1] > 3).int()) == 1)
    ),
    "bool_lt": lambda s: s.sigmoid() * ((_rows(s)[0] > 2) < (_rows(s)[1] > 3)),
    "bool_max": lambda s: s.sigmoid() * torch.maximum(_rows(s)[0] > 2, _rows(s)[1] > 3),
    "bool_compare_with_int": lambda s: s.sigmoid() * ((_rows(s)[0] > 2) == _rows(s)[1]),
    "uint8_invert": lambda s: s.sigmoid() * (~((_rows(s)[0] > 2).to(torch.uint8)) > 254),
    "one_minus_bool": lambda s: s.sigmoid() * (1 - (_rows(s)[0] > _rows(s)[1]).long()),
    "one_minus_mask_inf": lambda s: torch.sigmoid(
        s + (1.0 - (_rows(s)[0] > _rows(s)[1]).to(s.dtype)) * -INF
    ),
    "one_minus_mask_1e9": lambda s: torch.sigmoid(
        s + (1.0 - (_rows(s)[0] > _rows(s)[1]).to(s.dtype)) * -1e9
    ),
    "log_mask": lambda s: torch.sigmoid(s + (_rows(s)[0] > _rows(s)[1]).to(s.dtype).log()),
    "divide_by_mask": lambda s: s.sigmoid() / (_rows(s)[0] > _rows(s)[1]),
    "divide_by_count": lambda s: s.sigmoid() / (_rows(s)[0] + 1),
    "divide_by_position": lambda s: s.sigmoid() / (_rows(s)[0]).to(s.dtype),
    "divide_by_position_safe": lambda s: torch.where(
        _rows(s)[0] > 0, s.sigmoid() / _rows(s)[0], 0.0
    ),
    "mask_over_mask": lambda s: (
        s.sigmoid() * ((_rows(s)[0] > 2).to(s.dtype) / (_rows(s)[0] > 2).to(s.dtype))
    ),
    "fmod_ints": _m(lambda i, j: torch.fmod(i - j, 3) == -1),
    "remainder_negative_divisor": _m(lambda i, j: (i - j) % -3 == -1),
    "floordiv_negative_divisor": _m(lambda i, j: (i - j) // -3 >= 0),
    "trunc_negative": _m(lambda i, j: torch.div(i - j, 3, rounding_mode="trunc") == 0),
    "trunc_by_negative": _m(lambda i, j: torch.div(i - j, -3, rounding_mode="trunc") == 0),
    "rshift_negative": _m(lambda i, j: (i - j) >> 1 == -1),
    "lshift_big": _m(lambda i, j: ((i - j) << 30) > 2**31),
    "lshift_40": _m(lambda i, j: ((i - j) << 40) > 2**41),
    "lshift_63": _m(lambda i, j: ((i - j) << 63) < 0),
    "shift_by_tensor": _m(lambda i, j: (i << j) > 9),
    "and_negative": _m(lambda i, j: ((i - j) & 3) == 1),
    "and_not_a_mask": _m(lambda i, j: ((i - j) & 5) == 1),
    "and_minus_two": _m(lambda i, j: ((i - j) & -2) == 2),
    "xor_ints": _m(lambda i, j: (i ^ j) < 4),
    "or_ints": _m(lambda i, j: (i | j) < 6),
    "invert_int": _m(lambda i, j: ~i < -j),
    "int_pow": _m(lambda i, j: (i - j) ** 2 < 5),
    "int_pow_zero": _m(lambda i, j: (i - j) ** 0 == 1),
    "pow_half": lambda s: s.sigmoid() * ((_rows(s)[0].double()) ** 0.5),
    "sqrt_int": lambda s: s.sigmoid() * torch.sqrt(_rows(s)[0]),
    "log_distance_fp32": lambda s: torch.sigmoid(
        s - torch.log1p((_rows(s)[0] - _rows(s)[1]).abs().float())
    ),
    "int_true_division": lambda s: torch.sigmoid(s - (_rows(s)[0] - _rows(s)[1]) / 3),
    "int_times_float_scalar": lambda s: torch.sigmoid(s - (_rows(s)[0] - _rows(s)[1]) * 0.1),
    "tenth_threshold": _m(lambda i, j: (i - j) * 0.1 <= 0.3),
    "tenth_threshold_double": _m(lambda i, j: (i - j).double() * 0.1 <= 0.3),
    "division_threshold": _m(lambda i, j: i / 3 - j / 3 >= 1 / 3),
    "int_clamp_float_bound": _m(lambda i, j: (i - j).clamp(max=2.5) > 2),
    "int_clamp_flipped": _m(lambda i, j: (i - j).clamp(2, -1) == -1),
    "int_where_float": lambda s: s.sigmoid() * torch.where(_rows(s)[0] > _rows(s)[1], 2, 0.5),
    "float_to_int_of_negative": _m(lambda i, j: ((i - j).double() / 2).to(torch.int64) == 0),
    "float_floor": _m(lambda i, j: ((i - j).double() / 2).floor() == -1),
    "round_half_even": _m(lambda i, j: ((i - j).double() / 2).round() == 2),
    "nan_to_int": lambda s: s.sigmoid() * (torch.full_like(s, float("nan")).to(torch.int64) < 0),
    "inf_to_int": lambda s: s.sigmoid() * (torch.full_like(s, INF).to(torch.int64) == 0),
    "full_int_of_float": lambda s: s * torch.full(s.shape, 2, dtype=torch.int64),
    "full_bool_of_float": lambda s: s * torch.full((1,), 0.5, dtype=torch.bool),
    "ones_like_bool": lambda s: s.relu() * torch.ones_like(s, dtype=torch.bool),
    "full_like_fp16_overflow": lambda s: (
        s.clamp(max=1) * torch.full_like(s, 70000.0, dtype=torch.float16).isinf()
    ),
    "arange_down": lambda s: (
        s.sigmoid() * (torch.arange(s.shape[-1] - 1, -1, -1) > torch.arange(s.shape[-2])[:, None])
    ),
    "arange_step": lambda s: (
        s.sigmoid()
        * (torch.arange(0, 2 * s.shape[-1], 2) > torch.arange(1, s.shape[-2] + 1)[:, None])
    ),
    "arange_step_partial": lambda s: s.sigmoid() * (torch.arange(0, 2 * s.shape[-1] - 1, 2) > 5),
    "arange_float_step": lambda s: (
        s.sigmoid() * torch.arange(0, s.shape[-1] / 2, 0.5, dtype=s.dtype)
    ),
    "arange_float": lambda s: s.sigmoid() * torch.arange(float(s.shape[-1])),
    "arange_fp16": lambda s: s.sigmoid() * torch.arange(s.shape[-1], dtype=torch.float16),
    "linspace": lambda s: s.sigmoid() * torch.linspace(0, 1, s.shape[-1], dtype=s.dtype),
    "eye_": lambda s: s.sigmoid() * torch.eye(s.shape[-2], s.shape[-1], dtype=s.dtype),
    "eye_bool_inverted": lambda s: s.masked_fill(
        ~torch.eye(s.shape[-2], s.shape[-1], dtype=torch.bool), 0
    ),
    "eye_of_other_size": lambda s: s.sigmoid() * torch.eye(9)[: s.shape[-2], : s.shape[-1]],
    "tril_two": lambda s: s.sigmoid().tril(2),
    "tril_minus": lambda s: s.sigmoid().tril(-2) + s.relu().triu(1),
    "tril_transposed": lambda s: s.sigmoid().mT.tril().mT,
    "tril_of_heads": lambda s: s.sigmoid().permute(2, 3, 0, 1).tril().permute(2, 3, 0, 1),
    "tril_of_row_head": lambda s: s.sigmoid().transpose(1, 3).tril(1).transpose(1, 3),
    "tril_then_add": lambda s: (s.tril() + 1).sigmoid(),
    "tril_of_inf": lambda s: torch.full_like(s, -INF).triu(1).add(s).sigmoid(),
    "tril_of_ones_minus_one": lambda s: (
        (torch.ones(s.shape[-2:]).tril() - 1) * 1e30 + s
    ).sigmoid(),
    "tril_of_nan": lambda s: (torch.full_like(s, float("nan")).tril() + s).nan_to_num(0.5),
    "cumsum_of_ones": lambda s: s.sigmoid() * (torch.ones(s.shape[-2:]).cumsum(-1) <= 3),
    "cumsum_of_scores": lambda s: s.cumsum(-1).sigmoid(),
    "cumsum_of_positive": lambda s: s * ((s > 0).cumsum(-1) <= 2),
    "above_mean": lambda s: s * (s > s.mean()),
    "above_row_mean": lambda s: s * (s > s.mean(-1, keepdim=True)).to(s.dtype),
    "minus_max_detached": lambda s: torch.exp(s - s.detach().amax(-1, keepdim=True)),
    "above_first": lambda s: s * (s >= s[..., :1]),
    "above_transposed": lambda s: s * (s[..., :5] > s[..., :5].mT).any(),
    "argsort_mask": lambda s: s * (s.argsort(-1) < 3),
    "topk_threshold": lambda s: s * (s >= s.topk(3, -1).values[..., -1:]),
    "shifted": lambda s: s.relu() + F.pad(s, (1, -1)),
    "max_of_neighbours": lambda s: torch.maximum(s, s.roll(1, -1)),
    "meshgrid": lambda s: (
        s.sigmoid()
        * torch.ge(
            *torch.meshgrid(torch.arange(s.shape[-2]), torch.arange(s.shape[-1]), indexing="ij")
        )
    ),
    "meshgrid_xy": lambda s: (
        s.sigmoid()
        * torch.ge(
            *torch.meshgrid(torch.arange(s.shape[-1]), torch.arange(s.shape[-2]), indexing="xy")
        )
    ),
    "band": lambda s: (
        s.sigmoid()
        * (
            torch.ones(s.shape[-2:], dtype=torch.bool).tril(1)
            & torch.ones(s.shape[-2:], dtype=torch.bool).triu(-1)
        )
    ),
    "one_hot": lambda s: s.sigmoid() * F.one_hot(torch.arange(s.shape[-2]) % 7, 7),
    "bucketize": lambda s: (
        s.sigmoid() * torch.bucketize(torch.sub(*_rows(s)), torch.tensor([-2, 0, 2]))
    ),
    "block_diagonal": _m(lambda i, j: i // 2 == j // 2),
    "dilated": _m(lambda i, j: ((i - j) % 2 == 0) & ((i - j).abs() <= 4)),
    "prefix": _m(lambda i, j: (j < 2) | (j <= i)),
    "kron": lambda s: (
        s.sigmoid()
        * torch.kron(torch.tensor([[1, 0], [1, 1]]), torch.ones(3, 4, dtype=torch.int64))[
            : s.shape[-2], : s.shape[-1]
        ]
    ),
    "band_part": lambda s: (
        s.sigmoid()
        * torch.where(torch.tril(torch.ones(s.shape[-2:], dtype=torch.int8), 1) == 1, 1.0, 0.25)
    ),
    "alibi": lambda s: torch.sigmoid(
        s
        - 2.0 ** (-torch.arange(1, s.shape[1] + 1, dtype=s.dtype))[:, None, None]
        * torch.sub(*_rows(s)).abs()
    ),
    "head_choice": lambda s: torch.where(
        (torch.arange(s.shape[1]) < 1)[:, None, None], s.relu(), s.sigmoid()
    ),
    "batch_parity": lambda s: s.relu() * (torch.arange(s.shape[0]) % 2)[:, None, None, None],
    "head_cat": lambda s: torch.cat([s[:, :1].relu(), s[:, 1:].sigmoid()], 1),
    "head_cat_swapped": lambda s: torch.cat([s[:, 1:].relu(), s[:, :1].sigmoid()], 1),
    "head_stack": lambda s: torch.stack([s[:, 0].relu(), s[:, 1].sigmoid()], 1),
    "head_stack_repeated": lambda s: torch.stack([s[:, 0].relu(), s[:, 0].sigmoid()], 1),
    "row_cat": lambda s: torch.cat([s[:, :, :2].relu(), s[:, :, 2:].sigmoid()], 2),
    "column_cat": lambda s: torch.cat([s[..., :2].relu(), s[..., 2:].sigmoid()], -1),
    "column_cat_gap": lambda s: torch.cat(
        [s[..., :2].relu(), s[..., 2:4].sigmoid(), s[..., 4:] * 0], -1
    ),
    "column_cat_overlap": lambda s: torch.cat([s[..., :3].relu(), s[..., 1:5].sigmoid()], -1),
    "column_cat_twice": lambda s: torch.cat(
        [torch.cat([s[..., :2], s[..., 2:4].relu()], -1), s[..., 4:].sigmoid()], -1
    ),
    "batch_cat": lambda s: torch.cat([s[:1].relu(), s[1:].sigmoid()]),
    "split_and_cat": lambda s: torch.cat(
        [
            f(x)
            for f, x in zip(
                (torch.relu, torch.sigmoid, torch.tanh), s.split([1, 2, s.shape[-1] - 3], -1)
            )
        ],
        -1,
    ),
    "chunk_and_stack": lambda s: torch.stack(
        [f(x) for f, x in zip((torch.relu, torch.sigmoid), s.unbind(1))], 1
    ),
    "pad_and_slice": lambda s: F.pad(s.relu(), (0, 1))[..., :-1],
    "pad_and_slice_front": lambda s: F.pad(s.relu(), (1, 0))[..., :-1],
    "negative_pad": lambda s: F.pad(F.pad(s, (2, 2), value=-INF)[..., 2:-2], (0, 0)).sigmoid(),
    "where_with_int_scores": lambda s: torch.where(_rows(s)[0] > _rows(s)[1], s, s.to(torch.int64)),
    "dtype_by_result_type": lambda s: torch.where(
        _rows(s)[0] > _rows(s)[1], s.relu(), torch.zeros((), dtype=torch.float16)
    ),
    "masked_fill_tensor": lambda s: s.masked_fill(
        _rows(s)[0] > _rows(s)[1], torch.tensor(0.1, dtype=torch.float32)
    ),
    "where_tensor_fp32": lambda s: torch.where(
        _rows(s)[0] > _rows(s)[1], s, torch.tensor(0.1, dtype=torch.float32)
    ),
    "mul_fp32_scalar_tensor": lambda s: s.relu() * torch.tensor(0.1, dtype=torch.float32),
    "mul_bf16_scalar_tensor": lambda s: s.relu() * torch.tensor(0.1, dtype=torch.bfloat16),
    "div_by_shape_sqrt": lambda s: s.relu() / math.sqrt(s.shape[-1]),
    "div_by_numel_int": lambda s: s.relu() / s[0, 0].numel(),
    "compare_with_big_int": lambda s: s.relu() * (s < 2**53 + 1),
    "compare_with_0dim": lambda s: s.relu() * (s < torch.tensor(2)),
    "compare_with_bool_tensor": lambda s: s.relu() * (s > torch.tensor(True)),
    "symint_in_mask": lambda s: s.relu() * (torch.arange(s.shape[-1]) < s.shape[-2] // 2 + 1),
    "symint_max": lambda s: s.relu() / max(s.shape[-1], s.shape[-2], 1) * min(s.shape),
}


def _masked(name, f):
    def program(q, k, v):
        return f(q @ k.mT) @ v

    program.__name__ = "mask_" + name
    return program


for _name, _f in MASKS.items():
    CASES.append((_masked(_name, _f), ikv()))


def _given_mask(name, f, *makers):
    def program(q, k, v, *more):
        return f(q @ k.mT, *more) @ v

    program.__name__ = "given_" + name
    CASES.append((program, plus(ikv(), *makers)))


_b = lambda x: x[:, None, None, None]
_given_mask(
    "uint8_lengths_minus_one",
    lambda s, n: s.sigmoid() * (torch.arange(7) <= _b(n - 1)),
    lambda: torch.tensor([0, 3], dtype=torch.uint8),
)
_given_mask(
    "int8_lengths_abs",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n.abs())),
    lambda: torch.tensor([-128, 3], dtype=torch.int8),
)
_given_mask(
    "int8_lengths_neg",
    lambda s, n: s.sigmoid() * (-torch.arange(7) > _b(-n)),
    lambda: torch.tensor([-128, 3], dtype=torch.int8),
)
_given_mask(
    "int8_lengths_doubled",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n * 2)),
    lambda: torch.tensor([100, 3], dtype=torch.int8),
)
_given_mask(
    "int32_lengths_scaled",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n * 65536 * 40000)),
    lambda: torch.tensor([1, 3], dtype=torch.int32),
)
_given_mask(
    "int64_lengths_overflow",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n + 1)),
    lambda: torch.tensor([2**63 - 1, 3]),
)
_given_mask(
    "lengths_floordiv",
    lambda s, n: s.sigmoid() * (torch.arange(7) // _b(n) == 1),
    lambda: torch.tensor([-2, 3]),
)
_given_mask(
    "lengths_mod",
    lambda s, n: s.sigmoid() * (torch.arange(7) % _b(n) == 1),
    lambda: torch.tensor([-2, 3]),
)
_given_mask(
    "lengths_float",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n)),
    lambda: torch.tensor([2.5, 3.0], dtype=D64),
)
_given_mask(
    "lengths_half",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n)),
    lambda: torch.tensor([2.5, 3.0], dtype=torch.float16),
)
_given_mask(
    "lengths_nan",
    lambda s, n: s.sigmoid() * ~(torch.arange(7) < _b(n)),
    lambda: torch.tensor([float("nan"), 3.0], dtype=D64),
)
_given_mask(
    "lengths_with_gradient",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n)) / _b(n),
    lambda: T(2),
)
_given_mask(
    "soft_length", lambda s, n: s.sigmoid() * torch.sigmoid(_b(n) - torch.arange(7)), lambda: T(2)
)
_given_mask(
    "cumsum_of_lengths",
    lambda s, n: s.sigmoid() * (torch.arange(7) < _b(n.cumsum(0))),
    lambda: torch.tensor([2, 3]),
)
_given_mask(
    "bool_lengths",
    lambda s, n: s.sigmoid() * (torch.arange(7) <= _b(n)),
    lambda: torch.tensor([True, False]),
)
_given_mask(
    "segments",
    lambda s, a, b: s.sigmoid() * (a[:, None, :, None] == b[:, None, None]),
    lambda: torch.randint(0, 3, (2, 5)),
    lambda: torch.randint(0, 3, (2, 7)),
)
_given_mask(
    "segments_uint8_difference",
    lambda s, a, b: s.sigmoid() * (a[:, None, :, None] - b[:, None, None] < 2),
    lambda: torch.randint(0, 3, (2, 5), dtype=torch.uint8),
    lambda: torch.randint(0, 3, (2, 7), dtype=torch.uint8),
)
_given_mask(
    "times_int64_to_float",
    lambda s, a, b: torch.sigmoid(s - (a[:, None, :, None] - b[:, None, None]).float() / 60),
    lambda: torch.randint(0, 10**9, (2, 5)),
    lambda: torch.randint(0, 10**9, (2, 7)),
)
_given_mask(
    "times_log",
    lambda s, a, b: torch.sigmoid(
        s - (a[:, None, :, None] - b[:, None, None]).abs().clamp(min=1).double().log()
    ),
    lambda: torch.randint(0, 10**9, (2, 5)),
    lambda: torch.randint(0, 10**9, (2, 7)),
)
_given_mask(
    "uint8_mask_multiplied",
    lambda s, m: s.sigmoid() * m * m,
    lambda: torch.randint(0, 255, (5, 7), dtype=torch.uint8),
)
_given_mask(
    "uint8_mask_summed",
    lambda s, m: s.sigmoid() * (m + m),
    lambda: torch.randint(100, 255, (5, 7), dtype=torch.uint8),
)
_given_mask("int_bias", lambda s, m: torch.sigmoid(s + m), lambda: torch.randint(-3, 3, (5, 7)))
_given_mask(
    "int_bias_huge",
    lambda s, m: torch.sigmoid((s + m) * 1e-16),
    lambda: torch.randint(2**60, 2**62, (5, 7)),
)
_given_mask("bool_bias", lambda s, m: torch.sigmoid(s + m), lambda: torch.rand(5, 7) > 0.5)
_given_mask("bias_of_size_one_dims", lambda s, m: torch.sigmoid(s + m), lambda: T(1, 1, 1, 7))
_given_mask(
    "bias_per_row_expanded", lambda s, m: torch.sigmoid(s + m[:, :1].expand(5, 7)), lambda: T(5, 7)
)
_given_mask(
    "scalar_learned", lambda s, a, b: torch.sigmoid(s * a + b) * a, lambda: T(), lambda: T(1)
)
_given_mask(
    "scalar_fp32_learned", lambda s, a: torch.sigmoid(s * a), lambda: T(dtype=torch.float32)
)
_given_mask("bias_fp32", lambda s, a: torch.sigmoid(s + a), lambda: T(5, 7, dtype=torch.float32))
_given_mask(
    "bias_bf16", lambda s, a: torch.sigmoid(s + a) * a, lambda: T(5, 7, dtype=torch.bfloat16)
)
_given_mask(
    "bias_squared_in_bf16",
    lambda s, a: torch.sigmoid(s + a * a),
    lambda: T(5, 1, dtype=torch.bfloat16),
)
_given_mask("bias_in_where", lambda s, a: torch.where(a > 0, s, a), lambda: T(5, 7))
_given_mask("bias_ties", lambda s, a: torch.maximum(s, a) + torch.minimum(s, a), lambda: I(5, 7))
_given_mask("bias_clamp_bounds", lambda s, a, b: s.clamp(a, b), lambda: I(5, 7), lambda: I(5, 7))
_given_mask("bias_clamp_bounds_same", lambda s, a: s.clamp(a, a), lambda: I(5, 1))
_given_mask("bias_pow", lambda s, a: s.abs().add(1).pow(a), lambda: T(7))
_given_mask("bias_base", lambda s, a: a.abs().pow(s), lambda: T(7))
_given_mask("prelu_learned", lambda s, a: F.prelu(s, a), lambda: T(2))
_given_mask("prelu_one", lambda s, a: F.prelu(s, a), lambda: T(1))
_given_mask("lerp_gate", lambda s, a: torch.lerp(s.relu(), s.sigmoid(), a), lambda: T(2, 1, 1))
_given_mask(
    "bias_used_thrice",
    lambda s, a: torch.sigmoid(s + a + a[:, :, :1]) * a[:, :1],
    lambda: T(2, 2, 5, 7),
)
_given_mask(
    "bias_transposed_and_not",
    lambda s, a: torch.sigmoid(s[..., :5] + a + a.mT) @ torch.ones(5, 7, dtype=s.dtype),
    lambda: T(2, 2, 5, 5),
)
_given_mask("bias_selected", lambda s, a: torch.sigmoid(s + a[1] + a[0, :, :1]), lambda: T(3, 5, 7))
_given_mask("bias_sliced", lambda s, a: torch.sigmoid(s + a[..., 2:7, 1:8]), lambda: T(2, 9, 9))
_given_mask("bias_stepped", lambda s, a: torch.sigmoid(s + a[::2, ::2]), lambda: T(10, 14))
_given_mask(
    "bias_diagonal_view",
    lambda s, a: torch.sigmoid(s + a.diagonal(0, 0, 1)),
    lambda: (
        T(5, 5, 7, 7).detach()[..., 0].permute(0, 1, 2)[:, :, :5].clone().requires_grad_()
        if False
        else T(7, 7, 5)
    ),
)
_given_mask(
    "bias_flattened_and_viewed",
    lambda s, a: torch.sigmoid(s + a.view(7, 5).T.reshape(5, 7)),
    lambda: T(35),
)
_given_mask("bias_viewed_wrongly", lambda s, a: torch.sigmoid(s + a.reshape(5, 7)), lambda: T(7, 5))
_given_mask(
    "bias_complex_real",
    lambda s, a: torch.sigmoid(s + torch.view_as_complex(a).real),
    lambda: T(5, 7, 2),
)
_given_mask(
    "bias_view_dtype",
    lambda s, a: torch.sigmoid(s + a.view(torch.float64)),
    lambda: torch.arange(35).view(5, 7),
)
_given_mask("bias_unfold", lambda s, a: torch.sigmoid(s + a.unfold(0, 7, 1)), lambda: T(11))
_given_mask(
    "bias_skewed",
    lambda s, a: torch.sigmoid(s + F.pad(a, (1, 0)).reshape(8, 5)[1:].reshape(5, 7)),
    lambda: T(5, 7),
)
_given_mask(
    "bias_toeplitz",
    lambda s, a: torch.sigmoid(s + a[torch.arange(5)[:, None] - torch.arange(7) + 6]),
    lambda: T(12),
)
_given_mask(
    "bias_toeplitz_negative_index",
    lambda s, a: torch.sigmoid(s + a[torch.arange(5)[:, None] - torch.arange(7)]),
    lambda: T(12),
)
_given_mask(
    "bias_gathered",
    lambda s, a, i: torch.sigmoid(s + a.gather(1, i)),
    lambda: T(5, 3),
    lambda: torch.randint(0, 3, (5, 7)),
)
_given_mask(
    "bias_take_along",
    lambda s, a, i: torch.sigmoid(s + torch.take_along_dim(a, i, 1)),
    lambda: T(5, 3),
    lambda: torch.randint(0, 3, (5, 7)),
)
_given_mask(
    "bias_take",
    lambda s, a, i: torch.sigmoid(s + a.take(i)),
    lambda: T(5, 3),
    lambda: torch.randint(0, 15, (5, 7)),
)
_given_mask(
    "bias_embedding_padding",
    lambda s, a, i: torch.sigmoid(s + F.embedding(i, a, padding_idx=1)[..., 0]),
    lambda: T(4, 1),
    lambda: torch.randint(0, 4, (5, 7)),
)
_given_mask(
    "bias_embedding_heads",
    lambda s, a, i: torch.sigmoid(s + F.embedding(i, a).permute(2, 0, 1)),
    lambda: T(4, 2),
    lambda: torch.randint(0, 4, (5, 7)),
)
_given_mask(
    "bias_embedding_scaled",
    lambda s, a, i: torch.sigmoid(s + F.embedding(i, a, scale_grad_by_freq=True).permute(2, 0, 1)),
    lambda: T(4, 2),
    lambda: torch.randint(0, 4, (5, 7)),
)
_given_mask(
    "bias_embedding_max_norm",
    lambda s, a, i: torch.sigmoid(s + F.embedding(i, a, max_norm=0.5).permute(2, 0, 1)),
    lambda: T(4, 2, grad=False),
    lambda: torch.randint(0, 4, (5, 7)),
)
_given_mask(
    "bias_index_select",
    lambda s, a, i: torch.sigmoid(s + a.index_select(-1, i)),
    lambda: T(5, 3),
    lambda: torch.randint(0, 3, (7,)),
)
_given_mask(
    "bias_index_put",
    lambda s, a, i: torch.sigmoid(
        s + torch.zeros(5, 7, dtype=D64).index_put((i,), a, accumulate=True)
    ),
    lambda: T(3, 7),
    lambda: torch.tensor([1, 1, 4]),
)
_given_mask(
    "bias_scatter_add",
    lambda s, a, i: torch.sigmoid(s + torch.zeros(5, 7, dtype=D64).scatter_add(1, i, a)),
    lambda: T(5, 7),
    lambda: torch.randint(0, 3, (5, 7)),
)
_given_mask(
    "mask_by_bool_index",
    lambda s, m: s.sigmoid() * torch.zeros(5, 7, dtype=D64).masked_fill(m, 2.0),
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask(
    "lookup_by_bool",
    lambda s, a, m: s.sigmoid() * a[m.long()],
    lambda: T(2),
    lambda: torch.rand(5, 7) > 0.5,
)


def _large(name, f, table, index):
    def program(q, k, v, *more):
        return torch.sigmoid(q @ k.mT + f(*more)) @ v

    program.__name__ = "table_" + name
    CASES.append(
        (program, plus(lambda: (T(2, 2, 40, 4), T(2, 2, 48, 4), T(2, 2, 48, 3)), table, index))
    )


_at = lambda low=0, high=5, shape=(40, 48), dtype=torch.int64: (
    lambda: torch.randint(low, high, shape).to(dtype)
)
_large("plain", lambda a, i: a[i], lambda: T(5), _at())
_large("negative", lambda a, i: a[i], lambda: T(5), _at(-5, 5))
_large("second_dim", lambda a, i: a[:, i], lambda: T(2, 5), _at())
_large("first_dim_then_permuted", lambda a, i: a[i].permute(2, 0, 1), lambda: T(5, 2), _at())
_large("new_dim", lambda a, i: a[None, i], lambda: T(5), _at())
_large("ellipsis", lambda a, i: a[..., i], lambda: T(2, 5), _at())
_large("sliced_and_indexed", lambda a, i: a[1:, i], lambda: T(3, 5), _at())
_large("integer_and_indexed", lambda a, i: a[1, i], lambda: T(3, 5), _at())
_large("int32", lambda a, i: a[i], lambda: T(5), _at(dtype=torch.int32))
_large("uint8", lambda a, i: a[i.long()], lambda: T(5), _at(dtype=torch.uint8))
_large("embedding", lambda a, i: F.embedding(i, a).permute(2, 0, 1), lambda: T(5, 2), _at())
_large(
    "embedding_padding",
    lambda a, i: F.embedding(i, a, padding_idx=-1).permute(2, 0, 1),
    lambda: T(5, 2),
    _at(),
)
_large(
    "embedding_frequency",
    lambda a, i: F.embedding(i, a, scale_grad_by_freq=True).permute(2, 0, 1),
    lambda: T(5, 2),
    _at(),
)
_large("select", lambda a, i: a.index_select(0, i.flatten()).view(40, 48), lambda: T(5), _at())
_large("select_last", lambda a, i: torch.index_select(a, -1, i[0]), lambda: T(40, 5), _at())
_large("gather_", lambda a, i: a.expand(40, 5).gather(1, i), lambda: T(1, 5), _at())
_large("gather_own", lambda a, i: a.gather(-1, i), lambda: T(40, 3), _at(0, 3))
_large("gather_rows", lambda a, i: a.gather(0, i), lambda: T(3, 48), _at(0, 3))
_large("gather_first_columns", lambda a, i: a.gather(0, i), lambda: T(3, 60), _at(0, 3))
_large("twice_looked_up", lambda a, i: a[i] + a[4 - i] * 2, lambda: T(5), _at())
_large("two_indices", lambda a, i: a[i, 4 - i], lambda: T(5, 5), _at())
_large("index_used_for_mask", lambda a, i: a[i] * (i > 2), lambda: T(5), _at())
_large("bf16", lambda a, i: a[i], lambda: T(5, dtype=torch.bfloat16), _at(0, 5, (40, 48)))
_large("table_of_function", lambda a, i: torch.sin(a * 2)[i], lambda: T(5), _at())
_large("table_written_after", lambda a, i: (a[i], i.add_(1))[0], lambda: T(6), _at())
_large("index_clamped_in_place", lambda a, i: a[i.clamp_(1, 3)], lambda: T(5), _at())
_large("per_batch", lambda a, i: a[i][:, None], lambda: T(5), _at(shape=(2, 40, 48)))
_large(
    "of_distance",
    lambda a, i: a[(torch.arange(40)[:, None] - torch.arange(48)).clamp(-2, 2) + 2 + 0 * i],
    lambda: T(5),
    _at(),
)
_large("hook_on_lookup", lambda a, i: _hooked(a[i]), lambda: T(5), _at())
_large("retain_table_view", lambda a, i: a.view(5, 2)[i].permute(2, 0, 1), lambda: T(10), _at())


def _hooked(x):
    if x.requires_grad:
        x.register_hook(lambda g: g * 2)
    return x


# 6. What a slice may say: negative starts past the beginning, parts that are joined


def _joined(name, f, make=None):
    def program(q, k, v):
        return f(q @ k.mT) @ v

    program.__name__ = "joined_" + name
    CASES.append((program, make or ikv()))


_joined(
    "start_before_the_beginning", lambda s: torch.cat([s[:, :1].relu(), s[:, -3:1].sigmoid()], 1)
)
_joined(
    "start_before_the_beginning_both",
    lambda s: torch.cat([s[:, -4:1].relu(), s[:, -3:1].sigmoid()], 1),
)
_joined("end_before_the_beginning", lambda s: torch.cat([s[:, :-1].relu(), s[:, -1:].sigmoid()], 1))
_joined("end_past_the_end", lambda s: torch.cat([s[:, :1].relu(), s[:, 1:99].sigmoid()], 1))
_joined(
    "rows_start_before",
    lambda s: torch.cat([s[:, :, :2].relu(), s[:, :, -8:3][:, :, -3:].sigmoid()], 2),
)
_joined(
    "columns_start_before",
    lambda s: torch.cat([s[..., :4].relu(), s[..., -12:4].sigmoid()], -1),
    ikv(m=8),
)
_joined(
    "columns_start_before_second",
    lambda s: torch.cat([s[..., -12:4].relu(), s[..., 4:].sigmoid()], -1),
    ikv(m=8),
)
_joined(
    "rows_halves_before",
    lambda s: torch.cat([s[..., :2, :].relu(), s[..., -6:2, :].sigmoid()], -2),
    ikv(n=4),
)
_joined(
    "nested_same_starts",
    lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[0, 1].tanh()]),
            torch.stack([s[1, 0].sigmoid(), s[1, 1].exp()]),
        ]
    ),
)
_joined(
    "nested_crossed",
    lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[1, 0].tanh()]),
            torch.stack([s[0, 1].sigmoid(), s[1, 1].exp()]),
        ]
    ),
)
_joined(
    "nested_repeated",
    lambda s: torch.stack(
        [
            torch.stack([s[0, 0].relu(), s[0, 1].tanh()]),
            torch.stack([s[0, 0].sigmoid(), s[0, 1].exp()]),
        ]
    ),
)
_joined(
    "stack_moved", lambda s: torch.stack([s[:, 0].relu(), s[:, 1].sigmoid()], -1).movedim(-1, 1)
)
_joined("stack_with_constant", lambda s: torch.stack([s[:, 0].relu(), torch.ones_like(s[:, 1])], 1))
_joined(
    "cat_with_constant", lambda s: torch.cat([s[:, :1].relu(), torch.full_like(s[:, :1], 0.5)], 1)
)
_joined("cat_with_empty", lambda s: torch.cat([s[:, :0], s[:, :1].relu(), s[:, 1:].tanh()], 1))
_joined("cat_of_int_and_float", lambda s: torch.cat([s[:, :1].relu(), (s[:, 1:] > 0).long()], 1))
_joined("hstack_", lambda s: torch.hstack([s[:, :1].relu(), s[:, 1:].tanh()]))
_joined(
    "chunk_three_of_seven",
    lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh, torch.sigmoid), s.chunk(3, -1))], -1
    ),
)
_joined(
    "tensor_split",
    lambda s: torch.cat(
        [f(x) for f, x in zip((torch.relu, torch.tanh), s.tensor_split([3], -1))], -1
    ),
)
_joined("narrow_", lambda s: torch.cat([s.narrow(1, 0, 1).relu(), s.narrow(1, -1, 1).tanh()], 1))
_joined(
    "select_negative", lambda s: torch.stack([s.select(1, -2).relu(), s.select(1, -1).tanh()], 1)
)
_joined(
    "half_of_rows_gated_by_other_half",
    lambda s: torch.cat([s[..., :2, :] * s[..., 2:, :].sigmoid(), s[..., 2:, :]], -2),
    ikv(n=4),
)
_joined(
    "position_in_part",
    lambda s: torch.cat([s[..., :3] * torch.arange(3), s[..., 3:] * torch.arange(4)], -1),
)
_joined("tril_of_part", lambda s: torch.cat([s[..., :3].tril(), s[..., 3:].triu()], -1))
_joined("tril_of_head", lambda s: torch.stack([s[:, 0].tril(), s[:, 1].triu(2)], 1))
_joined(
    "select_of_parts",
    lambda s: (
        torch.cat([s[:, :, :, :3].relu(), s[:, :, :, 3:].relu()], -1)
        .select(1, 0)[:, None]
        .expand(-1, 2, -1, -1)
    ),
)


def _rows_bias(name, f, *makers):
    _given_mask("joined_" + name, f, *makers)


_rows_bias(
    "bias_per_part",
    lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[1]], 1).relu(),
    lambda: T(2),
)
_rows_bias(
    "bias_per_part_swapped",
    lambda s, a: torch.cat([s[:, :1] + a[1], s[:, 1:] + a[0]], 1).relu(),
    lambda: T(2),
)
_rows_bias(
    "bias_same_for_all_parts",
    lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[0]], 1).relu(),
    lambda: T(2),
)
_rows_bias(
    "bias_first_of_three",
    lambda s, a: torch.cat([s[:, :1] + a[0], s[:, 1:] + a[1]], 1).relu(),
    lambda: T(3),
)
_rows_bias(
    "bias_slice_before_beginning",
    lambda s, a: torch.cat([s[..., :4] + a[:4], s[..., 4:] + a[-12:4]], -1).relu()[..., :7],
    lambda: T(8),
)
_rows_bias(
    "bias_whole_in_each_part",
    lambda s, a: torch.cat([s[:, :1] + a, s[:, 1:] - a], 1).relu(),
    lambda: T(5, 7),
)
_rows_bias(
    "bias_of_batch_in_head_part",
    lambda s, a: torch.stack([s[:, 0] + a[:, None, None], s[:, 1] + a[0]], 1).relu(),
    lambda: T(2),
)


# 7. None or zeros


def _reach(name, f, *makers):
    _given_mask("reach_" + name, f, *makers)


_sc = lambda: torch.randn((), dtype=D64).requires_grad_()
_reach("cancelled", lambda s, a: s.relu() + a - a, lambda: T(5, 7))
_reach("times_zero", lambda s, a: s.relu() + 0 * a, lambda: T(5, 7))
_reach("times_zero_plus_one", lambda s, a: s.relu() * (a * 0 + 1), lambda: T(7))
_reach("floor_of", lambda s, a: s.relu() * a.floor(), lambda: T(7))
_reach("sign_of", lambda s, a: s.relu() * a.sign(), lambda: T(7))
_reach("round_of", lambda s, a: s.relu() * a.round(), lambda: T(7))
_reach("greater", lambda s, a: s.relu() * (a > 0), lambda: T(7))
_reach("greater_both", lambda s, a: s * (s > a), lambda: T(7))
_reach("detached", lambda s, a: s.relu() * a.detach(), lambda: T(7))
_reach("detached_and_not", lambda s, a: s.relu() * a.detach() + 0 * a, lambda: T(7))
_reach("as_integers", lambda s, a: s.relu() * a.long(), lambda: T(7))
_reach("isnan_of", lambda s, a: s.relu() * ~a.isnan(), lambda: T(7))
_reach("clone_zeroed", lambda s, a: s.relu() + a.clone().zero_(), lambda: T(7))
_reach("clone_filled", lambda s, a: s.relu() + a.clone().fill_(1.5), lambda: T(7))
_reach("clone_copied", lambda s, a, b: s.relu() + a.clone().copy_(b), lambda: T(7), lambda: T(7))
_reach("ones_like", lambda s, a: s.relu() + torch.ones_like(a), lambda: T(7))
_reach("power_zero", lambda s, a: s.relu() * a**0, lambda: T(7))
_reach("clamp_flipped", lambda s, a: s.relu() * a.clamp(1, 1), lambda: T(7))
_reach(
    "where_false", lambda s, a: torch.where(torch.zeros(7, dtype=torch.bool), a, s), lambda: T(7)
)
_reach(
    "where_python_false", lambda s, a: torch.where(torch.tensor(False), a, s.relu()), lambda: T(7)
)
_reach(
    "masked_all",
    lambda s, a: s.relu() + a.masked_fill(torch.ones(7, dtype=torch.bool), 0.0),
    lambda: T(7),
)
_reach(
    "masked_where_true_scalar",
    lambda s, a: s.masked_fill(torch.tensor(True), 1.0) + a,
    lambda: T(7),
)
_reach("tril_never", lambda s, a: s.relu() + a.tril(-9), lambda: T(5, 7))
_reach("scores_times_zero", lambda s, a: s * 0 + a, lambda: T(5, 7))
_reach("scores_detached_plus", lambda s, a: s.detach().relu() + a, lambda: T(5, 7))
_reach("scores_signed", lambda s, a: s.sign() * a, lambda: T(5, 7))
_reach("lerp_weight_zero", lambda s, a: torch.lerp(s, a, 0.0), lambda: T(5, 7))
_reach("addcmul_value_zero", lambda s, a: torch.addcmul(s, a, a, value=0), lambda: T(5, 7))
_reach("add_alpha_zero", lambda s, a: torch.add(s, a, alpha=0), lambda: T(5, 7))
_reach("max_minus_infinity", lambda s, a: torch.maximum(s, a - INF), lambda: T(5, 7))
_reach(
    "nan_to_num", lambda s, a: s.relu() + torch.nan_to_num(a * INF, 0.0, 0.0, 0.0), lambda: T(5, 7)
)
_reach(
    "hardtanh_same",
    lambda s, a: s + F.hardtanh(a, -1.0, 1.0) * F.threshold(a, 9.0, 0.0),
    lambda: T(5, 7),
)
_reach("zero_dim", lambda s, a, b: torch.sigmoid(s * a + b) * a, _sc, lambda: T(1))
_reach("zero_dim_fp32", lambda s, a: torch.sigmoid(s * a), lambda: torch.randn(()).requires_grad_())
_reach("zero_dim_item_free", lambda s, a: torch.sigmoid(s * a[0, 0] + a[0, 1]), lambda: T(1, 2))
_reach(
    "same_operand_detached_and_not", lambda s, a: torch.sigmoid(s * a.detach() + a), lambda: T(5, 7)
)
_reach("zeros_batch_mask", lambda s, a: s.sigmoid() * torch.zeros_like(a), lambda: T(5, 7))


# 8. Operands: how query, key and value are made


def _operand(name, f, make=None):
    def program(q, k, v):
        q, k, v = f(q, k, v)
        return F.silu(q @ k.mT) @ v

    program.__name__ = "operand_" + name
    CASES.append((program, make or square(n=8, d=4)))


_operand("slices_from_before", lambda q, k, v: (q[:, :, -12:4], k[..., -12:4, :], v[:, :, -12:4]))
_operand("slices_steps", lambda q, k, v: (q[:, :, ::2], k[:, :, 1::2], v[:, :, ::2]))
_operand("slices_empty_steps", lambda q, k, v: (q[:, :, 2:][:, :, :3], k[:, :, -3:], v[:, :, 5:]))
_operand("flipped", lambda q, k, v: (q.flip(2), k.flip(2), v))
_operand("rolled", lambda q, k, v: (q.roll(1, 2), k, v.roll(-1, 2)))
_operand(
    "rotary",
    lambda q, k, v: (
        *(
            torch.cat([-x[..., 2:], x[..., :2]], -1)
            * torch.sin(torch.arange(8.0, dtype=D64))[:, None]
            + x * torch.cos(torch.arange(8.0, dtype=D64))[:, None]
            for x in (q, k)
        ),
        v,
    ),
)
_operand(
    "rotary_complex",
    lambda q, k, v: (
        *(
            torch.view_as_real(
                torch.view_as_complex(x.reshape(2, 2, 8, 2, 2))
                * torch.polar(torch.ones(8, 2, dtype=D64), torch.rand(8, 2, dtype=D64) * 0 + 1.3)
            ).flatten(-2)
            for x in (q, k)
        ),
        v,
    ),
)
_operand("half_of_channels", lambda q, k, v: (q[..., :2], k[..., 2:], v[..., ::2]))
_operand("same_storage", lambda q, k, v: (q, q, q))
_operand("key_is_value", lambda q, k, v: (q, k, k))
_operand("query_is_value", lambda q, k, v: (q, k, q))
_operand("value_is_scaled_key", lambda q, k, v: (q, k, k * 2))
_operand("normalised", lambda q, k, v: (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v))
_operand("layer_norm", lambda q, k, v: (F.layer_norm(q, (4,)), F.layer_norm(k, (4,)), v))
_operand("value_with_ones", lambda q, k, v: (q, k, torch.cat([v, torch.ones_like(v[..., :1])], -1)))
_operand("query_expanded", lambda q, k, v: (q[:, :, :1].expand(2, 2, 8, 4), k, v))
_operand(
    "key_expanded_heads", lambda q, k, v: (q, k[:, :1].expand(2, 2, 8, 4), v[:1].expand(2, 2, 8, 4))
)
_operand("key_expanded_over_keys", lambda q, k, v: (q, k[:, :, :1].expand(2, 2, 8, 4), v))
_operand("as_strided", lambda q, k, v: (q.as_strided((2, 2, 4, 4), (64, 32, 4, 1), 8), k, v))
_operand("permuted_view", lambda q, k, v: (q.permute(2, 1, 0, 3).reshape(2, 2, 8, 4), k, v))
_operand(
    "viewed_across",
    lambda q, k, v: (q.reshape(2, 4, 4, 4).transpose(1, 2).reshape(2, 2, 8, 4), k, v),
)
_operand(
    "transposed_channels", lambda q, k, v: (q.reshape(2, 2, 4, 8).mT, k.reshape(2, 2, 4, 8).mT, v)
)
_operand(
    "complex_imag",
    lambda q, k, v: (
        torch.view_as_complex(q.reshape(2, 2, 8, 2, 2).contiguous()).real,
        torch.view_as_complex(k.reshape(2, 2, 8, 2, 2).contiguous()).imag,
        v,
    ),
)
_operand(
    "repeat_rows",
    lambda q, k, v: (q.repeat_interleave(2, 2), k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1)),
)
_operand("gathered", lambda q, k, v: (q[:, :, torch.tensor([1, 1, 7])], k, v))
_operand(
    "masked_fill_padding",
    lambda q, k, v: (
        q,
        k.masked_fill((torch.arange(8) > 5)[:, None], 0),
        v * (torch.arange(8) <= 5)[:, None],
    ),
)
_operand(
    "written_in_place",
    lambda q, k, v: (q.clone().mul_(2), k.clone().neg_(), v.clone().zero_().add_(v)),
)
_operand(
    "tied_projection", lambda q, k, v: (q @ k[0, 0, :4].T, k @ k[0, 0, :4].T, v @ k[0, 0, :4].T)
)
_operand(
    "through_numpy_like",
    lambda q, k, v: (torch.stack(q.unbind(2), 2), torch.cat(k.split(1, 1), 1), v),
)
_operand("float32_value", lambda q, k, v: (q, k, v.float().double()))
_operand(
    "bf16_query_upcast", lambda q, k, v: (q.bfloat16().float(), k.bfloat16().float(), v.float())
)
_operand("bf16_all", lambda q, k, v: (q.bfloat16(), k.bfloat16(), v.bfloat16()))
_operand("half_value_upcast", lambda q, k, v: (q, k, v.half().double()))
_operand(
    "integers",
    lambda q, k, v: (
        (q.long(), k.long(), v.long()) if False else (q.long().double(), k.long().double(), v)
    ),
)
_operand("dropout_p0", lambda q, k, v: (F.dropout(q, 0.0), F.dropout(k, 0.5, training=False), v))
_operand("nan_query", lambda q, k, v: (q.masked_fill(q > 2, float("nan")), k, v))
_operand("inf_value", lambda q, k, v: (q, k, v.masked_fill(v > 2, INF)))


@case(lambda: tuple(torch.randint(-3, 4, (2, 2, n, 4)) for n in (5, 7, 7)))
def all_integers(q, k, v):
    return torch.relu(q @ k.mT) @ v


@case(lambda: tuple(torch.randint(-3, 4, (2, 2, n, 4)) for n in (5, 7, 7)))
def integer_scores_float_weights(q, k, v):
    return (q @ k.mT).double().sigmoid() @ v.double()


@case(
    lambda: tuple(
        torch.randn(2, 2, n, 4, dtype=torch.complex128).requires_grad_() for n in (5, 7, 7)
    )
)
def all_complex(q, k, v):
    return torch.sigmoid(q @ k.mH) @ v


@case(
    lambda: tuple(
        torch.randn(2, 2, n, 4, dtype=torch.complex128).requires_grad_() for n in (5, 7, 7)
    )
)
def complex_conjugated(q, k, v):
    return (q @ k.mH).real @ v.real


@case(
    lambda: tuple(
        torch.randn(2, 2, n, 4, dtype=torch.complex128).requires_grad_() for n in (5, 7, 7)
    )
)
def real_parts(q, k, v):
    return F.relu(q.real @ k.imag.mT) @ v.real


@case(lambda: tuple(T(2, 2, n, 4, dtype=torch.float32) for n in (5, 7, 7)))
def threshold_between_fp32_and_fp64(q, k, v):
    s = q @ k.mT * 0 + torch.tensor(0.1)
    return (
        (s > 0.1).float()
        + (s >= 0.1) * 2
        + (s == 0.1) * 4
        + (s < torch.tensor(0.1, dtype=D64)) * 8
        + s
    ) @ v


@case(
    lambda: (
        torch.ones(1, 2, 1, 1),
        torch.full((1, 2, 2, 1), 0.1),
        T(1, 2, 2, 3, dtype=torch.float32),
    )
)
def exact_score_at_a_decimal_threshold(q, k, v):
    s = q @ k.mT
    return ((s > 0.1) * s + (s >= 0.1) * 2 + (s == 0.1) * 4) @ v


@case(
    lambda: (
        torch.ones(1, 2, 2, 1),
        torch.full((1, 2, 2, 1), 0.1),
        T(1, 2, 2, 3, dtype=torch.float32),
    )
)
def clamp_at_a_decimal(q, k, v):
    s = q @ k.mT
    return ((s.clamp(max=0.1) == s) * s + (F.hardtanh(s, -0.1, 0.1) < s) * 2) @ v


@case(
    lambda: (
        T(1, 2, 4, 4, dtype=torch.float32),
        T(1, 2, 4, 4, dtype=torch.float32),
        T(1, 2, 4, 4, dtype=torch.float32),
        torch.tensor(16777217),
    )
)
def int_beside_fp32(q, k, v, n):
    return F.relu(q @ k.mT + (n > 16777216.5) + (n == 16777216.0) * 2 + (n - 16777216)) @ v


@case(
    lambda: (
        T(1, 2, 4, 4, dtype=torch.float32),
        T(1, 2, 4, 4, dtype=torch.float32),
        T(1, 2, 4, 4, dtype=torch.float32),
        torch.tensor([16777217, 16777216]),
    )
)
def large_times_beside_fp32(q, k, v, n):
    return (
        F.relu(
            q @ k.mT
            + (n[:, None, None] + torch.arange(4) > 16777218.5)
            + (n.float() - 16777216)[:, None, None]
        )
        @ v
    )


@case(lambda: tuple(T(1, 2, 4, 4, dtype=torch.float16) for _ in range(3)))
def fp16_overflow(q, k, v):
    s = (q @ k.mT) * 30000
    return (s.clamp(-65504, 65504) / 65504) @ v


@case(lambda: tuple(T(1, 2, 4, 4, dtype=torch.float16) for _ in range(3)))
def fp16_mask_value(q, k, v):
    s = (q @ k.mT).masked_fill(
        torch.ones(4, 4, dtype=torch.bool).triu(1), torch.finfo(torch.float16).min
    )
    return torch.sigmoid(s) @ v


@case(lambda: tuple(T(1, 2, 4, 4, dtype=torch.bfloat16) for _ in range(3)))
def bf16_mask_1e9(q, k, v):
    s = q @ k.mT + (1.0 - torch.ones(4, 4).tril()) * -1e9
    return torch.sigmoid(s).to(v.dtype) @ v


@case(lambda: tuple(T(1, 2, 4, 4, dtype=torch.bfloat16) for _ in range(3)))
def bf16_to_float_between(q, k, v):
    s = (q @ k.mT).float() / 3
    return F.silu(s).to(torch.bfloat16) @ v


@case(
    lambda: (
        T(1, 2, 4, 4, dtype=torch.bfloat16),
        T(1, 2, 4, 4, dtype=torch.bfloat16),
        T(1, 2, 4, 4, dtype=torch.float32),
    )
)
def bf16_scores_fp32_value(q, k, v):
    return F.silu((q @ k.mT).float()) @ v


# 9. Modules


class _Running(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.5, dtype=D64))
        self.register_buffer("count", torch.tensor(1.0, dtype=D64))
        self.register_buffer("mean", torch.zeros(4, dtype=D64))

    def forward(self, q, k, v):
        self.count.add_(1)
        s = q @ k.mT * self.scale / self.count
        self.mean.lerp_(v.detach().mean((0, 1, 2)), 0.1)
        return F.silu(s) @ (v - self.mean)


CASES.append((_Running(), square()))


class _CountAfter(_Running):
    def forward(self, q, k, v):
        s = q @ k.mT * self.scale / self.count
        self.count += 1
        return F.silu(s) @ v


CASES.append((_CountAfter(), square()))


class _CountAfterAll(_Running):
    def forward(self, q, k, v):
        out = F.silu(q @ k.mT * self.scale / self.count) @ v
        self.count += 1
        return out


CASES.append((_CountAfterAll(), square()))


class _Assigns(_Running):
    def forward(self, q, k, v):
        self.count = self.count + 1
        out = F.silu(q @ k.mT * self.scale / self.count) @ v
        self.mean = out.detach().mean((0, 1, 2))
        return out


CASES.append((_Assigns(), square()))


class _Layer(torch.nn.Module):
    def __init__(self, d=4, tied=False):
        super().__init__()
        self.q = torch.nn.Linear(d, d, dtype=D64)
        self.k = self.q if tied else torch.nn.Linear(d, d, dtype=D64)
        self.v = self.q if tied else torch.nn.Linear(d, d, dtype=D64)
        self.bias = torch.nn.Parameter(torch.zeros(6, 6, dtype=D64))
        self.drop = torch.nn.Dropout(0.0)

    def forward(self, x):
        s = self.q(x) @ self.k(x).mT + self.bias
        return x + self.drop(F.silu(s)) @ self.v(x)


class _Stack(torch.nn.Module):
    def __init__(self, layer, times):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        for _ in range(self.times):
            x = self.layer(x)
        return x


CASES.append((_Stack(_Layer(), 3), lambda: (T(2, 6, 4),)))
CASES.append((_Stack(_Layer(tied=True), 2), lambda: (T(2, 6, 4),)))
CASES.append((_Stack(_Layer(tied=True), 1).eval(), lambda: (T(2, 6, 4),)))


class _Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6, dtype=D64)

    def forward(self, q, k, v):
        s = q @ k.mT
        return F.silu(self.norm(s)) @ v


CASES.append((_Norm(), lambda: tuple(T(2, 6, 4) for _ in range(3))))


class _NormOperands(_Norm):
    def forward(self, q, k, v):
        return (
            F.silu(self.norm(q) @ self.norm(k).mT) @ self.norm(v) + self.norm.running_mean[:, None]
        )


CASES.append((_NormOperands(), lambda: tuple(T(2, 6, 4) for _ in range(3))))


class _MaskBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.bool).tril())
        self.slopes = torch.nn.Parameter(torch.randn(2, 1, 1, dtype=D64))

    def forward(self, q, k, v):
        n = q.shape[2]
        s = q @ k.mT + self.slopes * (torch.arange(n)[:, None] - torch.arange(n))
        s = s.masked_fill(~self.mask[:n, :n], 0)
        with torch.no_grad():
            self.mask.logical_not_()
        return F.silu(s) @ v


CASES.append((_MaskBuffer(), square()))


class _Depth(torch.nn.Module):
    def forward(self, q, k, v):
        if self.training and torch.rand(1).item() < -1:
            return v
        return F.silu(q @ k.mT) @ v


CASES.append((_Depth(), square()))


# 10. Jagged rows


def _off(*lengths, dtype=torch.int64):
    return lambda: torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=dtype)


def _values(total=9, h=2, d=4):
    return lambda: tuple(T(total, h, d) for _ in range(3))


def _pad(x, offsets, n):
    return torch.ops.gdpa.jagged_to_padded_dense(x, offsets, n)


def _unpad(x, offsets, total):
    return torch.ops.gdpa.dense_to_jagged(x, offsets, total)


def _jag(name, f, *makers, before=None, total=9):
    f.__name__ = "jagged_" + name
    CASES.append(
        ((f, before) if before else f, plus(_values(total), *(makers or (_off(3, 0, 4, 2),))))
    )


def _attend(q, k, v, o, act=F.silu, n=5, o2=None, o3=None, total=None):
    a, b, c = (
        _pad(x, p, n).transpose(1, 2)
        for x, p in zip((q, k, v), (o, o2 if o2 is not None else o, o2 if o2 is not None else o))
    )
    s = act(a @ b.mT) @ c
    return _unpad(
        s.transpose(1, 2), o3 if o3 is not None else o, q.shape[0] if total is None else total
    )


_jag("plain", lambda q, k, v, o: _attend(q, k, v, o))
_jag("cut", lambda q, k, v, o: _attend(q, k, v, o, n=3))
_jag("cut_to_one", lambda q, k, v, o: _attend(q, k, v, o, n=1))
_jag("long", lambda q, k, v, o: _attend(q, k, v, o, n=12))
_jag("sigmoid", lambda q, k, v, o: _attend(q, k, v, o, act=torch.sigmoid))
_jag("exp", lambda q, k, v, o: _attend(q, k, v, o, act=torch.exp))
_jag("reciprocal", lambda q, k, v, o: _attend(q, k, v, o, act=lambda s: 1 / (s * s + 1)))
_jag("log", lambda q, k, v, o: _attend(q, k, v, o, act=lambda s: torch.log(s.abs() + 1)))
_jag("abs_sqrt", lambda q, k, v, o: _attend(q, k, v, o, act=lambda s: (s.abs() + 1e-6).sqrt()))
_jag("offsets_begin_late", lambda q, k, v, o: _attend(q, k, v, o + 1), _off(3, 0, 2, 2))
_jag("rows_behind_the_last", lambda q, k, v, o: _attend(q, k, v, o), _off(2, 0, 2, 2))
_jag("offsets_fall", lambda q, k, v, o: _attend(q, k, v, o), lambda: torch.tensor([0, 5, 3, 9]))
_jag("offsets_overlap", lambda q, k, v, o: _attend(q, k, v, o), lambda: torch.tensor([0, 6, 4, 9]))
_jag("offsets_int32", lambda q, k, v, o: _attend(q, k, v, o), _off(3, 0, 4, 2, dtype=torch.int32))
_jag("all_empty", lambda q, k, v, o: _attend(q, k, v, o), _off(0, 0, 0))
_jag(
    "two_offsets_alike",
    lambda q, k, v, o, p: _attend(q, k, v, o, o2=p),
    _off(3, 0, 4, 2),
    _off(3, 0, 4, 2),
)
_jag(
    "two_offsets_differ",
    lambda q, k, v, o, p: _attend(q, k, v, o, o2=p),
    _off(3, 0, 4, 2),
    _off(1, 4, 2, 2),
)
_jag(
    "unpadded_by_others",
    lambda q, k, v, o, p: _attend(q, k, v, o, o3=p),
    _off(3, 0, 4, 2),
    _off(1, 4, 2, 2),
)
_jag("unpadded_longer", lambda q, k, v, o: _attend(q, k, v, o, total=12))
_jag("unpadded_shorter", lambda q, k, v, o: _attend(q, k, v, o, total=7))
_jag("offsets_cloned", lambda q, k, v, o: _attend(q, k, v, o.clone(), o2=o.int(), o3=o + 0))
_jag(
    "offsets_of_lengths",
    lambda q, k, v, l: _attend(
        q,
        k,
        v,
        F.pad(l.cumsum(0), (1, 0)),
        o2=torch.cat([torch.zeros(1, dtype=l.dtype), l.cumsum(0)]),
    ),
    lambda: torch.tensor([3, 0, 4, 2]),
)
_jag(
    "offsets_of_lengths_padded_with_one",
    lambda q, k, v, l: _attend(q, k, v, F.pad(l.cumsum(0), (1, 0), value=1)),
    lambda: torch.tensor([3, 0, 4, 2]),
)
_jag(
    "offsets_of_two_lengths",
    lambda q, k, v, l, m: _attend(
        q, k, v, F.pad(l.cumsum(0), (1, 0)), o2=F.pad(m.cumsum(0), (1, 0))
    ),
    lambda: torch.tensor([3, 0, 4, 2]),
    lambda: torch.tensor([1, 4, 2, 2]),
)
_jag(
    "offsets_after_zero_written",
    lambda q, k, v, l: _attend(
        q,
        k,
        v,
        torch.cat([torch.zeros(1, dtype=l.dtype).add_(1), l.cumsum(0)]),
        o2=F.pad(l.cumsum(0), (1, 0)),
    ),
    lambda: torch.tensor([3, 0, 4, 2]),
)


def _lengths_changed(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    l.copy_(torch.tensor([1, 4, 2, 2]))
    return _attend(q, k, v, o, o2=F.pad(l.cumsum(0), (1, 0)))


_jag("lengths_changed", _lengths_changed, lambda: torch.tensor([3, 0, 4, 2]))


def _masked_by_lengths(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < l[:, None]
    s = F.silu(a @ b.mT) * m[:, None, None] * m[:, None, :, None]
    return _unpad((s @ c).transpose(1, 2), o, q.shape[0])


_jag("masked_by_lengths", _masked_by_lengths, lambda: torch.tensor([3, 0, 4, 2]))


def _masked_by_wrong_lengths(q, k, v, l):
    o = F.pad(l.cumsum(0), (1, 0))
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < (l - 1)[:, None]
    s = F.silu(a @ b.mT) * m[:, None, None] * m.flip(0)[:, None, :, None]
    return _unpad((s @ c).transpose(1, 2), o, q.shape[0])


_jag("masked_by_other_lengths", _masked_by_wrong_lengths, lambda: torch.tensor([3, 0, 4, 2]))


def _masked_by_offsets(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < (o[1:] - o[:-1])[:, None]
    s = torch.where(m[:, None, None], F.silu(a @ b.mT), 7.0)
    return _unpad((s @ c).transpose(1, 2), o, q.shape[0])


_jag("masked_by_offsets_else_seven", _masked_by_offsets)


def _masked_by_offsets_swapped(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < (o[:-1] - o[1:]).neg()[:, None]
    s = torch.where(m[:, None, None], 7.0, F.silu(a @ b.mT))
    return _unpad((s @ c).transpose(1, 2), o, q.shape[0])


_jag("masked_where_it_is", _masked_by_offsets_swapped)


def _masked_by_diff(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    m = torch.arange(5) < o.diff().to(torch.int8)[:, None]
    s = F.silu(a @ b.mT) * m[:, None, None] + 1
    return _unpad((s @ c).transpose(1, 2), o, q.shape[0])


_jag("masked_by_diff", _masked_by_diff)


def _causal(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return _unpad((F.silu(a @ b.mT).tril() @ c).transpose(1, 2), o, q.shape[0])


_jag("causal", _causal)


def _bias_dense(q, k, v, o, w):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return _unpad((F.silu(a @ b.mT + w) @ c).transpose(1, 2), o, q.shape[0])


_jag("bias_dense", _bias_dense, _off(3, 0, 4, 2), lambda: T(5, 5))
_jag("bias_dense_batch", _bias_dense, _off(3, 0, 4, 2), lambda: T(4, 1, 5, 5))
_jag(
    "bias_infinite",
    lambda q, k, v, o, w: _bias_dense(q, k, v, o, w + w.detach().sign() * 0),
    _off(3, 0, 4, 2),
    lambda: T(5, 5),
)


def _bias_jagged(q, k, v, o, w):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    p = _pad(w, o, 5)
    return _unpad(
        (F.silu(a @ b.mT + p[:, None, :, None] + p[:, None, None]) @ c).transpose(1, 2),
        o,
        q.shape[0],
    )


_jag("bias_of_tokens", _bias_jagged, _off(3, 0, 4, 2), lambda: T(9))


def _bias_jagged_functions(q, k, v, o, w):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    p = _pad(w, o, 5).cos()
    r = _pad(w.sin(), o, 5)
    return _unpad(
        (F.silu(a @ b.mT / (r[:, None, :, None] + 2) + p[:, None, None]) @ c).transpose(1, 2),
        o,
        q.shape[0],
    )


_jag("bias_of_tokens_through_functions", _bias_jagged_functions, _off(3, 0, 4, 2), lambda: T(9))


def _bias_divides(q, k, v, o, w):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    p = _pad(w, o, 5)
    return _unpad((F.silu(a @ b.mT / p[:, None, :, None]) @ c).transpose(1, 2), o, q.shape[0])


_jag("tokens_divide_rows", _bias_divides, _off(3, 0, 4, 2), lambda: T(9))


def _bias_other_offsets(q, k, v, o, w, p):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    w = _pad(w, p, 5)
    return _unpad((F.silu(a @ b.mT + w[:, None, None]) @ c).transpose(1, 2), o, q.shape[0])


_jag("bias_by_other_offsets", _bias_other_offsets, _off(3, 0, 4, 2), lambda: T(9), _off(1, 4, 2, 2))


def _bias_longer(q, k, v, o, w):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    w = _pad(w, o, 5)
    return _unpad((F.silu(a @ b.mT + w[:, None, None]) @ c).transpose(1, 2), o, q.shape[0])


_jag("bias_of_more_values", _bias_longer, _off(3, 0, 4, 2), lambda: T(12))


def _output_used_padded(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT) @ c
    return _unpad(s.transpose(1, 2), o, q.shape[0]), s.sum()


_jag("output_used_padded", _output_used_padded)


def _output_padded_only(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return torch.sigmoid(a @ b.mT + 1) @ c


_jag("output_padded_only", _output_padded_only)


def _value_plus_one(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return _unpad((torch.sigmoid(a @ b.mT) @ (c + 1)).transpose(1, 2), o, q.shape[0])


_jag("value_plus_one_after_padding", _value_plus_one)


def _value_doubled(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return _unpad((torch.sigmoid(a @ b.mT) @ (c * 2)).transpose(1, 2), o, q.shape[0])


_jag("value_doubled_after_padding", _value_doubled)


def _padded_written(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    c = c.clone()
    c[:, :, 4] = 3.0
    return _unpad((torch.sigmoid(a @ b.mT) @ c).transpose(1, 2), o, q.shape[0])


_jag("padded_value_written", _padded_written)


def _values_written(q, k, v, o):
    v = v * 1
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT)
    v.mul_(3)
    return _unpad((s @ c).transpose(1, 2), o, q.shape[0]) + v.sum()


_jag("values_written_between", _values_written)


def _offsets_written(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    s = torch.sigmoid(a @ b.mT) @ c
    p = o.clone()
    p[1] = 2
    return _unpad(s.transpose(1, 2), p, q.shape[0])


_jag("offsets_copied_and_written", _offsets_written)


def _seeds(q, k, v, o, seeds):
    b, c = (_pad(x, o, 5).transpose(1, 2) for x in (k, v))
    return torch.sigmoid(seeds @ b.mT) @ c


_jag("seeds", _seeds, _off(3, 0, 4, 2), lambda: T(2, 3, 4))


def _dense_keys(q, k, v, o, keys):
    a = _pad(q, o, 5).transpose(1, 2)
    return _unpad((torch.sigmoid(a @ keys.mT) @ keys).transpose(1, 2), o, q.shape[0])


_jag("dense_keys", _dense_keys, _off(3, 0, 4, 2), lambda: T(4, 2, 6, 4))
_jag("dense_keys_shared", _dense_keys, _off(3, 0, 4, 2), lambda: T(1, 2, 6, 4))


def _keys_are_the_batch(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))  # [B, H, N, D]
    a, b, c = (x.permute(2, 1, 0, 3) for x in (a, b, c))  # attends over samples
    return _unpad((torch.sigmoid(a @ b.mT) @ c).permute(2, 0, 1, 3), o, q.shape[0])


_jag("attends_over_samples", _keys_are_the_batch)


def _heads_are_rows(q, k, v, o):
    a, b, c = (_pad(x, o, 5) for x in (q, k, v))  # [B, N, H, D]: attends over heads
    return _unpad(torch.sigmoid(a @ b.mT) @ c, o, q.shape[0])


_jag("attends_over_heads", _heads_are_rows)


def _two_layers(q, k, v, o):
    x = _attend(q, k, v, o)
    return _attend(x, x, v, o) + _attend(x, k, x, o)


_jag("two_layers", _two_layers)


def _under_no_grad(q, k, v, o):
    with torch.no_grad():
        a = _pad(q, o, 5).transpose(1, 2)
    b, c = (_pad(x, o, 5).transpose(1, 2) for x in (k, v))
    return _unpad((torch.sigmoid(a @ b.mT) @ c).transpose(1, 2), o, q.shape[0])


_jag("query_padded_without_gradient", _under_no_grad)


def _detached_pad(q, k, v, o):
    a, b, c = (_pad(x, o, 5).transpose(1, 2) for x in (q, k, v))
    return _unpad((torch.sigmoid(a.detach() @ b.mT) @ c).transpose(1, 2), o, q.shape[0])


_jag("query_detached_after_padding", _detached_pad)


class _PadAten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o, n, fill):
        ctx.save_for_backward(o)
        ctx.total = x.shape[0]
        return torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [n], fill)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._padded_dense_to_jagged_forward(g.contiguous(), [o], ctx.total),
            None,
            None,
            None,
        )


class _PadAtenDouble(_PadAten):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._padded_dense_to_jagged_forward(g.contiguous() * 2, [o], ctx.total),
            None,
            None,
            None,
        )


class _UnpadAten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o, total):
        ctx.save_for_backward(o)
        ctx.n = x.shape[1]
        return torch.ops.aten._padded_dense_to_jagged_forward(x, [o], total)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._jagged_to_padded_dense_forward(g.contiguous(), [o], [ctx.n], 0.0),
            None,
            None,
        )


class _UnpadAtenOnes(_UnpadAten):
    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return (
            torch.ops.aten._jagged_to_padded_dense_forward(g.contiguous(), [o], [ctx.n], 1.0),
            None,
            None,
        )


def _aten(pad, unpad, fills=(0.0, 0.0, 0.0)):
    def program(q, k, v, o):
        a, b, c = (
            pad.apply(x.flatten(1), o, 5, f).view(4, 5, 2, 4).transpose(1, 2)
            for x, f in zip((q, k, v), fills)
        )
        s = torch.sigmoid(a @ b.mT) @ c
        return unpad.apply(s.transpose(1, 2).reshape(4, 5, 8), o, q.shape[0])

    return program


_jag("aten", _aten(_PadAten, _UnpadAten))
_jag("aten_double_gradient", _aten(_PadAtenDouble, _UnpadAten))
_jag("aten_unpad_pads_ones", _aten(_PadAten, _UnpadAtenOnes))
_jag("aten_query_of_ones", _aten(_PadAten, _UnpadAten, (1.0, 0.5, 0.0)))
_jag("aten_value_of_ones", _aten(_PadAten, _UnpadAten, (0.0, 0.0, 1.0)))
_jag("aten_query_infinite", _aten(_PadAten, _UnpadAten, (INF, 0.0, 0.0)))
_jag("aten_key_of_minus_two", _aten(_PadAten, _UnpadAten, (0.0, -2.0, 0.0)))
_jag("aten_value_minus_zero", _aten(_PadAten, _UnpadAten, (0.0, 0.0, -0.0)))


def _change_offsets(q, k, v, o, *more):
    o.data.copy_(torch.tensor([0, 1, 5, 7, 9]))


_jag(
    "caller_changes_offsets_data",
    lambda q, k, v, o: _attend(q, k, v, o),
    _off(3, 0, 4, 2),
    before=_change_offsets,
)


def _nested(q, k, v, o):
    a, b, c = (torch.nested.nested_tensor_from_jagged(x, o) for x in (q, k, v))
    a, b, c = (x.to_padded_tensor(0.0).transpose(1, 2) for x in (a, b, c))
    return torch.sigmoid(a @ b.mT) @ c


_jag("nested_padded", _nested)


def _nested_fill(q, k, v, o):
    a, b, c = (torch.nested.nested_tensor_from_jagged(x, o) for x in (q, k, v))
    a, b, c = (x.to_padded_tensor(f).transpose(1, 2) for x, f in ((a, 0.0), (b, 1.0), (c, 0.5)))
    return torch.sigmoid(a @ b.mT) @ c


_jag("nested_padded_with_a_half", _nested_fill)


def _nested_different(q, k, v, o, p):
    a = torch.nested.nested_tensor_from_jagged(q, o)
    b, c = (torch.nested.nested_tensor_from_jagged(x, p) for x in (k, v))
    a, b, c = (x.to_padded_tensor(0.0).transpose(1, 2) for x in (a, b, c))
    return F.relu(a @ b.mT) @ c


_jag("nested_of_two_offsets", _nested_different, _off(3, 0, 4, 2), _off(1, 4, 2, 2))


# 11. Left-overs: factories, sizes, numbers, closures, several outputs


@case(ikv())
def factory_of_scores(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, s.new_zeros(3), s.new_full((2, 2), 4), s.new_ones(s.shape)


@case(ikv())
def factory_used_inside_and_returned(q, k, v):
    s = q @ k.mT
    m = s.new_ones(5, 7).tril()
    one = s.new_ones(())
    return (F.silu(s) * m + one) @ v, m, one


@case(ikv())
def factory_written_inside(q, k, v):
    s = q @ k.mT
    m = s.new_zeros(5, 7)
    m += torch.arange(7)
    return (F.silu(s) * m) @ v, m


@case(ikv())
def factory_of_integer_dtype(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, s.new_zeros(3, dtype=torch.int32), s.new_tensor([1.0, 2.0])


@case(ikv())
def factory_wants_gradient(q, k, v):
    s = q @ k.mT
    bias = s.new_zeros(7, requires_grad=True)
    return F.silu(s + bias) @ v


@case(ikv())
def buffer_from_scores_shape(q, k, v):
    s = q @ k.mT
    mask = torch.zeros(s.shape[-2:], dtype=torch.bool)
    mask[1:3, 2:] = True
    return F.silu(s).masked_fill(mask, 0) @ v, mask


@case(plus(ikv(), lambda: 0.5, lambda: 3))
def python_numbers(q, k, v, scale, n):
    return F.silu(q @ k.mT * scale + n) @ v / n


@case(plus(ikv(), lambda: torch.tensor(2.0, dtype=D64)))
def number_by_item(q, k, v, scale):
    return F.silu(q @ k.mT * scale.item()) @ v


@case(plus(ikv(), lambda: torch.tensor(2.0, dtype=D64)))
def number_by_item_then_written(q, k, v, scale):
    x = scale.item()
    s = q @ k.mT
    scale.mul_(3)
    return F.silu(s * x) @ v


@case(ikv())
def closure_and_partial(q, k, v):
    import functools

    def act(slope, s):
        return torch.where(s > 0, s, slope * s)

    return functools.partial(act, 0.1)(q @ k.mT) @ v


@case(ikv())
def ternary_quantisation(q, k, v):
    s = q @ k.mT
    t = torch.where(s > 1, 1.0, torch.where(s < -1, -1.0, 0.0)).to(s.dtype)
    return (t + s - s.detach()) @ v


@case(ikv())
def gumbel_like_hard(q, k, v):
    s = torch.sigmoid(q @ k.mT)
    hard = (s > 0.5).to(s.dtype)
    return (hard - s.detach() + s) @ v


@case(ikv())
def gradient_scaled(q, k, v):
    s = q @ k.mT
    s = s.detach() * 0.9 + s * 0.1
    return F.silu(s) @ v


@case(ikv())
def sum_of_two_attentions(q, k, v):
    return F.silu(q @ k.mT) @ v + F.relu(q @ k.mT) @ v


@case(ikv())
def one_scores_two_attentions(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v - F.relu(-s) @ v


@case(ikv())
def difference_of_weights(q, k, v):
    s = q @ k.mT
    return (F.silu(s) - 0.5 * F.relu(k @ q.mT).mT) @ v


@case(square())
def rectified_linear_recurrence(q, k, v):
    a = (q @ k.mT).tril(-1)
    return torch.linalg.solve_triangular(torch.eye(6, dtype=q.dtype) + a, v, upper=False)


@case(square())
def delta_rule(q, k, v):
    kk = (k @ k.mT).tril(-1)
    u = v - kk @ v
    return (q @ k.mT).tril() @ u


@case(square())
def retention(q, k, v):
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    decay = torch.where(i >= j, 0.9 ** (i - j).double(), 0.0)
    return (q @ k.mT * decay) @ v


@case(square())
def retention_learned(q, k, v):
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    gamma = torch.sigmoid(v.mean((0, 2, 3)))[:, None, None]
    return (q @ k.mT * torch.where(i >= j, gamma ** (i - j), 0.0)) @ v


@case(square())
def retention_log_cumsum(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    d = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    return (q @ k.mT * d) @ v


@case(square())
def retention_log_masked(q, k, v):
    g = F.logsigmoid(v.mean(-1)).cumsum(-1)
    m = torch.ones(6, 6, dtype=torch.bool).tril()
    d = (g[..., :, None] - g[..., None, :]).masked_fill(~m, -INF).exp()
    return (q @ k.mT * d) @ v


@case(square())
def linear_attention_two_ways(q, k, v):
    return (q @ k.mT).tril() @ v + q @ (k.mT @ v)


@case(square())
def gau(q, k, v):
    s = F.relu(q @ k.mT / 6) ** 2
    return v * (s @ v)


@case(square())
def hstu(q, k, v):
    s = F.silu(torch.einsum("bhid,bhjd->bhij", q, k)) / 6
    s = s.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), 0)
    o = torch.einsum("bhij,bhjd->bihd", s, v).reshape(2, 6, 8)
    return F.layer_norm(o, (8,)) * q.transpose(1, 2).reshape(2, 6, 8)


@case(square())
def sparsemax_like(q, k, v):
    s = q @ k.mT
    tau = (s.detach().sort(-1).values.cumsum(-1)[..., -1:] - 1) / 6
    return F.relu(s - tau) @ v


@case(square())
def normalised_by_row_sum_after(q, k, v):
    w = F.relu(q @ k.mT)
    return (w @ v) / (w.sum(-1, keepdim=True) + 1)


@case(square())
def normalised_by_ones_column(q, k, v):
    w = F.relu(q @ k.mT)
    o = w @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return o[..., :-1] / (o[..., -1:] + 1)


@case(square())
def window_by_roll(q, k, v):
    out = 0
    for shift in (0, 1, 2):
        out = out + F.relu((q * k.roll(shift, 2)).sum(-1, keepdim=True)) * v.roll(shift, 2)
    return out


@case(square())
def second_product_by_linear(q, k, v):
    return F.linear(F.relu(q @ k.mT)[0, 0], v[0, 0].T)


@case(square())
def second_product_sliced(q, k, v):
    return (F.relu(q @ k.mT) @ v)[:, :, 1:3]


@case(square())
def batch_of_scores_sliced(q, k, v):
    return F.relu(q @ k.mT)[1:] @ v[1:]


@case(square())
def head_of_scores_selected(q, k, v):
    return F.relu(q @ k.mT)[:, 0] @ v[:, 1]


@case(square())
def head_of_scores_expanded(q, k, v):
    return F.relu(q[:, :1] @ k[:, :1].mT).expand(2, 2, 6, 6) @ v


@case(square())
def weights_expanded_over_new_dim(q, k, v):
    return F.relu(q @ k.mT)[:, :, None].expand(2, 2, 3, 6, 6) @ v[:, :, None]


@case(square())
def weights_repeated_heads(q, k, v):
    return F.relu(q[:, :1] @ k[:, :1].mT).repeat(1, 2, 1, 1) @ v


@case(square())
def weights_interleaved_heads(q, k, v):
    return F.relu(q[:, :1] @ k[:, :1].mT).repeat_interleave(2, 1) @ v


@case(square())
def output_written_into_query(q, k, v):
    p = q.clone()
    p.copy_(F.relu(q @ k.mT) @ v)
    return p


@case(square())
def output_added_to_its_query(q, k, v):
    p = q * 1
    p += F.sigmoid(p @ k.mT) @ v
    return p


@case(lambda: tuple(torch.randn(2, 2, 6, 4, dtype=D64) for _ in range(3)))
def output_overwrites_the_input(q, k, v):
    q.copy_(F.sigmoid(q @ k.mT) @ v)
    return q * 1


@case(lambda: tuple(torch.randn(2, 2, 6, 4, dtype=D64) for _ in range(3)))
def out_argument(q, k, v):
    out = torch.empty(2, 2, 6, 4, dtype=D64)
    torch.matmul(F.sigmoid(q @ k.mT), v, out=out)
    return out


@case(lambda: tuple(torch.randn(2, 2, 6, 4, dtype=D64) for _ in range(3)))
def out_argument_of_scores(q, k, v):
    out = torch.empty(2, 2, 6, 6, dtype=D64)
    torch.matmul(q, k.mT, out=out)
    torch.sigmoid(out, out=out)
    return out @ v


@case(lambda: tuple(torch.randn(2, 2, 6, 4, dtype=D64) for _ in range(3)))
def out_is_the_value(q, k, v):
    torch.matmul(F.sigmoid(q @ k.mT), v.clone(), out=v)
    return v + 0


@case(lambda: (torch.randn(2, 2, 6, 4, dtype=D64),) * 3)
def one_input_given_thrice(q, k, v):
    q.mul_(2)
    return F.sigmoid(q @ k.mT) @ v


def _views_of_one():
    x = torch.randn(3, 2, 2, 6, 4, dtype=D64)
    return x, x[0], x[1]


@case(_views_of_one)
def inputs_are_views_of_one(x, q, k):
    s = F.sigmoid(q @ k.mT)
    x[2].mul_(2)
    return s @ x[2]


@case(_views_of_one)
def inputs_are_views_of_one_written(x, q, k):
    s = q @ k.mT
    x.mul_(2)
    return F.sigmoid(s) @ k


# 12. Scores that are NaN, infinite, huge, tiny or minus zero

_SPECIAL = [
    float("nan"),
    INF,
    -INF,
    1e200,
    -1e200,
    1e-310,
    -1e-310,
    0.0,
    -0.0,
    700.0,
    -700.0,
    1e16,
    0.5,
    -0.5,
    3.0,
    -3.0,
    88.0,
    20.0,
]


def special():
    q = torch.tensor(_SPECIAL, dtype=D64)[None, :, None].requires_grad_()
    return q, torch.ones(1, 2, 1, dtype=D64).requires_grad_(), T(1, 2, 3)


def special32():
    q = torch.tensor(
        [x if abs(x) < 1e38 else math.copysign(1e38, x) if abs(x) < INF else x for x in _SPECIAL],
        dtype=torch.float32,
    )
    return (
        q[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1).requires_grad_(),
        T(1, 2, 3, dtype=torch.float32),
    )


_QUIET = {"nan_to_int", "floordiv_op", "heaviside_"}


def _special(name, f):
    def program(q, k, v):
        return f(q @ k.mT) @ v

    program.__name__ = "special_" + name
    return program


for _name, _f in ACTS.items():
    if _name not in _QUIET:
        CASES.append((_special(_name, _f), special))

for _name in (
    "gelu_tanh_",
    "softplus_threshold",
    "logsigmoid_",
    "mish_",
    "elu_negative_alpha",
    "hardswish_kinks",
    "softcap",
    "expm1_",
    "pow_negative_base_3",
    "lerp_half",
    "neg_inf_fill_silu",
    "huge_const",
    "rational",
    "addcmul_",
    "nan_to_num_all",
):
    CASES.append((_special(_name + "_32", ACTS[_name]), special32))


# 13. Products of several dims, grids of keys, einsums of more than two


@case(lambda: (T(2, 3, 2, 4), T(2, 5, 4), T(2, 5, 3)))
def rows_in_a_grid(q, k, v):
    s = torch.einsum("bxyd,bmd->bxym", q, k)
    s = s * (torch.arange(3)[:, None, None] + torch.arange(2)[:, None] >= torch.arange(5))
    return torch.einsum("bxym,bmc->bxyc", s.sigmoid(), v)


@case(lambda: (T(2, 5, 4), T(2, 3, 2, 4), T(2, 3, 2, 3)))
def keys_in_a_grid(q, k, v):
    s = torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid()
    return torch.einsum("bnxy,bxyc->bnc", s, v)


@case(lambda: (T(2, 5, 4), T(2, 3, 2, 4), T(2, 3, 2, 3), T(5, 3, 1), T(3, 2)))
def keys_in_a_grid_with_biases(q, k, v, a, b):
    s = torch.einsum("bnd,bxyd->bnxy", q, k) + a + b
    return torch.einsum("bnxy,bxyc->bnc", s.sigmoid(), v)


@case(lambda: (T(2, 5, 4), T(2, 3, 2, 4), T(2, 3, 2, 3)))
def keys_in_a_grid_masked(q, k, v):
    s = torch.einsum("bnd,bxyd->bnxy", q, k) * (torch.arange(3)[:, None] > torch.arange(2))
    return torch.einsum("bnxy,bxyc->bnc", s.sigmoid(), v)


@case(lambda: (T(2, 5, 4), T(2, 3, 2, 4), T(2, 2, 3, 3)))
def keys_in_a_grid_transposed_values(q, k, v):
    s = torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid()
    return torch.einsum("bnxy,byxc->bnc", s, v)


@case(lambda: (T(2, 5, 4), T(2, 2, 2, 4), T(2, 2, 2, 3)))
def keys_in_a_square_grid_transposed_values(q, k, v):
    s = torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid()
    return torch.einsum("bnxy,byxc->bnc", s, v)


@case(lambda: (T(2, 5, 4), T(2, 2, 2, 4), T(2, 2, 2, 3)))
def one_dim_of_the_grid_is_summed(q, k, v):
    s = torch.einsum("bnd,bxyd->bnxy", q, k).sigmoid()
    return torch.einsum("bnxy,bxyc->bnxc", s, v)


@case(lambda: (T(2, 4, 4, 4), T(2, 4, 4, 4), T(2, 4, 4, 4)))
def axial_rows(q, k, v):
    s = torch.einsum("bxyd,bxzd->bxyz", q, k).sigmoid()
    return torch.einsum("bxyz,bxzc->bxyc", s, v)


@case(lambda: (T(2, 4, 4, 4), T(2, 4, 4, 4), T(2, 4, 4, 4)))
def axial_columns(q, k, v):
    s = torch.einsum("bxyd,bzyd->bxyz", q, k).sigmoid()
    return torch.einsum("bxyz,bzyc->bxyc", s, v)


@case(lambda: (T(2, 4, 4, 4), T(2, 4, 4, 4), T(2, 4, 4, 4)))
def axial_mixed_up(q, k, v):
    s = torch.einsum("bxyd,bzyd->bxyz", q, k).sigmoid()
    return torch.einsum("bxyz,bxzc->bxyc", s, v)


@case(lambda: (T(2, 4, 4, 4), T(2, 4, 4, 4), T(2, 4, 4, 4)))
def triangle_multiplication(q, k, v):
    s = torch.einsum("bikc,bjkc->bijc", q.sigmoid(), k)
    return torch.einsum("bijc,bjkc->bikc", s.relu(), v)


@case(lambda: (T(2, 1, 5, 4), T(1, 3, 7, 4), T(2, 3, 7, 3)))
def einsum_broadcasts_ones(q, k, v):
    return torch.einsum("bhij,bhjc->bhic", torch.einsum("bhid,bhjd->bhij", q, k).relu(), v)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 1, 7, 3), T(3)))
def einsum_with_scale_operand(q, k, v, w):
    return torch.einsum("bhij,bhjc->bhic", torch.einsum("bhid,bhjd,h->bhij", q, k, w).relu(), v)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 3), T(2, 5)))
def einsum_with_gate_operand(q, k, v, w):
    return torch.einsum("bhij,bhjc,bi->bhic", torch.einsum("bhid,bhjd->bhij", q, k).relu(), v, w)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 3), T(5, 7)))
def einsum_with_mask_operand(q, k, v, w):
    return torch.einsum("bhij,ij,bhjc->bhic", torch.einsum("bhid,bhjd->bhij", q, k).relu(), w, v)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 3), T(5, 7)))
def einsum_of_four(q, k, v, w):
    return torch.einsum("bhid,bhjd,ij,bhjc->bhic", q, k, w, v)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 5, 4), T(2, 3, 5, 3), T(5, 5)))
def einsum_of_four_swapped_mask(q, k, v, w):
    return torch.einsum("bhid,bhjd,ji,bhjc->bhic", q, k, w, v)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 3), T(7)))
def einsum_of_four_key_weights(q, k, v, w):
    return torch.einsum("bhid,bhjd,j,bhjc->bhic", q, k, w, v)


@case(lambda: (T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 3), T(4)))
def einsum_of_four_channel_weights(q, k, v, w):
    return torch.einsum("bhid,bhjd,d,bhjc->bhic", q, k, w, v)


@case(lambda: (T(2, 8, 8, 6),))
def swin_windows(x):
    w = x.view(2, 2, 4, 2, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(8, 16, 6)
    q, k, v = w.chunk(3, -1)
    i = torch.arange(16)
    rel = (i[:, None] // 4 - i // 4 + 3) * 7 + (i[:, None] % 4 - i % 4 + 3)
    s = q @ k.mT - rel.double() / 50
    o = F.relu(s) @ v
    return o.view(2, 2, 2, 4, 4, 2).permute(0, 1, 3, 2, 4, 5).reshape(2, 8, 8, 2)


@case(lambda: (T(2, 8, 12), T(49, 2)))
def swin_table(x, table):
    w = x.view(2, 2, 4, 2, 2, 3).permute(0, 1, 3, 2, 4, 5)
    q = k = v = w.reshape(4, 2, 8, 3)
    i = torch.arange(8)
    rel = (i[:, None] // 4 - i // 4 + 3) * 7 + (i[:, None] % 4 - i % 4 + 3)
    s = q @ k.mT + table[rel].permute(2, 0, 1)
    return F.relu(s) @ v


@case(lambda: (T(8, 4, 4), T(8, 4, 4), T(8, 4, 4), (torch.rand(2, 4, 4) > 0.5)))
def window_masks_per_window(q, k, v, mask):
    s = (q @ k.mT).view(4, 2, 4, 4).masked_fill(mask, -INF).view(8, 4, 4)
    return s.sigmoid() @ v


@case(lambda: (T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 11, 4)))
def relative_by_skewing(q, k, v, e):
    r = q @ e.mT  # [2, 2, 6, 11]
    r = F.pad(r, (0, 1)).flatten(2)
    r = F.pad(r, (0, 5)).view(2, 2, 7, 11)[:, :, :6, 5:]
    return F.silu(q @ k.mT + r) @ v


@case(lambda: (T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 11, 4)))
def relative_by_as_strided(q, k, v, e):
    r = (q @ e.mT).contiguous()
    r = r.as_strided((2, 2, 6, 6), (132, 66, 10, 1), 5)
    return F.silu(q @ k.mT + r) @ v


@case(lambda: (T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 2, 6, 4), T(6, 6, 4)))
def relative_keys_shaw(q, k, v, e):
    return F.silu(q @ k.mT + torch.einsum("bhid,ijd->bhij", q, e)) @ v


@case(lambda: (T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 2, 6, 4), T(6, 6, 4)))
def relative_values_shaw(q, k, v, e):
    w = F.silu(q @ k.mT)
    return w @ v + torch.einsum("bhij,ijd->bhid", w, e)


@case(lambda: (T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 2, 6, 4), T(2, 4), T(2, 4)))
def transformer_xl(q, k, v, u, w):
    return F.silu((q + u[:, None]) @ k.mT + (q + w[:, None]).sum(-1, keepdim=True)) @ v


# 14. Further modes and states


@case(ikv())
def autograd_grad_inside(q, k, v):
    o = F.silu(q @ k.mT) @ v
    if not q.requires_grad:
        return o
    (g,) = torch.autograd.grad(o.sum(), q)
    return o.detach() + g.sum()


@case(ikv())
def autograd_grad_of_scores(q, k, v):
    s = q @ k.mT
    o = F.silu(s) @ v
    if not s.requires_grad:
        return o
    (g,) = torch.autograd.grad(o.sum(), s)
    return o.detach() + g.sum()


@case(plus(ikv(), lambda: torch.zeros(7, dtype=D64)))
def checkpoint_then_bias_written(q, k, v, bias):
    o = checkpoint(
        lambda q, k, v, b: F.relu(q @ k.mT) @ v + b.sum(), q, k, v, bias, use_reentrant=False
    )
    bias.add_(1)
    return o


@case(plus(ikv(), lambda: torch.zeros(7, dtype=D64)))
def checkpoint_of_buffer_update(q, k, v, bias):
    def inner(q, k, v):
        return F.silu(q @ k.mT + bias) @ v

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_with_autocast(q, k, v):
    def inner(q, k, v):
        with torch.autocast("cpu", enabled=False):
            return F.silu(q @ k.mT) @ v

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_nested(q, k, v):
    def inner(q, k, v):
        return checkpoint(lambda q, k, v: F.silu(q @ k.mT) @ v, q, k, v, use_reentrant=False).tanh()

    return checkpoint(inner, q, k, v, use_reentrant=False)


@case(ikv())
def checkpoint_detached_query(q, k, v):
    return checkpoint(lambda q, k, v: F.silu(q.detach() @ k.mT) @ v, q, k, v, use_reentrant=False)


@case(ikv())
def detach_in_place_of_query(q, k, v):
    p = q * 2
    s = p @ k.mT
    p.detach_()
    return F.silu(s) @ v + p.sum()


@case(ikv())
def detach_in_place_of_scores(q, k, v):
    s = q @ k.mT
    s.detach_()
    return F.silu(s) @ v


@case(ikv())
def set_data_of_query(q, k, v):
    p = q.clone()
    s = p @ k.mT
    p.data = k[:, :, :5]
    return F.silu(s) @ v


@case(ikv())
def resized_mask(q, k, v):
    m = torch.ones(3, dtype=q.dtype)
    m = m.new_ones(5, 7)
    m.t_()
    return (F.silu(q @ k.mT) * m.T) @ v


@case(ikv())
def enumerate_over_heads_with_lists(q, k, v):
    out = []
    for a, b, c in zip(q.unbind(1), k.unbind(1), v.unbind(1)):
        out.append(torch.tanh(a @ b.mT) @ c)
    return torch.stack(out[::-1], 1)


@case(ikv())
def accumulated_over_key_blocks(q, k, v):
    o = torch.zeros(2, 2, 5, 3, dtype=q.dtype)
    for j in range(0, 7, 2):
        o = o + F.silu(q @ k[:, :, j : j + 2].mT) @ v[:, :, j : j + 2]
    return o


@case(ikv())
def accumulated_in_place_over_blocks(q, k, v):
    o = torch.zeros(2, 2, 5, 3, dtype=q.dtype)
    for j in range(0, 7, 3):
        o[:, :, : j + 2] += F.silu(q[:, :, : j + 2] @ k[:, :, j : j + 3].mT) @ v[:, :, j : j + 3]
    return o


@case(ikv())
def state_is_carried(q, k, v):
    state = torch.zeros(2, 2, 4, 3, dtype=q.dtype)
    out = []
    for t in range(5):
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        out.append(q[:, :, t, None] @ state)
    return torch.cat(out, 2)


@case(ikv())
def scores_kept_in_dict(q, k, v):
    cache = {}
    cache["s"] = q @ k.mT
    cache["w"] = cache["s"].relu()
    return {"out": cache["w"] @ v, "n": cache["s"].dim()}


@case(ikv())
def output_is_a_view_of_the_result(q, k, v):
    o = F.silu(q @ k.mT) @ v
    return o, o[0], o.mT, o.view(-1)


@case(ikv())
def as_strided_of_the_result(q, k, v):
    o = (F.silu(q @ k.mT) @ v).transpose(1, 2)
    return o.as_strided((3, 4), (4, 1), 2), o.stride(), o.is_contiguous()


@case(
    lambda: tuple(
        torch.randn(2, 5, 2, 4, dtype=D64).transpose(1, 2).detach().requires_grad_()
        for _ in range(3)
    )
)
def as_strided_of_transposed(q, k, v):
    o = F.silu(q @ k.mT) @ v
    return (
        o.as_strided((3, 4), (4, 1), 2),
        o.stride(),
        torch.einsum("bhij,bhjc->bihc", F.silu(q @ k.mT), v).stride(),
    )


@case(
    lambda: tuple(
        torch.randn(2, 5, 2, 4, dtype=D64).transpose(1, 2).detach().requires_grad_()
        for _ in range(3)
    )
)
def view_of_einsum_result(q, k, v):
    o = torch.einsum("bhij,bhjc->bihc", F.silu(torch.einsum("bhid,bhjd->bhij", q, k)), v)
    return o.as_strided((3, 4), (5, 1), 1), o.permute(2, 0, 1, 3).as_strided((2, 2), (3, 1))


@case(ikv())
def contiguous_flag_decides(q, k, v):
    o = F.silu(q @ k.mT) @ v
    t = o.mT
    u = t.contiguous()
    u.mul_(2)
    return o + u.mT, t


@case(square())
def reshape_aliases_the_result(q, k, v):
    o = F.silu(q @ k.mT) @ v
    p = o.reshape(2, 12, 4)
    p += 1
    return o


@case(
    lambda: (
        T(2, 2, 5, 4, dtype=torch.float32),
        T(2, 2, 7, 4, dtype=torch.float32),
        T(2, 2, 7, 3, dtype=torch.float32),
        torch.randint(0, 2**40, (2, 7)),
    )
)
def time_decay_from_nanoseconds(q, k, v, t):
    decay = torch.exp(-(t[:, -1:] - t).float() * 1e-12)[:, None, None]
    return (F.silu(q @ k.mT) * decay) @ v


@case(
    lambda: (
        T(2, 2, 5, 4, dtype=torch.float32),
        T(2, 2, 7, 4, dtype=torch.float32),
        T(2, 2, 7, 3, dtype=torch.float32),
        torch.randint(0, 2**40, (2, 7)),
        torch.randint(0, 2**40, (2, 5)),
    )
)
def time_window_in_floats(q, k, v, t, u):
    near = (u[:, :, None].float() - t[:, None].float()).abs() < 3e11
    same = u[:, :, None].float() // 1e9 == t[:, None].float() // 1e9
    return (F.silu(q @ k.mT) * (near | same)[:, None]) @ v


@case(
    lambda: (
        T(2, 2, 5, 4),
        T(2, 2, 7, 4),
        T(2, 2, 7, 3),
        torch.tensor([3, 5]),
        torch.tensor([1, 2]),
    )
)
def targets_and_context(q, k, v, n, targets):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    last = (n - targets)[:, None, None]
    a, b = torch.minimum(i, last), torch.minimum(j, last)
    m = ((a - b) > 0) | (i == j)
    m = m & (j < n[:, None, None])
    return (F.silu(q @ k.mT) / 7 * m[:, None]) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3, 5])))
def lengths_in_floordiv_of_positions(q, k, v, n):
    m = torch.arange(7) // n[:, None] == 0
    return (F.silu(q @ k.mT) * m[:, None, None]) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3, 5])))
def positions_modulo_period(q, k, v, n):
    i, j = torch.arange(5)[:, None], torch.arange(7)
    m = (i - j) % n[:, None, None] == 0
    return (F.silu(q @ k.mT) * m[:, None]) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3.0, 5.0], dtype=D64)))
def divided_by_lengths(q, k, v, n):
    return (F.silu(q @ k.mT) / n[:, None, None, None]) @ v


@case(lambda: (T(2, 2, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 3), torch.tensor([3, 5])))
def divided_by_integer_lengths(q, k, v, n):
    return (F.silu(q @ k.mT) / n[:, None, None, None]) @ v


# 15. Numbers in fp32 beside scores in fp64, and the other way round

_given_mask(
    "where_of_tenths",
    lambda s, m: s.relu() * torch.where(m, 0.1, 0.2),
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask(
    "where_of_tenth_and_scores", lambda s, m: torch.where(m, s, 0.1), lambda: torch.rand(5, 7) > 0.5
)
_given_mask(
    "full_of_tenths_fp32",
    lambda s, m: s.relu() * torch.full((5, 7), 0.1) * m,
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask(
    "zero_dim_tenth_fp32",
    lambda s, m: s.relu() * torch.tensor(0.1) * m,
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask(
    "mask_float_times_tenth",
    lambda s, m: s.relu() + m.float() * 0.1,
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask("mask_times_tenth", lambda s, m: s.relu() + m * 0.1, lambda: torch.rand(5, 7) > 0.5)
_given_mask("mask_over_three", lambda s, m: s.relu() + m / 3, lambda: torch.rand(5, 7) > 0.5)
_given_mask(
    "mask_in_bf16", lambda s, m: s.relu() + m.bfloat16() * 0.1, lambda: torch.rand(5, 7) > 0.5
)
_given_mask(
    "mask_filled_tenth",
    lambda s, m: s.relu() * torch.ones(5, 7).masked_fill(m, 0.1),
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask(
    "mask_filled_1e40",
    lambda s, m: s.clamp(-1, 1) + torch.zeros(5, 7).masked_fill(m, -3e38) * 2,
    lambda: torch.rand(5, 7) > 0.5,
)
_given_mask(
    "int_above_half",
    lambda s, n: s.relu() * (n > 16777216.5),
    lambda: torch.tensor([16777216, 16777217, 16777218, 16777219, 0, 1, 2]),
)
_given_mask(
    "int_equals_float",
    lambda s, n: s.relu() * (n == 16777216.0),
    lambda: torch.tensor([16777216, 16777217, 16777218, 16777219, 0, 1, 2]),
)
_given_mask(
    "int_equals_fp32_tensor",
    lambda s, n, x: s.relu() * (n == x),
    lambda: torch.tensor([16777216, 16777217, 16777218, 16777219, 0, 1, 2]),
    lambda: torch.tensor([16777216.0] * 7),
)
_given_mask(
    "int_plus_half_above",
    lambda s, n: s.relu() * (n + 0.5 > n),
    lambda: torch.tensor([16777216, 16777217, 16777218, 16777219, 0, 1, 2]),
)
_given_mask(
    "int_as_float_differs",
    lambda s, n: s.relu() * (n.float() - n).abs(),
    lambda: torch.tensor([16777216, 16777217, 16777218, 16777219, 0, 1, 2]),
)
_given_mask(
    "int_as_half_differs",
    lambda s, n: s.relu() * (n.half() == n),
    lambda: torch.tensor([2048, 2049, 70000, 3, 0, 1, 2]),
)
_given_mask(
    "int_divided_in_fp32",
    lambda s, n: s.relu() * (n / 3),
    lambda: torch.tensor([2048, 2049, 70000, 3, 0, 1, 2]),
)
_given_mask(
    "int_root",
    lambda s, n: s.relu() * n.sqrt(),
    lambda: torch.tensor([2048, 2049, 70000, 3, 0, 1, 2]),
)
_given_mask(
    "int_log",
    lambda s, n: s.relu() * torch.log(n + 1),
    lambda: torch.tensor([2048, 2049, 70000, 3, 0, 1, 2]),
)
_given_mask(
    "int_sigmoid", lambda s, n: s.relu() * n.sigmoid(), lambda: torch.tensor([2, 1, 7, 3, 0, 1, 2])
)
_given_mask(
    "int_mean_fp32",
    lambda s, n: s.relu() * n.float().mean(),
    lambda: torch.tensor([2, 1, 7, 3, 0, 1, 2]),
)
_given_mask("fp32_bias_squared", lambda s, a: s.relu() + a * a, lambda: T(7, dtype=torch.float32))
_given_mask(
    "fp32_bias_compared",
    lambda s, a: s.relu() * (a * 3 > a + a + a),
    lambda: T(7, dtype=torch.float32),
)
_given_mask(
    "fp32_bias_times_scores_compared", lambda s, a: s * (s > a), lambda: T(7, dtype=torch.float32)
)
_given_mask(
    "bf16_bias_compared",
    lambda s, a: s * (a > 0.1),
    lambda: torch.full((7,), 0.1, dtype=torch.bfloat16),
)
_given_mask(
    "fp32_compared_with_tenth",
    lambda s, a: s * (a >= 0.1) + (a == 0.1),
    lambda: torch.full((7,), 0.1),
)
_given_mask(
    "fp32_clamped_at_tenth", lambda s, a: s * (a.clamp(max=0.1) == a), lambda: torch.full((7,), 0.1)
)
_given_mask(
    "fp32_exp",
    lambda s, a: s.relu() * a.exp(),
    lambda: T(7, 1, dtype=torch.float32).detach()[:5].clone().requires_grad_(),
)
_given_mask(
    "fp32_exp_of_outer_sum",
    lambda s, a, b: s.relu() * (a[:5, None] - b).exp(),
    lambda: T(7, dtype=torch.float32),
    lambda: T(7, dtype=torch.float32),
)
_given_mask(
    "fp64_outer_difference_floor",
    lambda s, a, b: s.relu() * ((a[:5, None] - b) * 0.1).floor(),
    lambda: I(7, low=-20, high=20),
    lambda: I(7, low=-20, high=20),
)
_given_mask(
    "outer_difference_to_int",
    lambda s, a, b: s.relu() * ((a[:5, None] - b) / 3).long(),
    lambda: I(7, low=-20, high=20),
    lambda: I(7, low=-20, high=20),
)
_given_mask("scores_decide_at_decimal", lambda s: s * (s * 0.1 >= 0.3) + (s / 10 == 0.3) * 5)
_given_mask(
    "scores_decide_by_log",
    lambda s: s * (torch.log2(s.abs()) == 1.0) + (torch.log10(s.abs() * 10) == 1.0),
)
_given_mask(
    "scores_decide_by_pow", lambda s: s * (s**3 == 8) + (s**0.5 == 2) + (s.abs() ** (1 / 3) == 2)
)
_given_mask(
    "scores_decide_by_square_root", lambda s: s * (s.abs().sqrt() * s.abs().sqrt() == s.abs())
)
_given_mask("scores_decide_by_division", lambda s: s * (s / 3 * 3 == s) + (s / 49 * 49 == s))
_given_mask(
    "scores_decide_by_folded_scales",
    lambda s: s * (s * 0.1 * 0.1 == s * 0.1 * 0.1) + (s * 0.1 * 3.0 == s * 0.3),
)
_given_mask("scores_decide_by_two_scales", lambda s: ((s * 0.1) * 0.7 > s * 0.07) * 1.0 + s)
_given_mask("floor_of_folded_scales", lambda s: (s * 0.1 * 10.0).floor() + (s * 0.3 / 0.1).floor())
_given_mask("round_of_tenths", lambda s: (s * 0.5).round() + (s * 2.5 * 0.2).round())
_given_mask("silu_decides", lambda s: (s * torch.sigmoid(s) > 0.5) * 1.0 + F.gelu(s).floor())
_given_mask(
    "gelu_by_hand_decides", lambda s: (0.5 * s * (1 + torch.erf(s / math.sqrt(2))) >= F.gelu(s)) * s
)
_given_mask("mod_of_scores_as_ints", lambda s: (s.long() % 3 == 1) * s)
_given_mask(
    "bias_of_nan",
    lambda s, a: s + a,
    lambda: torch.tensor(
        [float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64
    ).requires_grad_(),
)
_given_mask(
    "bias_of_nan_in_where",
    lambda s, a: torch.where(a > 0, s.relu(), a * s),
    lambda: torch.tensor(
        [float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64
    ).requires_grad_(),
)
_given_mask(
    "bias_of_nan_in_clamp",
    lambda s, a: s.clamp(min=a),
    lambda: torch.tensor(
        [float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64
    ).requires_grad_(),
)
_given_mask(
    "bias_of_nan_in_maximum",
    lambda s, a: torch.maximum(s, a),
    lambda: torch.tensor(
        [float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64
    ).requires_grad_(),
)
_given_mask(
    "bias_of_nan_in_nan_to_num",
    lambda s, a: s * torch.nan_to_num(a, posinf=2.0),
    lambda: torch.tensor(
        [float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64
    ).requires_grad_(),
)
_given_mask(
    "bias_of_nan_in_activation",
    lambda s, a: F.elu(a) * s + F.hardswish(a) + F.hardshrink(a),
    lambda: torch.tensor(
        [float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64
    ).requires_grad_(),
)
_given_mask(
    "elu_of_nan_masked",
    lambda s, a: torch.where(a > -1, F.elu(s + a), 0.0),
    lambda: torch.tensor([float("nan"), INF, -INF, 0.0, -0.0, 1.0, 2.0], dtype=D64),
)
_given_mask(
    "softshrink_of_nan_to_num",
    lambda s, a: F.softshrink(s + a).nan_to_num(1.0, 2.0, 3.0),
    lambda: torch.tensor([float("nan"), 1.0, 0.5, 0.0, -0.0, 1.0, 2.0], dtype=D64).requires_grad_(),
)
_given_mask("sqrt_of_zero_masked", lambda s, a: torch.where(s > 0, s.sqrt(), 0.0) * a, lambda: T(7))
_given_mask(
    "log_of_zero_masked", lambda s, a: torch.where(s != 0, s.abs().log(), 0.0) * a, lambda: T(7)
)
_given_mask("norm_gradient_at_zero", lambda s, a: (s * s).sqrt() * a, lambda: T(7))
_given_mask(
    "divide_zero_by_zero_masked", lambda s, a: (s / s).masked_fill(s == 0, 1.0) * a, lambda: T(7)
)
_given_mask("pow_two_thirds_at_zero", lambda s, a: s.abs().pow(2 / 3) * a, lambda: T(7))
_given_mask("pow_of_integer_tensor", lambda s, a: s**a, lambda: torch.tensor([0, 1, 2, 3, 4, 5, 6]))
_given_mask("pow_of_zero_dim", lambda s, a: s.abs().add(1) ** a, lambda: _sc())
_given_mask("float_exponent_two", lambda s, a: (s**2.0 + s**1 + s**-0.0) * a, lambda: T(7))


# 16. Chains whose products overlap


@case(square())
def three_relus(q, k, v):
    return F.relu(F.relu(F.relu(q @ k.mT) @ v) @ k.mT) @ v


@case(square(n=4))
def weights_times_weights(q, k, v):
    return F.relu(q @ k.mT) @ F.silu(k @ q.mT) @ v


@case(square(n=4))
def both_sides_are_weights(q, k, v):
    return F.relu(q @ k.mT) @ (F.silu(k @ q.mT) @ v)


@case(square(n=4))
def one_output_is_the_next_key(q, k, v):
    k2 = F.relu(q @ k.mT) @ v
    o = F.silu(q @ k2.mT) @ k2
    return o, k2


@case(square(n=4))
def one_output_is_the_next_bias(q, k, v):
    b = F.relu(q @ k.mT) @ v
    return F.silu(q @ k.mT + b) @ v


@case(square(n=4))
def one_output_is_a_mask_and_written(q, k, v):
    b = F.relu(q @ k.mT) @ v
    m = b > 0
    b.mul_(2)
    return (F.silu(q @ k.mT) * m) @ b


@case(square(n=4))
def gate_of_pooled_scores(q, k, v):
    s = q @ k.mT
    g = (q @ k.mT).mean((-1, -2), keepdim=True).sigmoid()
    return F.silu(s * g) @ v


@case(square(n=4))
def gate_of_detached_pooled_scores(q, k, v):
    g = (q.detach() @ k.detach().mT).abs().amax(-1, keepdim=True)
    return F.silu(q @ k.mT / (g + 1)) @ v


@case(square(n=4))
def gram_gate(q, k, v):
    g = (q * k).sum(-1, keepdim=True)
    return (F.silu(q @ k.mT) * (g > 0)) @ v


@case(square(n=4))
def differential_attention(q, k, v):
    a = torch.sigmoid(q[..., :2] @ k[..., :2].mT)
    b = torch.sigmoid(q[..., 2:] @ k[..., 2:].mT)
    return (a - 0.3 * b) @ v


@case(square(n=4))
def differential_attention_apart(q, k, v):
    a = torch.sigmoid(q[..., :2] @ k[..., :2].mT) @ v
    b = torch.sigmoid(q[..., 2:] @ k[..., 2:].mT) @ v
    return a - 0.3 * b


@case(square(n=4))
def dead_attention(q, k, v):
    F.silu(q @ k.mT) @ v
    w = F.relu(q @ k.mT)
    w @ v
    return q + k + v


@case(square(n=4))
def half_dead_attention(q, k, v):
    s = q @ k.mT
    F.silu(s) @ v
    return F.relu(s) @ v


@case(square(n=4))
def asserts_on_scores(q, k, v):
    s = q @ k.mT
    torch._assert(s.shape[-1] == 4, "no")
    return F.silu(s) @ v


@case(square(n=4))
def async_assert_on_scores(q, k, v):
    s = q @ k.mT
    torch._assert_async((s == s).all())
    return F.silu(s) @ v


@case(square(n=4))
def comparison_of_scores_is_returned(q, k, v):
    s = q @ k.mT
    return F.silu(s) @ v, (s > 0).sum(), s.detach().amax()


# 17. Decisions at the last bit: scores that are whole numbers, as those of counts or one-hot keys are


def whole(dtype=D64):
    def make():
        q = torch.arange(-20, 21, dtype=dtype)[None, :, None].requires_grad_()
        return q, torch.ones(1, 2, 1, dtype=dtype).requires_grad_(), T(1, 2, 3, dtype=dtype)

    return make


def _whole(name, f, make=None):
    def program(q, k, v):
        return f(q @ k.mT) @ v

    program.__name__ = "whole_" + name
    CASES.append((program, make or whole()))


_whole("two_scales_meet_a_threshold", lambda s: (s * 0.1 * 0.7 >= 0.21) * s)
_whole(
    "two_scales_meet_a_threshold_fp32", lambda s: (s * 0.1 * 0.7 >= 0.21) * s, whole(torch.float32)
)
_whole("two_scales_in_place", lambda s: torch.where(s.mul_(0.1).mul_(0.7) >= 0.42, s, 0.0))
_whole("two_scales_hard_sigmoid", lambda s: F.relu(s * 0.1 * 0.7 - 0.21).sign() * s)
_whole("two_scales_floor", lambda s: (s * 0.6 * (1 / 3)).floor())
_whole(
    "two_scales_floor_fp32",
    lambda s: (s * 0.6 * (1 / 3)).floor() + (s * 0.1 * 0.7 * 1.0).floor(),
    whole(torch.float32),
)
_whole(
    "two_scales_straight_through",
    lambda s: (s * 0.6 * (1 / 3)).round() + ((s * 0.6 / 3).floor() - s).detach() + s,
)
_whole("two_scales_clamped", lambda s: F.threshold(s * 0.1 * 0.7, 0.21, 0.0))
_whole("two_scales_hardshrink", lambda s: F.hardshrink(s * 0.1 * 0.7, 0.21))
_whole("two_scales_clamp_gradient", lambda s: (s * 0.1 * 0.7).clamp(max=0.21))
_whole("two_scales_relu6_gradient", lambda s: F.hardtanh(s * 0.1 * 0.7, -0.21, 0.21))
_whole("scale_by_head_dim_then_temperature", lambda s: (s * 8**-0.5 * 8**-0.5 >= 0.125 * 3) * s)
_whole("scale_of_baddbmm", lambda s: s)
_whole(
    "hardsigmoid_decides",
    lambda s: (F.hardsigmoid(s) >= 2 / 3) * s + (F.hardsigmoid(s) == 5 / 6) * 3,
)
_whole("hardswish_decides", lambda s: (F.hardswish(s) >= 2 / 3) * s + (F.hardswish(s) == 5 / 3) * 3)
_whole(
    "hardswish_decides_fp32",
    lambda s: (F.hardswish(s) >= 2 / 3) * s + (F.hardswish(s) == 5 / 3) * 3,
    whole(torch.float32),
)
_whole("leaky_decides", lambda s: (F.leaky_relu(s, 0.1) <= -0.3) * s)
_whole("add_alpha_decides", lambda s: (torch.add(s.sign() * 0.6, s, alpha=0.1) >= 0.9) * s)
_whole(
    "addcmul_decides",
    lambda s: (torch.addcmul(s.sign() * 0.6, s, s.sign().abs(), value=0.1) >= 0.9) * s,
)
_whole("rsub_alpha_decides", lambda s: (torch.rsub(s, 0.9, alpha=0.1) <= 0.6) * s)
_whole("silu_by_hand_decides", lambda s: (s * torch.sigmoid(s) == F.silu(s)) * s)
_whole(
    "gelu_by_hand_meets_a_constant",
    lambda s: (
        (0.5 * s * (1 + torch.erf(s / math.sqrt(2))) >= 0.8413447460685429) * s
        + (0.5 * s * (1 + torch.erf(s / math.sqrt(2))) >= 1.9544997361036416) * s
    ),
)
_whole(
    "silu_by_hand_meets_a_constant",
    lambda s: (
        (s * torch.sigmoid(s) >= 0.7310585786300049) * s
        + (s * torch.sigmoid(s) > 1.7615941559557646) * s
    ),
)
_whole(
    "reciprocal_decides",
    lambda s: ((s.abs() + 1).reciprocal() * 3 >= 0.3) * s + (3 / (s.abs() + 1) >= 0.3) * s,
)
_whole(
    "square_decides",
    lambda s: (
        ((s * 0.1).square() >= 0.09) * s
        + ((s * 0.1) ** 2 >= 0.09) * s
        + (s * 0.1 * (s * 0.1) >= 0.09) * s
    ),
)
_whole(
    "cube_decides",
    lambda s: ((s * 0.1) ** 3 >= 0.027) * s + (s * 0.1 * (s * 0.1) * (s * 0.1) >= 0.027) * s,
)
_whole(
    "root_decides",
    lambda s: ((s.abs() * 0.1).sqrt() ** 2 >= 0.3) * s + ((s.abs() * 0.1) ** 0.5 >= 0.3**0.5) * s,
)
_whole(
    "exp2_decides",
    lambda s: (
        (torch.exp2(s * 0.5) >= 2.8284271247461903) * s + (2 ** (s * 0.5) >= 2.8284271247461903) * s
    ),
)
_whole(
    "tanh_of_log",
    lambda s: (
        (torch.tanh(s) >= 0.7615941559557649) * s + (torch.sigmoid(s) >= 0.7310585786300049) * s
    ),
)
_whole("division_then_scale", lambda s: (s / 3 * 0.3 >= 0.1 * 3) * s + (s * 0.3 / 3 >= 0.3) * s)
_whole("neg_of_scales", lambda s: (-(s * 0.1) * 0.7 <= -0.21) * s)
_whole("scale_product_python", lambda s: (s * (0.1 * 0.7) >= 0.21) * s)
_whole(
    "scale_of_int_and_float", lambda s: (s * 3 * 0.1 >= 0.3 * 3) * s + (s * 3.0 * 1.1 >= 9.9) * s
)
_whole("modulo_by_floor", lambda s: s * 0.1 * 0.7 - (s * 0.1 * 0.7 / 0.07).floor() * 0.07)
_whole("lerp_decides", lambda s: (torch.lerp(s, s + 1, 0.3) >= 3.3) * s)
_whole("softshrink_decides", lambda s: (F.softshrink(s * 0.1, 0.2) > 0.1) * s)
_whole(
    "elu_decides",
    lambda s: (F.elu(s) <= math.expm1(-1)) * s + (F.celu(s, 3.0) <= 3 * math.expm1(-1)) * s,
)
_whole("selu_decides", lambda s: (F.selu(s) >= 3 * 1.0507009873554805) * s)
_whole("softplus_decides", lambda s: (F.softplus(s, 2.0) >= math.log1p(math.exp(2.0)) / 2) * s)


@case(
    lambda: (
        torch.arange(-20, 21, dtype=D64)[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1, dtype=D64),
        T(1, 2, 3),
        torch.tensor([0.6, 0.3], dtype=D64),
    )
)
def whole_baddbmm_decides(q, k, v, b):
    s = torch.baddbmm(b.expand(1, 41, 2), q, k.mT, alpha=0.1)
    return ((s >= 0.9) * s + (s > 0.3) * 2) @ v


@case(
    lambda: (
        torch.arange(-20, 21, dtype=D64)[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1, dtype=D64),
        T(1, 2, 3),
    )
)
def whole_baddbmm_two_scales(q, k, v):
    s = torch.baddbmm(torch.zeros(1, 1, 1, dtype=D64), q, k.mT, alpha=0.1, beta=0) * 0.7
    return ((s >= 0.21) * s) @ v


@case(
    lambda: (
        torch.randint(0, 2, (2, 2, 64, 32)).float(),
        torch.randint(0, 2, (2, 2, 64, 32)).float(),
        T(2, 2, 64, 32, dtype=torch.float32),
    )
)
def binary_codes_with_two_scales(q, k, v):
    s = q @ k.mT * 32**-0.5
    s = s * 0.7
    return (s >= 9 * 32**-0.5 * 0.7).float() @ v


@case(
    lambda: (
        torch.randint(0, 2, (2, 2, 16, 8)).double(),
        torch.randint(0, 2, (2, 2, 16, 8)).double(),
        T(2, 2, 16, 8),
    )
)
def binary_codes_quantised(q, k, v):
    s = q @ k.mT * 0.6 * (1 / 3)
    return (s + (s.floor() - s).detach()) @ v


for _name, _f in {
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
    "hardtanh_nan": lambda s: F.hardtanh(s),
    "prelu_nan": lambda s: F.prelu(s, torch.tensor([0.1], dtype=s.dtype)),
    "lerp_inf": lambda s: torch.lerp(s, -s, 0.7),
    "round_inf": lambda s: torch.round(s) + torch.trunc(s) + torch.ceil(s),
}.items():
    CASES.append((_special(_name, _f), special))


# 18. The same in 16 bits, and powers of two


def whole16(dtype):
    def make():
        q = torch.arange(-20, 21).to(dtype)[None, :, None].requires_grad_()
        return q, torch.ones(1, 2, 1, dtype=dtype).requires_grad_(), T(1, 2, 3, dtype=dtype)

    return make


for _dtype in (torch.bfloat16, torch.float16):
    _end = "_" + str(_dtype)[6:]
    _whole("scale_meets_a_decimal" + _end, lambda s: (s * 0.1 >= 0.3) * s, whole16(_dtype))
    _whole("division_meets_a_decimal" + _end, lambda s: (s / 10 >= 0.7) * s, whole16(_dtype))
    _whole("scale_floor" + _end, lambda s: (s * 0.1 * 10).floor(), whole16(_dtype))
    _whole("division_floor" + _end, lambda s: (s / 3 * 3).floor() * 0.1, whole16(_dtype))
    _whole("plain_threshold" + _end, lambda s: (s >= 3) * s * 0.1, whole16(_dtype))
    _whole(
        "scores_past_256" + _end,
        lambda s: (s * 100 > 300) * 0.1 + (s * 13 * 20 >= 257) * s * 0.01,
        whole16(_dtype),
    )
    _whole(
        "clamp_at_a_decimal" + _end,
        lambda s: ((s * 0.1).clamp(max=0.3) == s * 0.1) * s,
        whole16(_dtype),
    )
    _whole(
        "threshold_at_a_decimal" + _end, lambda s: F.threshold(s * 0.1, 0.3, 0.0), whole16(_dtype)
    )
    _whole(
        "hardtanh_at_a_decimal" + _end, lambda s: F.hardtanh(s * 0.1, -0.7, 0.7), whole16(_dtype)
    )
    _whole("rounded_half" + _end, lambda s: (s * 0.1 * 5).round(), whole16(_dtype))
    _whole("sigmoid_at_one" + _end, lambda s: (s.sigmoid() >= 1.0) * s, whole16(_dtype))
    _whole("tanh_at_one" + _end, lambda s: (s.tanh() == 1.0) * s, whole16(_dtype))
    _whole("underflow" + _end, lambda s: (torch.exp(-s.abs() * 5) > 0) * s, whole16(_dtype))
    _whole(
        "overflow" + _end,
        lambda s: (s * 5000).isinf() * 1.0 + (s * 5000).clamp(-1, 1),
        whole16(_dtype),
    )
    _whole("equal_after_rounding" + _end, lambda s: (s + 0.001 == s) * s, whole16(_dtype))

_whole("power_of_two", lambda s: (2 ** (s * 0.5) >= 2**1.5) * s)
_whole(
    "power_of_two_fp32",
    lambda s: (2 ** (s * 0.5) >= 2**1.5) * s + (2.0 ** (s / 3) >= 2.0) * s,
    whole(torch.float32),
)
_whole("power_of_two_floor", lambda s: (2 ** (s / 3) * 4).floor())
_whole("power_of_two_bias", lambda s: torch.floor(2.0 ** (torch.arange(2) * 0.5) * s))
_whole("exp2_same", lambda s: (torch.exp2(s * 0.5) >= 2.8284271247461903) * s)
_whole("power_of_half", lambda s: (0.5**s >= 0.125) * s)
_whole("power_of_ten", lambda s: (10.0**s >= 1000.0) * s)
_whole(
    "scales_by_head_dim_twice_fp32",
    lambda s: F.silu(s * 8**-0.5 * 8**-0.5) * (s * 8**-0.5 * 8**-0.5 >= 1.0),
    whole(torch.float32),
)
_whole(
    "scale_beyond_one_each",
    lambda s: (
        (s * 1.1 * 1.1 >= 3 * 1.1 * 1.1) * s + (s * 1.1 * 1.3).floor() + (s * 1.7 * 1.3).ceil()
    ),
)
_whole("scale_through_mask", lambda s: ((s * torch.ones(2, dtype=s.dtype) * 0.1) * 0.7 >= 0.21) * s)
_whole(
    "three_scales", lambda s: (s * 0.1 * 0.7 * 0.9 >= 0.189) * s + (s * 0.3 * (1 / 3) * 0.5).floor()
)
_whole("scale_inside_bias", lambda s: ((s.detach() + torch.arange(2)) * 0.1 * 0.7 >= 0.21) * s)
_whole("folded_bias_decides", lambda s: s * (torch.arange(2.0, 4.0, dtype=D64) * 0.1 * 0.7 >= 0.21))


@case(plus(whole(), lambda: torch.tensor([3.0, 6.0], dtype=D64)))
def folded_scales_of_an_operand_decide(q, k, v, a):
    return ((q @ k.mT).relu() * (a * 0.1 * 0.7 >= 0.21) + (a * 0.6 * (1 / 3)).floor()) @ v


@case(plus(whole(), lambda: torch.tensor([3.0, 5.0], dtype=D64)))
def power_of_two_of_an_operand_decides(q, k, v, a):
    return ((q @ k.mT).relu() * (2 ** (a * 0.5) >= 2.8284271247461903)) @ v


@case(plus(whole(), lambda: torch.tensor([3.0, 5.0], dtype=D64).requires_grad_()))
def scales_at_a_kink_of_an_operand(q, k, v, a):
    return (
        (q @ k.mT).relu() * (a[:, None].mT * 0.1 * 0.7).clamp(max=0.21)
        + F.relu((q @ k.mT) * a * 0.1 * 0.7 - 0.63)
    ) @ v


# 19. What a caller may change, behind functions that return their argument itself


def _step(q, *_):
    with torch.no_grad():
        q.add_(1)


def _first_learns():
    return T(2, 2, 5, 4), T(2, 2, 7, 4, grad=False), T(2, 2, 7, 3, grad=False)


@case(_first_learns, _step)
def caller_steps_query_behind_dropout(q, k, v):
    return F.silu(F.dropout(q, 0.0) @ k.mT) @ v


@case(_first_learns, _step)
def caller_steps_query_behind_dropout_eval(q, k, v):
    return F.silu(F.dropout(q, 0.5, False) @ k.mT) @ v


@case(_first_learns, _step)
def caller_steps_query_behind_contiguous(q, k, v):
    return F.silu(q.contiguous() @ k.mT) @ v


@case(_first_learns, _step)
def caller_steps_query_behind_to(q, k, v):
    return F.silu(q.to(torch.float64).reshape(2, 2, 5, 4) @ k.mT) @ v


@case(_first_learns, _step)
def caller_steps_query_behind_narrow(q, k, v):
    return F.silu(torch.cat([q]).narrow(2, 0, 5) @ k.mT) @ v + F.silu(q.narrow(2, 0, 5) @ k.mT) @ v


@case(_first_learns)
def factory_that_is_returned_wants_gradient(q, k, v):
    scores = q @ k.mT
    bias = scores.new_zeros(7, requires_grad=True)
    return F.silu(scores + bias) @ v, bias


@case(_first_learns, _step)
def caller_steps_query(q, k, v):
    return F.silu(q @ k.mT) @ v


# Programs that eager refuses (a write that its own backward notices, no derivative): kept above,
# left out here.
_REFUSED_BY_EAGER = frozenset(
    """
    _CountAfter _CountAfterAll act_floordiv_op act_heaviside_ all_complex all_sizes_equal
    caller_zeroes_what_needs_no_gradient_0001 caller_zeroes_what_needs_no_gradient_0100
    caller_zeroes_what_needs_no_gradient_0101 caller_zeroes_what_needs_no_gradient_0110
    caller_zeroes_what_needs_no_gradient_0111 caller_zeroes_what_needs_no_gradient_1000
    caller_zeroes_what_needs_no_gradient_1001 caller_zeroes_what_needs_no_gradient_1010
    caller_zeroes_what_needs_no_gradient_1011 caller_zeroes_what_needs_no_gradient_1100
    caller_zeroes_what_needs_no_gradient_1101 checkpoint_then_bias_written
    detach_in_place_of_scores given_joined_bias_slice_before_beginning kv_cache_step
    mask_full_like_fp16_overflow no_grad_all_then_write output_added_to_its_query
    table_table_written_after twin_after_write value_cache_is_written
    whole_overflow_bfloat16 whole_overflow_float16 whole_scores_past_256_bfloat16
    whole_scores_past_256_float16 write_22 write_23 write_39 write_40 write_44 write_45
    write_46 write_48
""".split()
)

# Writes by the caller through `.data` into what eager's own backward reads: its gradient is that of
# no function (docs/design.md, Numerics).
_UNSEEN_BY_AUTOGRAD = frozenset(["caller_scales_data", "jagged_caller_changes_offsets_data"])

# Eager answers both ways within one tensor: the slope of elu at NaN is NaN in its vectors, and 1 in
# the elements past the last whole vector.
_TWO_ANSWERS = frozenset(["given_elu_of_nan_masked"])


def _name(entry):
    function = entry[0][0] if isinstance(entry[0], tuple) else entry[0]
    return getattr(function, "__name__", type(function).__name__)


# What differed when it was found and is mended.
_MENDED = frozenset(
    """
    whole_two_scales_meet_a_threshold whole_two_scales_in_place whole_two_scales_floor
    whole_two_scales_clamp_gradient whole_three_scales joined_start_before_the_beginning
    joined_start_before_the_beginning_both joined_rows_start_before joined_columns_start_before
    caller_steps_query_behind_dropout caller_steps_query_behind_dropout_eval
    factory_that_is_returned_wants_gradient
""".split()
)

_LEFT_OUT = _REFUSED_BY_EAGER | _UNSEEN_BY_AUTOGRAD | _TWO_ANSWERS
MORE = [entry for entry in CASES if _name(entry) not in _LEFT_OUT | _MENDED]
CASES = [entry for entry in CASES if _name(entry) in _MENDED]
