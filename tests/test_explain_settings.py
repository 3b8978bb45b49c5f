"""explain(compiled): the settings that a model was compiled with."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import gdpa_inductor


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GDPA_PROFIT", raising=False)


def attend(q, k, v):
    return F.silu(q @ k.mT / q.shape[2]) @ v


SETTINGS = {
    "none": {},
    "profit": {"options": {"gdpa.profit": False}},
    "profit, dynamic": {"options": {"gdpa.profit": False}, "dynamic": True},
    "static": {"options": {"gdpa.profit": False}, "dynamic": False},
    "skip": {"options": {"gdpa.profit": False, "gdpa.skip": False}},
    "mode": {"mode": "max-autotune-no-cudagraphs"},
}


@pytest.mark.parametrize("entry", ["function", "module", "Module.compile"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_report_is_of_the_compiled_model(name: str, entry: str) -> None:
    """The report and the counters say the same, whatever torch.compile was given."""
    torch._dynamo.reset()

    class Attend(nn.Module):
        def forward(self, q, k, v):
            return F.leaky_relu(q @ k.mT, 1 / q.shape[2]) @ v

    how = {"backend": "gdpa", **SETTINGS[name]}
    target = model = Attend() if entry != "function" else attend
    if entry == "Module.compile":
        model.compile(**how)
    else:
        target = torch.compile(model, **how)
    inputs = [torch.randn(2, 2, 12, 16) for _ in range(3)]
    before = counters["gdpa"]["matched"]
    target(*inputs)
    fused = counters["gdpa"]["matched"] - before
    report = gdpa_inductor.explain(target)(*inputs)
    assert len(report.matches) == fused, str(report)
    if name == "none":
        assert not fused
    if name == "profit":
        assert fused


def test_what_explain_is_given_is_over_what_the_model_was() -> None:
    compiled = torch.compile(attend, backend="gdpa", dynamic=True, options={"gdpa.profit": False})
    inputs = [torch.randn(2, 2, 12, 16) for _ in range(3)]
    (match,) = gdpa_inductor.explain(compiled)(*inputs).matches
    assert "float(i0)" in str(match)  # a length that varies
    (match,) = gdpa_inductor.explain(compiled, dynamic=False)(*inputs).matches
    assert "/12.0" in str(match)
    assert not gdpa_inductor.explain(compiled, profit=True)(*inputs).matches
