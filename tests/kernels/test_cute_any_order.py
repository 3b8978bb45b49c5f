"""What the host does where dQ is added in any order on Hopper. Nothing is launched; what the
kernel does is tested on the card (tests/gpu/test_cute_any_order.py)."""

import pytest
import torch

pytest.importorskip("cutlass")

from gdpa_inductor.kernels.cute import launch, plan
from gdpa_inductor.kernels.cute.backward import launch as backward_launch
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config

from .cute_backward_cases import CASES, Case, make_call

JAGGED = {"rows": (70, 0, 130), "keys": (70, 40, 0)}
FORMS = {
    "dense": Case(batch=2, rows=140, keys=150),
    "causal": CASES["causal sigmoid"],
    "jagged": Case(**JAGGED),
    "shared seeds": CASES["shared seeds"],
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list:
    """(configuration, sums of dQ, counters) of each launch; memory that nobody clears is NaN."""
    results: list = []

    def poisoned(size, dtype, device):
        tensor = torch.empty(size, dtype=dtype, device=device)
        return tensor.fill_(float("nan") if dtype.is_floating_point else -7)

    def noted(call, launcher, others, stored):
        results.append((launcher, others[1].clone(), others[5].clone()))

    monkeypatch.setattr(backward_launch, "empty", poisoned)
    monkeypatch.setattr(launch, "launcher", lambda config: config)
    monkeypatch.setattr(plan, "PLANS", {})
    monkeypatch.setattr(backward_launch.BackwardCall, "launch", noted)
    return results


def backward(case: Case, **options) -> list[torch.Tensor]:
    call = make_call(case)
    return backward_launch.backward(
        call.grad_out, call.operands, (True,) * 3, ctas=3, stream=0, kind=Sm90Config, **options
    )


@pytest.mark.parametrize("name", FORMS)
def test_the_sums_are_cleared(name: str, launches: list):
    backward(FORMS[name], ordered=False)
    ((config, sums, counters),) = launches
    assert not config.ordered
    assert sums.dtype == torch.float32 and not sums.any()
    assert not counters.any()


@pytest.mark.parametrize("name", ["dense", "jagged"])
def test_in_order_the_first_stores(name: str, launches: list):
    backward(FORMS[name])
    ((config, sums, counters),) = launches
    assert config.ordered
    assert sums.isnan().all()
    assert not counters.any()


def test_both_ways_share_a_plan_and_no_kernel(launches: list):
    for ordered in (True, False, True):
        backward(FORMS["dense"], ordered=ordered)
    assert [config.ordered for config, *_ in launches] == [True, False, True]
    assert len(plan.PLANS) == 1
