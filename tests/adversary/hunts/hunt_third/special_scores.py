"""Scores that are NaN, infinite, huge, tiny or minus zero."""

import math

import torch
import torch.nn.functional as F

from ..rows import D64, INF, Programs, of_scores, randn
from .activations import ACTIVATIONS

PROGRAMS = Programs()
table = PROGRAMS.table
SPECIAL = [
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
    q = torch.tensor(SPECIAL, dtype=D64)[None, :, None].requires_grad_()
    return q, torch.ones(1, 2, 1, dtype=D64).requires_grad_(), randn(1, 2, 3)


def special32():
    q = torch.tensor(
        [x if abs(x) < 1e38 else math.copysign(1e38, x) if abs(x) < INF else x for x in SPECIAL],
        dtype=torch.float32,
    )
    return (
        q[None, :, None].requires_grad_(),
        torch.ones(1, 2, 1).requires_grad_(),
        randn(1, 2, 3, dtype=torch.float32),
    )


LEFT_OUT = {"nan_to_int", "floordiv_op", "heaviside_"}


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
IN_FP32 = (
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
)


special_too = {name: f for name, f in ACTIVATIONS.items() if name not in LEFT_OUT}


table(special, special_too | BY_HAND, of=of_scores, prefix="special_")


table(
    special32,
    {f"{name}_32": ACTIVATIONS[name] for name in IN_FP32},
    of=of_scores,
    prefix="special_",
)
