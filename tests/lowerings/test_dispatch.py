"""The lowerings as Inductor meets them: counters, the fallback, strict."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from gdpa_inductor import lowerings
from gdpa_inductor.lowerings import chunked, cpu

PROGRAM = "a0:f[q_idx,kv_idx]; div(silu(add(mul(s,0.25),a0)),float(i0))"


@pytest.fixture(autouse=True)
def registered():
    lowerings.register()


def operands():
    query, key, value = (torch.randn(2, 4, 17, 16, requires_grad=True) for _ in range(3))
    return query, key, value, torch.randn(17, 17, requires_grad=True)


def function(options: str):
    def run(query, key, value, bias):
        return torch.ops.gdpa.attention(
            query, key, value, [bias], [query.shape[2]], PROGRAM, options
        )

    return run


def results(run, inputs):
    out = run(*inputs)
    return [out, *torch.autograd.grad(out, inputs, torch.ones_like(out))]


def assert_same(options: str, dynamic: bool = False):
    inputs = operands()
    compiled = torch.compile(function(options), dynamic=dynamic)
    for got, want in zip(
        results(compiled, inputs), results(function(options), inputs), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        assert got.stride() == want.stride()


def broken(*_):
    raise RuntimeError("out of luck")


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_reference_is_inlined_on_demand(dynamic: bool):
    assert_same("kernel=reference", dynamic)
    assert not counters["gdpa"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_lowering_that_fails_falls_back(dynamic: bool, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(cpu, "BACKEND", replace(cpu.BACKEND, lower=broken))
    assert_same("", dynamic)
    assert counters["gdpa"]["fallback"] == 2
    assert set(counters["gdpa"]) <= {"fallback", "chunked_launches"}
    assert "fell back to the chunked formula" in caplog.text
    assert "out of luck" in caplog.text


def test_where_chunks_fail_too_the_formula_is_inlined(monkeypatch: pytest.MonkeyPatch, caplog):
    for module in (cpu, chunked):
        backend = replace(module.BACKEND, lower=broken)
        monkeypatch.setattr(module, "BACKEND", backend)
    assert_same("")
    assert counters["gdpa"] == {"fallback": 2}
    assert "fell back to the unfused formula" in caplog.text


@pytest.mark.parametrize("dynamic", [False, True])
def test_chunks_can_be_asked_for(dynamic: bool):
    assert_same("kernel=chunked", dynamic)
    assert counters["gdpa"]["lowered_chunked"] == 2
    assert (counters["gdpa"]["chunked_launches"] > 0) is not dynamic


def test_strict_raises_where_a_lowering_would_fall_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "BACKEND", replace(cpu.BACKEND, lower=broken))
    with pytest.raises(Exception, match=r"gdpa\.strict.*out of luck"):
        torch.compile(function("strict=True"))(*operands())


def test_registering_twice_changes_nothing():
    from torch._inductor.lowering import lowerings as table

    before = table[torch.ops.gdpa.attention.default]
    lowerings.register()
    assert table[torch.ops.gdpa.attention.default] is before
