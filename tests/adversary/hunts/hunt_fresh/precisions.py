"""Complex numbers, integers, 8 and 16 bits, autocast, casts between the products."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, nothing
from .given import T, bf16, fp32, fp64, frozen, of_scores, rounded

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


def multiplied(factor, dtype):
    return lambda: tuple((x * factor).to(dtype) for x in frozen())


table(
    nothing,
    {
        "complex_plain": (lambda s: torch.tanh(s), rounded(torch.complex128)),
    },
    of=of_scores,
)


table(
    rounded(torch.complex128),
    {
        "complex_abs": lambda q, k, v: torch.relu((q @ k.mH).abs() - 1) @ v.real,
        "complex_real": lambda q, k, v: torch.relu((q @ T(k.conj())).real) @ v.imag,
    },
)


table(
    multiplied(3, torch.int64),
    {
        "integers": lambda s: F.relu(s),
    },
    of=of_scores,
)


table(
    multiplied(50, torch.int8),
    {
        "integers8": lambda s: F.relu(s),
    },
    of=of_scores,
)


table(
    multiplied(3, torch.int64),
    {
        "integer_scores": lambda q, k, v: torch.sigmoid(q @ T(k)) @ v.float(),
        "integer_scores_div": lambda q, k, v: ((q @ T(k)) / 3).relu() @ v.float(),
    },
)


table(
    nothing,
    {
        "float8_operands": (
            lambda q, k, v: F.relu(q.float() @ T(k).float()) @ v.float(),
            multiplied(1, torch.float8_e4m3fn),
        ),
        "mixed_value_dtype": (
            lambda q, k, v: torch.sigmoid(q @ T(k)).to(v.dtype) @ v,
            normal((2, 2, 5, 4), (2, 2, 5, 4), dtype=torch.float32),
            normal((2, 2, 5, 4), dtype=torch.bfloat16),
        ),
        "mixed_all": (
            lambda q, k, v: torch.sigmoid(q @ T(k).float()).double() @ v,
            normal((2, 2, 5, 4), dtype=torch.float32),
            normal((2, 2, 5, 4), dtype=torch.bfloat16),
            normal((2, 2, 5, 4)),
        ),
    },
)


table(
    fp32,
    {
        "float8_weights": lambda s: torch.sigmoid(s).to(torch.float8_e4m3fn).to(torch.float32),
        "weights_rounded_bf16": lambda s: torch.sigmoid(s).bfloat16().float(),
        "scores_rounded_half": lambda s: F.relu(s.half().float()),
        "where_double_branch": lambda s: torch.where(
            s > 0, s, torch.zeros(5, 5, dtype=D64)
        ).float(),
        "python_float_big": lambda s: torch.sigmoid(s * 1e39 * 1e-39),
        "python_int_big": lambda s: torch.sigmoid(s + 2**24 + 1 - 2**24),
        "round_trip_add": lambda s: s + 1e6 - 1e6,
        "neg_zero": lambda s: (1 / (s.relu() * -0.0)).clamp(-1, 1),
        "square_root_square": lambda s: s.square().sqrt(),
        "double_island": lambda s: torch.sigmoid(s.double() * 1e-12 + 1e-12).float(),
        "double_island2": lambda s: (s.double() + 1e9 - 1e9).float(),
    },
    of=of_scores,
)


@case(fp32)
def autocast_bf(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(q @ T(k)) @ v


@case(fp32)
def autocast_scores_only(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ T(k)
    return F.silu(s).float() @ v


@case(fp32)
def autocast_nested_off(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            s = q @ T(k)
        return F.silu(s) @ v


@case(fp32)
def autocast_float_island(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        s = q @ T(k)
        w = F.silu(s.float()) / 5
        return w @ v


@case(fp64)
def autocast_double(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(q @ T(k)) @ v


@case(fp32)
def default_dtype_double(q, k, v):
    torch.set_default_dtype(torch.float64)
    try:
        return F.silu(q @ T(k) * torch.tensor(0.1)) @ v
    finally:
        torch.set_default_dtype(torch.float32)


@case(fp32)
def arange_mask_promotes(q, k, v):
    i = torch.arange(5, dtype=torch.float64)
    return F.relu(q @ T(k)).double() * i @ v.double()


table(
    bf16,
    {
        "bf_scalar_tensor_bias": lambda s: F.relu(s + torch.tensor(0.1)),
        "bf_times_int_mask": lambda s: F.relu(s) * torch.ones(5, 5, dtype=torch.int64).tril(),
        "bf_float_mask_cast": lambda s: (F.relu(s) * torch.ones(5, 5).tril()).bfloat16(),
        "bf_scores_float": lambda s: F.relu(s.float() * 100).bfloat16(),
    },
    of=of_scores,
)


table(
    bf16,
    {
        "bf_big_scores_half": lambda q, k, v: (
            torch.sigmoid(((q * 300) @ T(k * 300)).half()).bfloat16() @ v
        ),
        "bf_query_float_matmul": lambda q, k, v: (
            torch.sigmoid(q.float() @ T(k.float())).bfloat16() @ v
        ),
    },
)


table(
    rounded(torch.float16),
    {
        "half_overflow": lambda q, k, v: torch.sigmoid((q * 300) @ T(k * 300) * 1e-4) @ v,
        "half_square_overflow": lambda q, k, v: (F.relu(q * 20 @ T(k * 20)).square() * 1e-4) @ v,
    },
)


table(
    fp64,
    {
        "scores_two_branches_mask": lambda s: torch.where(s > 0, s, torch.zeros(())),
        "where_int_branch": lambda s: torch.where(s > 0, 1, 0).to(D64),
    },
    of=of_scores,
)


@case(fp32)
def exp_overflow(q, k, v):
    s = q @ T(k) * 50
    return (torch.exp(s) / (1 + torch.exp(s))) @ v


@case(fp32)
def silu_by_exp(q, k, v):
    s = q @ T(k) * 50
    return (s / (1 + torch.exp(-s))) @ v


table(
    fp32,
    {
        "value_cast": lambda q, k, v: (torch.sigmoid(q @ T(k)).double() @ v.double()).float(),
        "query_cast": lambda q, k, v: torch.sigmoid((q.double() @ T(k.double())).float()) @ v,
        "query_cast_half": lambda q, k, v: (
            torch.sigmoid((q.bfloat16() @ T(k.bfloat16())).float()) @ v
        ),
    },
)
