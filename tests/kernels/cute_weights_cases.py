"""Problems for the Hopper kernel of P and dS, and the formula."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gdpa_inductor.operands import Operands
from gdpa_inductor.proving.checks import stored as stored_by_torch
from tests.tolerances import error_of

from .cute_cases import BF16, CAUSAL, F16, SILU, Case

# P and dS of a case, from dO and operands.
Stored = Callable[[Case, Tensor, Operands[Tensor]], Sequence[Tensor]]
BIAS = "a0:f[h,q_idx,kv_idx]; silu(add(mul(s,0.1),a0))"
CAUSAL_SILU = CAUSAL.format(SILU)
WINDOW = "where(and(ge(q_idx,kv_idx),lt(sub(q_idx,kv_idx),i0)),silu(s),0.0)"
LATER = "a0:i[-,-,-,-]; where(ge(add(q_idx,a0),kv_idx),silu(mul(s,0.1)),0.0)"
KEYS = "a0:b[b,-,-,kv_idx]; a1:f[h,q_idx]; where(a0,gelu_tanh(add(mul(s,0.1),a1)),0.0)"
WIDE = "a0:f[b,h,q_idx,kv_idx]; sigmoid(add(mul(s,0.1),a0))"
TWO = "a0:f[h,q_idx,kv_idx]; a1:b[q_idx,kv_idx]; where(a1,silu(add(mul(s,0.1),a0)),0.0)"
CASES = (
    Case("D 256", d=256, m=200, n=264, h=2),
    Case("D 192, fp16", d=192, m=300, n=200, h=2, dtype=F16),
    Case("D 192, Dv 256", d=192, dv=256, m=130, n=136),
    Case("D 256, Dv 192, heads last", "sigmoid(s)", d=256, dv=192, m=140, n=72, h=2, view="bnhd"),
    Case("D 136, Dv 40", d=136, dv=40, m=70, n=208, b=2, h=2),
    Case("grouped heads", d=192, m=140, n=136, h=4, hk=2, ctas=3),
    Case("one key head", d=256, m=72, n=136, b=2, h=3, hk=1, dtype=F16, ctas=2),
    Case("causal", CAUSAL_SILU, d=256, m=300, n=304, ctas=2),
    Case("causal, fewer rows", CAUSAL_SILU, d=192, m=100, n=400, h=2, ctas=3),
    Case("causal, fewer keys", CAUSAL.format("sigmoid(s)"), d=192, m=300, n=136, ctas=1),
    Case("window", WINDOW, d=192, m=400, n=400, scalars=(70,), ctas=2),
    Case("later rows", LATER, d=256, m=140, n=400, ctas=2),
    Case("keys that a mask hides", KEYS, d=256, m=140, n=200, b=2, h=2, aux=(torch.bool, BF16)),
    Case("bias", BIAS, d=256, m=200, n=136, h=2),
    Case("bias in fp32", WIDE, d=192, m=140, n=136, b=2, aux=(torch.float32,)),
    Case("bias and mask", TWO, d=192, m=140, n=136, h=2, aux=(BF16, torch.bool)),
    Case("one row", d=256, m=1, n=8, h=3),
    Case("exact functions", "gelu(mul(s,0.088))", d=192, m=72, n=72, fast=False),
)  # fmt: skip


def gradient_of(case: Case, o: Operands[Tensor]) -> Tensor:
    size = (*o.query.shape[:-1], o.value.shape[-1])
    return torch.randn(max(o.query.shape[0], o.key.shape[0]), *size[1:]).to(case.dtype)


def of_formula(grad: Tensor, o: Operands[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return stored_by_torch(o, dtype, grad, (True, True, True, *[False] * len(o.aux)))


def check(stored: Stored, case: Case) -> None:
    """The error rule for P and for dS."""
    o = case.operands()
    grad = gradient_of(case, o)
    expected, eager = (of_formula(grad, o, dtype) for dtype in (torch.float64, case.dtype))
    ways = zip(("forward", "backward"), stored(case, grad, o), eager, expected, strict=True)
    for direction, result, rounded, exact in ways:
        assert not (fault := error_of(result, rounded, exact, direction=direction)), fault


def check_integers(stored: Stored, **sizes: int) -> None:
    """Small integers and relu: every product is exact, so a wrong index is a gross error."""
    case = Case("integers", "relu(s)", h=2, hk=1, dtype=F16, **sizes)
    o = case.operands()
    grad = gradient_of(case, o)
    for matrix in (grad, o.query, o.key, o.value):
        matrix.copy_(torch.randint(-6, 8, matrix.shape).sign() * (torch.rand(matrix.shape) < 0.2))
    expected = of_formula(grad, o, torch.float64)
    for result, exact in zip(stored(case, grad, o), expected, strict=True):
        assert exact.abs().max() > 2 and torch.equal(result.double(), exact)


def within(matrix: Tensor) -> Tensor:
    """The same matrix in memory that is NaN elsewhere: more rows, channels, heads and batches."""
    b, h, m, d = matrix.shape
    memory = matrix.new_full((b + 1, h + 1, m + 64, d + 8), torch.nan)
    memory[:b, :h, :m, :d] = matrix
    return memory[:b, :h, :m, :d]


def apart(o: Operands[Tensor]) -> Operands[Tensor]:
    return replace(o, query=within(o.query), key=within(o.key), value=within(o.value))
