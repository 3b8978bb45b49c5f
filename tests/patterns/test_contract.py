"""Which rule a call of ATen gets: the one that holds on the installed torch, or none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor._compat import versions
from gdpa_inductor.patterns.reading import contract
from gdpa_inductor.patterns.reading.vocabulary import POINTWISE
from gdpa_inductor.rejection import Code
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns.rows import HEADS, SIZES

SEVERAL = sorted(name for name, rules in POINTWISE.items() if len(rules) > 1)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch):
    contract.holding.cache_clear()
    yield
    monkeypatch.undo()
    contract.holding.cache_clear()


def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "is_tested", lambda: False)


@pytest.mark.parametrize("name", SEVERAL)
def test_where_versions_differ_one_rule_holds(name: str) -> None:
    """Each of its rules differs from the others in a case that decides."""
    rule = contract.holding(name)
    cases = [case for case in contract.BY_KEY[name] if case.decides]
    assert rule in POINTWISE[name] and cases
    for other in POINTWISE[name]:
        assert any(contract.differs(case, other) for case in cases) == (other is not rule)


def test_on_a_torch_that_no_test_ran_on_every_rule_is_tried(monkeypatch) -> None:
    tested = {name: contract.holding(name) for name in SEVERAL}
    contract.holding.cache_clear()
    untested(monkeypatch)
    assert all(contract.holding(name) is not None for name in POINTWISE)
    assert {name: contract.holding(name) for name in SEVERAL} == tested


# What another torch might do: a slope at a kink, a value at infinity, a result of integers.
OTHERS = {
    "softshrink": (lambda x: x + 0.5 * (x - x.detach()) * (x == 0.5), F.softshrink),
    "relu": (lambda x: x + 0.5 * (x - x.detach()) * (x == 0.0), F.relu),
    "sigmoid": (lambda x: torch.where(x == 1.0, 2.0, x), torch.sigmoid),
    "clamp": (lambda x: x + 0.25 * (x - x.detach()) * (x == 1.0), lambda s: s.clamp(0.0, 1.0)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_torch_does_otherwise_is_refused(monkeypatch, name: str) -> None:
    changed, activation = OTHERS[name]
    eager = contract.eager
    untested(monkeypatch)

    def of_another_torch(case, operands):
        result = eager(case, operands)
        return changed(result) if case.name == name else result

    def attention(q, k, v):
        return activation(q @ k.mT) @ v

    assert recorded(attention).matches
    contract.holding.cache_clear()
    monkeypatch.setattr(contract, "eager", of_another_torch)
    (refusal,) = recorded(attention).rejections
    assert refusal.code is Code.UNKNOWN_TORCH and f"`{name}`" in refusal.reason


def recorded(attention) -> Recorder:
    torch._dynamo.reset()
    recorder = Recorder()
    torch.compile(attention, backend=recorder, fullgraph=True)(
        *make_operands(HEADS, SIZES).values()
    )
    return recorder


NARROW = {
    "hardtanh": lambda s: F.hardtanh(s, -0.7, 0.9),
    "clamp": lambda s: s.clamp(-0.7, 0.9),
    "softshrink": lambda s: F.softshrink(s, 0.7),
    "hardshrink": lambda s: F.hardshrink(s, 0.9),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NARROW)
def test_slopes_at_a_bound_that_16_bits_do_not_hold(name: str, dtype: torch.dtype) -> None:
    """torch rounds the bound in some functions and not in others: -0.7 is -0.699 in bf16."""
    activation = NARROW[name]

    def attention(q, k, v):
        return activation(q @ k.mT) @ v

    bounds = torch.tensor([-0.7, 0.7, 0.9, -0.9]).to(dtype)
    near = [torch.nextafter(bounds, torch.full_like(bounds, end)) for end in (-9.0, 9.0)]
    scores = torch.cat([bounds, *near]).view(1, 1, -1, 1)
    ones = torch.ones(1, 1, 16, 1, dtype=dtype)
    recorder, actual = Recorder(), []
    for call in (attention, torch.compile(attention, backend=recorder, fullgraph=True)):
        q = scores.clone().requires_grad_()
        (grad,) = torch.autograd.grad(call(q, ones, ones).sum(), q)
        actual.append(grad)
    assert recorder.matches and torch.equal(*actual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_threshold_that_some_devices_round_is_refused(dtype: torch.dtype) -> None:
    """GPUs compare with 0.1 in 16 bits, CPUs with 0.1: next to it the value itself is another."""
    operands = [x.detach().to(dtype) for x in make_operands(HEADS, SIZES).values()]
    for bound, refused in ((0.5, False), (0.1, True)):
        torch._dynamo.reset()
        recorder = Recorder()
        model = lambda q, k, v, bound=bound: F.threshold(q @ k.mT, bound, 0.0) @ v
        torch.compile(model, backend=recorder, fullgraph=True)(*operands)
        codes = [refusal.code for refusal in recorder.rejections]
        assert codes == [Code.DTYPE] * refused and bool(recorder.matches) != refused
