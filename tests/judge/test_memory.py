"""Verdicts that are remembered in torch's cache folder, which most tests switch off."""

import torch
import torch.nn.functional as F

from gdpa_inductor.judge import memory
from tests._recorder import ALWAYS, Recorder

SHAPES = ((2, 3, 6, 8), (2, 3, 4, 8), (2, 3, 4, 5))


def a_view_that_is_changed(q, k, v):
    """Dynamo's fakes of such a view raise when they are asked whether they are leaves."""
    s = q @ k.mT
    v.select(-1, 0).add_(1.0)
    return F.silu(s) @ v


def operands() -> list[torch.Tensor]:
    """They learn, so that a view of one has a history."""
    return [torch.randn(shape, requires_grad=True) for shape in SHAPES]


def recorded(inputs: list[torch.Tensor]) -> Recorder:
    torch._dynamo.reset()
    recorder = Recorder(ALWAYS)
    with torch.no_grad():
        expected = a_view_that_is_changed(*(t.detach().clone() for t in inputs))
        out = torch.compile(a_view_that_is_changed, backend=recorder)(*inputs)
    torch.testing.assert_close(out, expected)
    return recorder


def test_a_view_that_is_changed_is_compiled_and_remembered(verdicts, monkeypatch):
    recorder = recorded(operands())
    assert len(recorder.matches) == 1, recorder.why()
    assert len(list(verdicts.iterdir())) == 1
    # The second time nothing is judged.
    monkeypatch.setattr("gdpa_inductor.judge.judged", None)
    assert len(recorded(operands()).matches) == 1


def test_what_cannot_be_described_is_judged_anew(verdicts, monkeypatch):
    monkeypatch.setattr(memory, "_tensor", lambda *_: 1 / 0)
    assert len(recorded(operands()).matches) == 1
    assert not verdicts.exists()


def test_a_folder_that_cannot_be_read_costs_time_only(verdicts, monkeypatch):
    """Such as another user's. A name that is too long raises for root too."""
    monkeypatch.setattr(memory.inductor, "cache_folder", lambda: str(verdicts.parent / ("x" * 300)))
    assert len(recorded(operands()).matches) == 1
