"""What is compiled before a graph is lowered: the forward, and the backward that follows."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch._inductor import async_compile

from examples.movielens.model import Layer
from gdpa_inductor import GDPAPass, explain, gdpa_backend, judge
from gdpa_inductor.kernels.cute import precompile
from gdpa_inductor.kernels.cute.sm90.config import Sm90Config
from gdpa_inductor.lowerings import cpu
from gdpa_inductor.ops import ATTENTION, BACKWARD

from .operators import uncompiled, without_loops

OPTIONS = {"gdpa.profit": False}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list:
    """What was begun or lowered, in order."""
    results: list = []

    watch(
        monkeypatch,
        lambda call: results.append(("begun", call.signature, call.needs)),
        lambda call: results.append(("lowered", call.signature, ())),
    )
    return results


def watch(monkeypatch: pytest.MonkeyPatch, begun: Callable, lowered: Callable) -> None:
    """Of the CPU's backend, what is begun and what is lowered; nothing is compiled."""
    backend = uncompiled(cpu.BACKEND)

    def lower(call):
        lowered(call)
        return backend.lower(call)

    watched = dataclasses.replace(backend, precompile=begun, lower=lower)
    monkeypatch.setattr(cpu, "BACKEND", watched)


@pytest.mark.parametrize("autocast", [False, True])
def test_what_begins_is_what_is_lowered(monkeypatch, autocast: bool):
    """The configurations of CuTe kernels, which a CPU has none of, for a layer with a bias."""
    guesses: dict[str, set] = {"begun": set(), "lowered": set()}

    def note(what, call):
        config = precompile.guess(call.fakes.operands, Sm90Config, True, True)
        guesses[what].add((config, call.backward, *call.needs))

    watch(monkeypatch, *(functools.partial(note, what) for what in guesses))
    torch._dynamo.reset()
    layer = torch.compile(Layer(64, 2, 48), backend=gdpa_backend, options=OPTIONS)
    with without_loops(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        layer(torch.randn(2, 48, 64)).float().sum().backward()
    assert len(guesses["begun"]) == 2
    assert guesses["begun"] == guesses["lowered"]


def attend(query, key, value, bias):
    return torch.nn.functional.silu(query @ key.mT + bias) @ value


def operands(learned: bool) -> list[torch.Tensor]:
    torch._dynamo.reset()
    arguments = [torch.randn(2, 2, 64, 16, requires_grad=True) for _ in range(3)]
    return [*arguments, torch.randn(2, 64, 64, requires_grad=learned)]


def compiled(**options):
    return torch.compile(attend, backend=gdpa_backend, options={**OPTIONS, **options})


@pytest.mark.parametrize("learned", [False, True])
def test_both_passes_begin_before_one_is_lowered(calls, learned: bool):
    compiled()(*operands(learned)).sum().backward()
    assert calls[:2] == [
        ("begun", ATTENTION, ()),
        ("begun", BACKWARD, (True, True, True, learned)),
    ]
    assert {(what, signature) for what, signature, _ in calls[2:]} == {
        ("lowered", ATTENTION),
        ("lowered", BACKWARD),
    }


def test_both_begin_before_the_rewrite_is_judged(calls, monkeypatch):
    """The judge takes some tenths of a second, which the processes that compile can have too."""
    validate = judge.validate
    monkeypatch.setattr(
        judge, "validate", lambda *given: calls.append("judged") or validate(*given)
    )
    compiled()(*operands(False))
    begun = ("begun", ATTENTION, ()), ("begun", BACKWARD, (True, True, True, False))
    assert calls[:3] == [*begun, "judged"]


def test_what_the_judge_rejects_was_begun_for_nothing(calls, monkeypatch):
    verdict = judge.Verdict("it is another function", invalid=True)
    monkeypatch.setattr(judge, "validate", lambda *_: verdict)
    inputs = operands(True)
    torch.testing.assert_close(compiled()(*inputs), attend(*inputs))
    assert {what for what, *_ in calls} == {"begun"}


def test_explaining_begins_nothing(calls):
    assert len(explain(attend, profit=False)(*operands(True)).matches) == 1
    assert not calls


def test_the_processes_of_inductor_start_before_all_else(calls, monkeypatch):
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: calls.append("started"))
    compiled()(*operands(False))
    assert calls[0] == "started"


def test_the_pass_begins_too(calls):
    options = {"pre_grad_custom_pass": GDPAPass(profit=False)}
    torch.compile(attend, options=options)(*operands(True)).sum().backward()
    assert [what for what, *_ in calls[:2]] == ["begun", "begun"]


def test_no_backward_begins_where_none_will_follow(calls):
    with torch.no_grad():
        compiled()(*operands(True))
    assert [(what, signature) for what, signature, _ in calls] == [
        ("begun", ATTENTION),
        ("lowered", ATTENTION),
    ]


def test_what_fails_early_is_in_nobodys_way(monkeypatch):
    def broken(call) -> None:
        raise OSError("no processes")

    monkeypatch.setattr(cpu, "BACKEND", uncompiled(cpu.BACKEND, precompile=broken))
    inputs = operands(True)
    result = compiled(**{"gdpa.strict": True})(*inputs)
    torch.testing.assert_close(result, attend(*inputs))


def test_the_reference_has_nothing_to_begin(calls, caplog):
    caplog.set_level("DEBUG", "gdpa_inductor")
    compiled(**{"gdpa.kernel": "reference"})(*operands(False))
    assert not calls
    assert "nothing is compiled early" not in caplog.text
