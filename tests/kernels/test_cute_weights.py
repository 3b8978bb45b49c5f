"""The Hopper kernel of P and dS, on the emulator: the error rule, poison, equal bits."""

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

    def copied(x: Tensor) -> Tensor:
        return x if plan.fits(x) else memory.empty(x.shape, x.dtype, x.device).copy_(x)

    with pytest.MonkeyPatch.context() as patch, recording():
        patch.setattr(weights, "empty", memory.empty)
        patch.setattr(weights, "aligned", copied)
        patch.setattr(plan, "PLANS", {})
        run(start, [grad, *o.differentiable, memory.bytes], schedules=schedules)
    return results


def of_formula(grad: Tensor, o: Operands[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """P and dS by the formula; every step rounds to `dtype`."""
    key, value = (x.repeat_interleave(o.query.shape[1] // x.shape[1], 1) for x in (o.key, o.value))
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


SCHEDULED = ("D 256, Dv 192, heads last", "causal", "one key head")


@pytest.mark.parametrize(
    "case", slow_but(SCHEDULED[1:2], [x for x in CASES if x.name in SCHEDULED])
)
def test_the_schedule_does_not_matter(case: Case) -> None:
    """Copies and stores complete late, early or in any order: the same bits (`run` compares)."""
    check(case, ("lazy", "random", "eager"))


@pytest.mark.parametrize("ctas", [1, 2, 5, 30])
def test_any_number_of_ctas_gives_the_same_bits(ctas: int) -> None:
    """Runs begin in the middle of the keys, and some CTAs have none."""
    case = Case("runs", CAUSAL_SILU, d=136, dv=40, m=150, n=200, h=2)
    o = case.operands()
    grad = gradient_of(case, o)
    first, other = (stored(case, grad, o, ctas=count) for count in (4, ctas))
    assert all(map(torch.equal, first, other))


@pytest.mark.parametrize("dims", [(256, 256), (192, 128)], ids=str)
def test_exact_on_integers(dims: tuple[int, int]) -> None:
    """Small integers and relu: every product is exact, so a wrong index is a gross error."""
    case = Case("integers", "relu(s)", d=dims[0], dv=dims[1], m=150, n=136, h=2, hk=1, dtype=F16)
    o = case.operands()
    grad = gradient_of(case, o)
    for matrix in (grad, o.query, o.key, o.value):
        matrix.copy_(torch.randint(-6, 8, matrix.shape).sign() * (torch.rand(matrix.shape) < 0.2))
    expected = of_formula(grad, o, torch.float64)
    for result, exact in zip(stored(case, grad, o), expected, strict=True):
        assert exact.abs().max() > 4 and torch.equal(result.double(), exact)


def within(matrix: Tensor, rows: int) -> Tensor:
    """The same matrix in memory that is NaN elsewhere: more rows, channels, heads and batches."""
    b, h, m, d = matrix.shape
    memory = torch.full((b + 1, h + 1, m + rows, d + 8), torch.nan, dtype=matrix.dtype)
    memory[:b, :h, :m, :d] = matrix
    return memory[:b, :h, :m, :d]


def test_nothing_else_is_read() -> None:
    case = Case("neighbours", d=192, dv=136, m=70, n=72, b=2, h=2)
    o = case.operands()
    grad = gradient_of(case, o)
    expected = stored(case, grad, o)
    matrices = [within(x, 64) for x in (o.query, o.key, o.value)]
    apart = dataclasses.replace(o, **dict(zip(("query", "key", "value"), matrices, strict=True)))
    assert all(map(torch.equal, stored(case, within(grad, 64), apart), expected))


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_values_of_hidden_keys_may_be_anything(strange: float) -> None:
    """dP is not finite there, and dS is zero."""
    case = Case("hidden", CAUSAL_SILU, d=192, m=100, n=200)
    o = case.operands()
    o.value[:, :, 100:] = strange
    p, ds = stored(case, gradient_of(case, o), o)
    assert not p[..., 100:].any() and not ds[..., 100:].any()
    assert p.isfinite().all() and ds.isfinite().all()


def test_heads_that_are_expanded_are_not_copied() -> None:
    case = Case("expanded", d=192, m=70, n=72, b=2, h=3, hk=1)
    o = case.operands()
    grad, wide = gradient_of(case, o), [x.expand(-1, 3, -1, -1) for x in (o.key, o.value)]
    expanded = dataclasses.replace(o, key=wide[0], value=wide[1])
    assert all(map(torch.equal, stored(case, grad, expanded), stored(case, grad, o)))
    plans = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "plan_of", lambda *x: plans.append(plan.plan_of(*x)) or plans[-1])
        stored(case, grad, expanded)
    assert not any(plans[-1].copied)


def test_the_gradient_of_a_sum_is_expanded() -> None:
    """TMA does not read it in place."""
    case = Case("sum", d=192, m=70, n=72)
    o = case.operands()
    ones = torch.ones((), dtype=BF16).expand(1, 1, 70, 192)
    assert all(map(torch.equal, stored(case, ones, o), stored(case, ones.contiguous(), o)))


REFUSED = {
    "70 keys": {"n": 70},
    "takes no row sums": {"program": "t0=relu(s); r=t0; t0"},
    "do not depend on the scores": {"program": "a0:f[kv_idx]; a0"},
    "a head dim of 264": {"d": 264},
    "a jagged side": {"q_lengths": (64, 64), "k_lengths": (64, 64)},
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_what_it_does_not_take(complaint: str) -> None:
    case = Case("refused", **{"d": 192, **REFUSED[complaint]})
    o = case.operands()
    with pytest.raises(GDPAError, match=complaint):
        weights.weights(o.query, o, ctas=1, stream=0, kind=Sm90Config)


def test_blackwell_has_no_such_kernel() -> None:
    o = Case("refused", d=128).operands()
    with pytest.raises(GDPAError, match="no kernel for Blackwell"):
        weights.weights(o.query, o, ctas=1, stream=0)


@pytest.mark.parametrize(("m", "n"), [(0, 64), (64, 0)])
def test_nothing_to_do(m: int, n: int) -> None:
    o = Case("empty", d=192, m=m, n=n).operands()
    results = weights.weights(o.query, o, ctas=1, stream=0, kind=Sm90Config)
    assert [tuple(x.shape) for x in results] == [(1, 1, m, n)] * 2
