"""The backends: one tuple, from which everything else follows."""

import sys
from types import ModuleType

import pytest
import torch

from gdpa_inductor import lowerings, options
from gdpa_inductor.lowerings import cpu
from gdpa_inductor.lowerings.backends import Backend, Rule, backends
from gdpa_inductor.lowerings.call import extern_call
from gdpa_inductor.ops import ATTENTION, BACKWARD
from gdpa_inductor.options import BACKENDS, Options
from gdpa_inductor.problem import Problem
from gdpa_inductor.rejection import Code

from .operators import uncompiled


def test_each_is_a_module_of_its_name():
    assert tuple(backend.name for backend in backends()) == BACKENDS
    for backend in backends():
        assert backend.devices and backend.lower


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A backend "eager" before all others, which calls the public operators; what it was asked."""
    requests: list[str] = []

    def lower(call):
        requests.append(call.signature.name)
        return extern_call(call.signature, call.nodes)

    def long(problem: Problem) -> str:
        return "" if problem.rows <= 64 else "more than 64 rows"

    module = ModuleType("gdpa_inductor.lowerings.eager")
    module.BACKEND = Backend("eager", ("cpu",), (Rule(Code.LAYOUT, long),), (), lower)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cpu, "BACKEND", uncompiled(cpu.BACKEND))
    names = ("eager", *BACKENDS)
    monkeypatch.setattr(options, "BACKENDS", names)
    monkeypatch.setattr(options, "KERNELS", ("auto", *names, options.REFERENCE))
    monkeypatch.setattr("gdpa_inductor.lowerings.backends.BACKENDS", names)
    return requests


def call(n: int, kernel: str = "") -> torch.Tensor:
    query, key, value = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3))
    operation = torch.compile(
        lambda q, k, v: torch.ops.gdpa.attention(q, k, v, [], [], "silu(s)", kernel), dynamic=False
    )
    out = operation(query, key, value)
    want = torch.nn.functional.silu(query @ key.mT) @ value
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.autograd.grad(out.sum(), query), torch.autograd.grad(want.sum(), query),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    return out


def test_one_row_adds_a_backend(added: list[str]):
    """Choice, dispatch and counters know it; what it refuses goes to the next one."""
    lowerings.register()
    call(16)
    assert added == [ATTENTION.name, BACKWARD.name]
    assert torch._dynamo.utils.counters["gdpa"] == {"lowered_eager": 2}
    assert Options(kernel="eager").kernel == "eager"
    torch._dynamo.reset()
    call(80)
    assert added == [ATTENTION.name, BACKWARD.name]
    assert torch._dynamo.utils.counters["gdpa"] == {"lowered_eager": 2, "lowered_cpu": 2}


def test_what_is_asked_for_by_name_passes_on_with_a_word(added: list[str], caplog):
    lowerings.register()
    call(80, "kernel=eager")
    assert "asked for the eager kernel, but got cpu" in caplog.text
    assert "eager: more than 64 rows" in caplog.text


def test_a_backend_after_the_one_asked_for_is_not_skipped_back_to(added: list[str]):
    lowerings.register()
    call(16, "kernel=cpu")
    assert added == []
