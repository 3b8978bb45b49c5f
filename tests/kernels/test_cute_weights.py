"""The Hopper kernel of P and dS, as PTX for sm_90a on the emulator: the error rule, poison, bits."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import plan, weights
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.lowerings.weights import terms
from gdpa_inductor.operands import Operands
from gdpa_inductor.ops import Arguments
from gdpa_inductor.rejection import GDPAError
from tests.emulator import recording, run
from tests.tolerances import error_of

from .cute_cases import BF16, CAUSAL, F16, SILU, Case
from .cute_memory import Memory, fresh_kernels
from .marks import slow_but

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
OFTEN = ("D 256", "D 192, fp16", "causal", "later rows", "grouped heads", "keys that a mask hides")

fresh = pytest.fixture(scope="module", autouse=True)(fresh_kernels)


def gradient_of(case: Case, o: Operands[Tensor]) -> Tensor:
    size = (*o.query.shape[:-1], o.value.shape[-1])
    return torch.randn(max(o.query.shape[0], o.key.shape[0]), *size[1:]).to(case.dtype)


def stored(
    case: Case, grad: Tensor, o: Operands[Tensor], schedules=("random",), **options: Any
) -> list[Tensor]:
    """P and dS, whose memory is NaN before."""
    memory, results = Memory(1 << 23), []
    options = {"fast": case.fast, "ctas": case.ctas, "kind": Sm90Config, **options}

    def start() -> None:
        memory.used = 0
        results[:] = weights.weights(grad, o, stream=0, **options)

    with pytest.MonkeyPatch.context() as patch, recording():
        patch.setattr(weights, "empty", memory.empty)
        patch.setattr(plan, "PLANS", {})
        run(start, [grad, *o.differentiable, memory.bytes], schedules=schedules)
    return results


def of_formula(grad: Tensor, o: Operands[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """P and dS by the formula; every step rounds to `dtype`."""
    key, value = (
        x.repeat_interleave(o.query.shape[1] // x.shape[1], 1) for x in (o.key, o.value)
    )
    aux = [x.to(dtype) if x.is_floating_point() else x for x in o.aux]
    q, k, v = (x.to(dtype) for x in (o.query, key, value))
    wide = Operands(q, k, v, aux, o.scalars, o.program)
    needs = (True, True, True, *[False] * len(aux))
    return terms(Arguments(wide, grad.to(dtype), needs))


def check(case: Case, schedules=("random",), **options: Any) -> list[Tensor]:
    o = case.operands()
    grad = gradient_of(case, o)
    found = stored(case, grad, o, schedules, **options)
    expected, eager = (of_formula(grad, o, dtype) for dtype in (torch.float64, case.dtype))
    ways = zip(("forward", "backward"), found, eager, expected, strict=True)
    for direction, result, rounded, exact in ways:
        assert not (fault := error_of(result, rounded, exact, direction=direction)), fault
    return found


@pytest.mark.parametrize("case", slow_but(OFTEN, CASES))
def test_the_error_rule(case: Case) -> None:
    check(case)
