"""Every spelling of a look-up in a learned table: the same bits, and eager's gradients in fp64."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor import look_up
from gdpa_inductor.patterns.tables import rewriting
from gdpa_inductor.report.sections import match_lines
from tests._recorder import Recorder
from tests.operands import generator_of
from tests.patterns.lookups_table import SPELLINGS, B, H, N, T


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """At the sizes of these tests, tables count as crowded."""
    monkeypatch.setattr(look_up, "_FEWEST_COPIES", 2)
    monkeypatch.setattr(look_up, "_LEAST_SHARE", 1)


def look_ups(recorder: Recorder) -> int:
    return recorder.graphs[-1].calls_after["look_up"]


def operands(sizes, seed: int = 0):
    generator = generator_of(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    leaves = [draw(B, H, N, 8) for _ in range(3)] + [draw(*sizes)]
    places = torch.randint(0, T, (N, N), generator=generator)
    return [x.requires_grad_() for x in leaves], places


def gradients(output, leaves):
    weights = torch.randn(output.shape, generator=generator_of(7), dtype=output.dtype)
    return torch.autograd.grad(output, leaves, weights)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling(name):
    spelling = SPELLINGS[name]

    def attention(q, k, v, table, places):
        bias = spelling.bias(table, places)
        return F.silu(q @ k.mT + bias) @ v, bias

    leaves, places = operands(spelling.sizes)
    recorder = Recorder()
    (mine, bias), (theirs, wanted) = (
        f(*leaves, places)
        for f in (torch.compile(attention, backend=recorder, fullgraph=True), attention)
    )
    assert len(recorder.matches) == 1, recorder.why()
    program = str(recorder.matches[0].problem.program)
    by = "operator" if look_ups(recorder) else "program" if "lookup(" in program else "model"
    assert by == spelling.by, recorder.graphs[-1].after
    assert torch.equal(bias, wanted) and bias.stride() == wanted.stride()
    torch.testing.assert_close(mine, theirs)
    for name, one, other in zip("qkvt", gradients(mine, leaves), gradients(theirs, leaves)):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
    notes = [line for line in match_lines(recorder.matches[0]) if line.startswith("table stays")]
    assert len(notes) == bool(spelling.note), notes
    assert all("UNSUPPORTED/TABLE_GRADIENT" in x and spelling.note in x for x in notes), notes


@pytest.mark.refused_by_judge
def test_the_judge_sees_a_gradient_of_padding(monkeypatch):
    monkeypatch.setattr(rewriting, "_without_row", lambda recipe, table, pads: table)

    def attention(q, k, v, table, places):
        bias = F.embedding(places, table, padding_idx=2).permute(2, 0, 1)
        return F.silu(q @ k.mT + bias) @ v

    leaves, places = operands((T, H))
    recorder = Recorder()
    torch.compile(attention, backend=recorder, fullgraph=True)(*leaves, places)
    assert {r.code.name for r in recorder.rejections} == {"INVALID_REWRITE"}
