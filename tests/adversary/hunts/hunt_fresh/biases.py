"""Biases and scales that are learned, looked up or broadcast; precisions of all kinds."""

import torch
import torch.nn.functional as F

from ..rows import D64, Programs, normal, nothing
from .operands import T, bf16, fp32, fp64, frozen, of_scores, rounded

PROGRAMS = Programs()
case, table = PROGRAMS.case, PROGRAMS.table


table(
    fp64,
    of=of_scores,
    bias_adds_rank_mul=(lambda s, b: torch.sigmoid(s) * b, normal((3, 1, 1, 5, 5))),
    bias_used_twice=(lambda s, b: torch.sigmoid(s + b) * b, normal((2, 1, 5, 5))),
    bias_unfold=(lambda s, b: torch.sigmoid(s + b.unfold(1, 5, 1).flip(1)), normal((2, 9))),
    bias_outer=(lambda s, b: torch.sigmoid(s + torch.outer(b, b)), normal(5)),
)


def multiplied(factor, dtype):
    return lambda: tuple((x * factor).to(dtype) for x in frozen())


table(
    fp32,
    of=of_scores,
    float8_weights=lambda s: torch.sigmoid(s).to(torch.float8_e4m3fn).to(torch.float32),
    scores_rounded_half=lambda s: F.relu(s.half().float()),
    python_float_big=lambda s: torch.sigmoid(s * 1e39 * 1e-39),
    neg_zero=lambda s: (1 / (s.relu() * -0.0)).clamp(-1, 1),
)


@case(fp32)
def default_dtype_double(q, k, v):
    torch.set_default_dtype(torch.float64)
    try:
        return F.silu(q @ T(k) * torch.tensor(0.1)) @ v
    finally:
        torch.set_default_dtype(torch.float32)


table(
    nothing,
    mixed_all=(
        lambda q, k, v: torch.sigmoid(q @ T(k).float()).double() @ v,
        normal((2, 2, 5, 4), dtype=torch.float32),
        normal((2, 2, 5, 4), dtype=torch.bfloat16),
        normal((2, 2, 5, 4)),
    ),
    complex_abs=(
        lambda q, k, v: torch.relu((q @ k.mH).abs() - 1) @ v.real,
        rounded(torch.complex128),
    ),
    complex_real=(
        lambda q, k, v: torch.relu((q @ T(k.conj())).real) @ v.imag,
        rounded(torch.complex128),
    ),
    integer_scores_div=(
        lambda q, k, v: ((q @ T(k)) / 3).relu() @ v.float(),
        multiplied(3, torch.int64),
    ),
    bf_big_scores_half=(
        lambda q, k, v: torch.sigmoid(((q * 300) @ T(k * 300)).half()).bfloat16() @ v,
        bf16,
    ),
    half_overflow=(
        lambda q, k, v: torch.sigmoid((q * 300) @ T(k * 300) * 1e-4) @ v,
        rounded(torch.float16),
    ),
)
table(
    nothing,
    of=of_scores,
    complex_plain=(torch.tanh, rounded(torch.complex128)),
    integers=(F.relu, multiplied(3, torch.int64)),
    integers8=(F.relu, multiplied(50, torch.int8)),
    where_int_branch=(lambda s: torch.where(s > 0, 1, 0).to(D64), fp64),
)
