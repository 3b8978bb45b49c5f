"""summary: one line for each compiled model, of how much of it was fused."""

import logging

import pytest
import torch
from expecttest import assert_expected_inline
from torch import nn

from gdpa_inductor import Code, GDPAPass, Rejection
from gdpa_inductor.compiles import summary_line
from gdpa_inductor.patterns import Result

pytestmark = pytest.mark.usefixtures("no_code")
WHY = "gdpa_inductor.explain(model)(*inputs) says why"


class Attention(nn.Module):
    def forward(self, x):
        return torch.relu(x @ x.mT) @ x


class Escaping(nn.Module):
    def forward(self, x):
        weights = torch.relu(x @ x.mT)
        return weights @ x * weights.mean()


class Breaking(nn.Sequential):
    """Its graphs are compiled one by one, and those of layers of one class from the same code."""

    def forward(self, x):
        for layer in self:
            torch._dynamo.graph_break()
            x = layer(x)
        return x


def x(rows: int = 64) -> torch.Tensor:
    return torch.randn(1, 1, rows, 16)


def compiled(model: nn.Module, **options: object) -> nn.Module:
    prefixed = {"gdpa.profit": False} | {f"gdpa.{name}": value for name, value in options.items()}
    return torch.compile(model, backend="gdpa", options=prefixed)


def summaries(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "gdpa_inductor" and record.getMessage().startswith("gdpa: ")
    ]


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gdpa_inductor")


def test_a_model_is_told_of_once(caplog) -> None:
    """Not for its graphs, recompiles, modes, nor after a reset."""
    model = compiled(Breaking(Attention(), Escaping(), nn.Tanh()))
    assert summaries(caplog) == []
    model(x())
    model(x(80))
    model(x().requires_grad_()).sum().backward()
    torch._dynamo.reset()
    model(x())
    expected = f"gdpa: 1 of 2 attention regions fused, 1 not fused (SCORES_ESCAPE); {WHY}"
    assert summaries(caplog) == [("WARNING", expected)]


def test_where_all_is_fused_it_is_no_warning(caplog) -> None:
    compiled(nn.Sequential(Attention(), Attention()))(x())
    assert summaries(caplog) == [("INFO", "gdpa: 2 of 2 attention regions fused")]


class Softmax(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


def test_softmax_is_a_warning_where_it_is_alone(caplog) -> None:
    compiled(nn.Sequential(Attention(), Softmax()))(x())
    compiled(Softmax())(x())
    beside = f"gdpa: 1 of 2 attention regions fused, 1 not fused (NORMALISED); {WHY}"
    alone = f"gdpa: 0 of 1 attention regions fused, 1 not fused (NORMALISED); {WHY}"
    assert summaries(caplog) == [("INFO", beside), ("WARNING", alone)]


def test_where_nothing_is_fused_it_says_so(caplog) -> None:
    model = Attention()
    model.compile(backend="gdpa")
    model(x())
    expected = f"gdpa: 0 of 1 attention regions fused, 1 not fused (SLOWER); {WHY}"
    assert summaries(caplog) == [("WARNING", expected)]


def test_models_without_attention_are_told_when_some_is_compiled(caplog) -> None:
    class Sometimes(nn.Module):
        def forward(self, x, attend):
            return torch.relu(x @ x.mT) @ x if attend else x + 1

    model = compiled(Sometimes())
    model(x(), False)
    assert summaries(caplog) == []
    model(x(), True)
    assert summaries(caplog) == [("INFO", "gdpa: 1 of 1 attention regions fused")]


def test_each_model_that_is_compiled_has_its_line(caplog) -> None:
    compiled(Attention())(x())
    compiled(Escaping())(x())
    assert [level for level, _ in summaries(caplog)] == ["INFO", "WARNING"]


@pytest.mark.parametrize("way", ["option", "variable", "level"])
def test_it_can_be_silenced(way: str, caplog, monkeypatch) -> None:
    if way == "variable":
        monkeypatch.setenv("GDPA_SUMMARY", "0")
    if way == "level":
        caplog.set_level(logging.ERROR, "gdpa_inductor")
    compiled(Escaping(), **({"summary": False} if way == "option" else {}))(x())
    assert summaries(caplog) == []


def test_the_pass_speaks_too(caplog) -> None:
    torch.compile(Escaping(), options={"pre_grad_custom_pass": GDPAPass(profit=False)})(x())
    torch._dynamo.reset()
    silent = GDPAPass(profit=False, summary=False)
    torch.compile(Escaping(), options={"pre_grad_custom_pass": silent})(x())
    assert len(summaries(caplog)) == 1


def test_a_compile_that_fails_is_told_of_as_well(caplog) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        compiled(Escaping(), strict=True)(x())
    assert len(summaries(caplog)) == 1


def test_codes_are_counted_the_most_frequent_first() -> None:
    codes = (Code.DROPOUT, Code.SLOWER, Code.SLOWER)
    assert_expected_inline(
        summary_line(Result((), tuple(Rejection(code, "") for code in codes))),
        """gdpa: 0 of 3 attention regions fused, 3 not fused (2 SLOWER, DROPOUT); gdpa_inductor.explain(model)(*inputs) says why""",  # noqa: E501
    )
