"""Literals that are NaN or infinite, casts that are spelled as copies, and numbers in 16 bits."""

import torch
import torch.nn.functional as F

from .rows import D64, INF, Programs, ikv, normal, nothing, of_scores, plus, qkv, values

CASES, MORE = Programs(), Programs()
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
