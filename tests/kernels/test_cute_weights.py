"""The Hopper kernel of P and dS, on the emulator: the error rule, poison, equal bits."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import plan, weights
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.operands import Operands
from gdpa_inductor.rejection import GDPAError
from tests.emulator import recording, run

from .cute_cases import BF16, Case
from .cute_memory import Memory, fresh_kernels
from .cute_weights_cases import (
    CASES,
    CAUSAL_SILU,
    apart,
    check,
    check_integers,
    gradient_of,
    within,
)
from .marks import slow_but

OFTEN = ("D 256", "D 192, fp16", "causal", "later rows", "grouped heads", "keys that a mask hides")

fresh = pytest.fixture(scope="module", autouse=True)(fresh_kernels)


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


@pytest.mark.parametrize("case", slow_but(OFTEN, CASES))
def test_the_error_rule(case: Case) -> None:
    check(stored, case)


SCHEDULED = ("D 256, Dv 192, heads last", "causal", "one key head", "window", "D 192, fp16")


@pytest.mark.parametrize(
    "case", slow_but(("causal", "window"), [x for x in CASES if x.name in SCHEDULED])
)
def test_the_schedule_does_not_matter(case: Case) -> None:
    """Copies and stores complete late, early or in any order: the same bits (`run` compares)."""
    check(partial(stored, schedules=("lazy", "random", "eager")), case)


@pytest.mark.parametrize("ctas", [1, 2, 5, 30])
@pytest.mark.parametrize("dim", [136, 200])
def test_any_number_of_ctas_gives_the_same_bits(dim: int, ctas: int) -> None:
    """Runs begin in the middle of the keys, and some CTAs have none."""
    case = Case("runs", CAUSAL_SILU, d=dim, dv=40, m=250, n=200, h=2)
    o = case.operands()
    grad = gradient_of(case, o)
    first, other = (stored(case, grad, o, ctas=count) for count in (4, ctas))
    assert all(map(torch.equal, first, other))


@pytest.mark.parametrize("dims", [(256, 256), (192, 128)], ids=str)
def test_exact_on_integers(dims: tuple[int, int]) -> None:
    check_integers(stored, d=dims[0], dv=dims[1], m=150, n=136)


def test_nothing_else_is_read() -> None:
    case = Case("neighbours", d=192, dv=136, m=70, n=72, b=2, h=2)
    o = case.operands()
    grad = gradient_of(case, o)
    expected = stored(case, grad, o)
    assert all(map(torch.equal, stored(case, within(grad), apart(o)), expected))


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_values_of_hidden_keys_may_be_anything(strange: float) -> None:
    """dP is not finite there, and dS is zero."""
    case = Case("hidden", CAUSAL_SILU, d=192, m=100, n=200)
    o = case.operands()
    o.value[:, :, 100:] = strange
    p, ds = stored(case, gradient_of(case, o), o)
    assert not p[..., 100:].any() and not ds[..., 100:].any()
    assert p.isfinite().all() and ds.isfinite().all()


@pytest.mark.parametrize("batches", [False, True], ids=["heads", "heads and batches"])
def test_what_is_expanded_is_not_copied(batches: bool) -> None:
    case = Case("expanded", d=192, m=70, n=72, b=2, h=3, hk=1)
    o = case.operands()
    grad, narrow = gradient_of(case, o), [x[: 1 if batches else 2] for x in (o.key, o.value)]
    wide, whole = (
        dataclasses.replace(o, key=key, value=value)
        for key, value in (
            [x.expand(2, 3, -1, -1) for x in narrow],
            [x.repeat(2 // len(x), 1, 1, 1) for x in narrow],
        )
    )
    plans = []
    found = lambda *x: plans.append(plan.plan_of(*x)) or plans[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "plan_of", found)
        results = stored(case, grad, wide)
    assert not any(plans[-1].copied)
    assert all(map(torch.equal, results, stored(case, grad, whole)))


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
