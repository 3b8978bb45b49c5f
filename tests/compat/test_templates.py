"""What `_compat.templates` has Inductor write: kernels of our sources, and the fastest choice."""

import logging

import pytest
import torch
from torch._inductor import config

pytest.importorskip("triton")

from gdpa_inductor._compat import lowering, templates

from . import template
from .lowered import noted
from .template import F32, body_of, choice, rendered, sample, timed

op = lowering.inductor_op
aten = torch.ops.aten


def squared(size):
    s = lowering.fixed_input("s", F32)
    return s * s


def operands(rows: int = 6, columns: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(rows * columns).view(rows, columns)
    return torch.randn(rows, columns), (numbers % 5).to(torch.int32)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_triton_template_of_sizes(dynamic, monkeypatch):
    x, y = operands(7)
    code = rendered(squared, (x, y), dynamic)
    assert "# said" in code  # a global of the source
    torch.testing.assert_close(template.run(code, (x, y), monkeypatch), x * x * 7)


def test_triton_template(monkeypatch):
    """The grid and the kernel know the sizes. What Inductor fuses is written at each store: its
    names of parts of an index are those of the branch that it stands in.
    """
    x, y = operands()

    def scaled(node, x):
        halves = lowering.lowered(aten.slice.Tensor, x, 1, 0, 1)
        return lowering.lowered(aten.mul.Tensor, node, halves)

    code = rendered(squared, (x, y), after=scaled)
    assert len(template.render.kernels(code)) == 1, "nothing is fused"
    torch.testing.assert_close(template.run(code, (x, y), monkeypatch), x * x * 6 * x[:, :1])


def test_rival():
    """A kernel that is no template is compared on the same operands, and may win or lose."""
    x, y = operands()

    def filled(*tensors: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(tensors[0] * 3)

    for name, winner in (("gdpa_rival_wins", "noted"), ("gdpa_rival_loses", "# said")):
        seen: list = []

        def lower(x, y, size):
            body = body_of(x, y, size, squared)
            create = lambda: lowering.extern_call(noted, *body["input_nodes"])
            for _ in range(2):  # a name that is taken is freed
                rival = templates.rival(name, filled, create, body)
            return templates.best_of(sample(), "gdpa_compat", [choice(4)], body, {}, [], [rival])

        seconds = lambda kernel: 1.0 if ("rival" in kernel) == (winner == "noted") else 2.0
        with timed(seconds, seen):
            code = rendered(squared, (x, y), lower=lower)
        assert winner in code and len(seen) == 2
        ((inputs, out),) = [(inputs, out) for kernel, inputs, out in seen if "rival" in kernel]
        assert torch.equal(out, inputs[0] * 3) and len(inputs) == 2


def test_best_of(monkeypatch, caplog):
    """The fastest of several is written; a single one is not timed. Examples are what is timed."""
    x, y = operands()
    example = torch.full((6, 8), 4, dtype=torch.int32)
    seen: list = []

    def lower(x, y, size, rows=(2, 4, 8), sizes=None):
        body = body_of(x, y, size, squared)
        named = [size, fakes()[2]] if sizes is None else sizes
        choices = [choice(each) for each in rows]
        examples = {1: lambda: example}
        return templates.best_of(sample(), "gdpa_compat", choices, body, examples, named)

    def fakes():
        return lowering.lowered_node_values()

    fastest = iter((3.0, 1.0, 2.0))
    with timed(lambda _: next(fastest), seen), caplog.at_level(logging.DEBUG, "gdpa_inductor"):
        code = rendered(squared, (x, y), lower=lower)
    assert len(seen) == 3 and all(inputs[1] is example for _, inputs, _ in seen)
    assert "ROWS : tl.constexpr = 4" in code
    torch.testing.assert_close(template.run(code, (x, y), monkeypatch), x * x * 6)
    with timed(lambda _: 1.0, seen), config.patch(max_autotune=True):
        rendered(squared, (x, y), True, lower=lambda *inputs: lower(*inputs, rows=(4,)))
    assert len(seen) == 3
    with pytest.raises(Exception, match="no configuration of gdpa_compat"):
        rendered(squared, (x, y), lower=lambda *inputs: lower(*inputs, rows=()))


def test_best_of_is_quiet(capsys):
    """Inductor prints a table of each comparison, even if nobody asked for max-autotune."""
    x, y = operands()

    def lower(x, y, size):
        body = body_of(x, y, size, squared)
        choices = [choice(2), choice(4)]
        return templates.best_of(sample(), "gdpa_compat", choices, body, {}, [size])

    with timed(lambda _: 1.0, []):
        rendered(squared, (x, y), lower=lower)
    assert "AUTOTUNE" not in capsys.readouterr().err
