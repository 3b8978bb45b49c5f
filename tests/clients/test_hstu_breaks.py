"""Public code of HSTU whose sizes depend on data: as published Dynamo ends the graph there, with
the mend of the page there is one graph, which is fused and trains as in eager.
"""

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.models import MODELS, fbgemm, hstu
from benchmarks.models.hstu import NEEDS, RESEARCH
from benchmarks.models.published import hstu_file
from tests._judge import check_step
from tests._recorder import Recorder
from tests.clients.hstu_breaks import BREAKS, D, H
from tests.clients.published import Slow
from tests.jagged import offsets_of

LENGTHS = ((5, 2, 6), (3, 4, 2)), ((2, 6, 3), (3, 2, 6))


@pytest.fixture(autouse=True)
def operators() -> None:
    fbgemm.provide()


def step(function, lengths, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The output, and the gradients of both sides' rows."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(sum(n), H * D, generator=generator).to(dtype) for n in lengths]
    x, y = (t.requires_grad_() for t in rows)
    out = function(x, offsets_of(lengths[0]), y, offsets_of(lengths[1]))
    grads = torch.autograd.grad(out.square().sum(), [x, y], allow_unused=True)
    return [out, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("name", BREAKS)
def test_the_published_form_breaks_the_graph(name: str) -> None:
    recorder = Recorder(rewriting=False)
    published = torch.compile(functools.partial(BREAKS[name][0], False), backend=recorder)
    step(published, LENGTHS[0])
    assert len(recorder.graphs) > 1


@pytest.mark.parametrize("name", BREAKS)
def test_with_the_mend_one_graph_is_fused_and_trains_as_in_eager(name: str, monkeypatch) -> None:
    function, regions = BREAKS[name]
    recorder, mended = Recorder(), functools.partial(function, True)
    compiled = torch.compile(mended, backend=recorder, dynamic=True)
    published = functools.partial(function, False)
    for lengths in LENGTHS:
        mine, eager = step(compiled, lengths), step(published, lengths)
        with monkeypatch.context() as patch:
            patch.setattr(torch.ops, "fbgemm", Slow)
            exact = step(published, lengths, torch.float64)
        check_step(*(dict(enumerate(x)) for x in (mine, eager, exact)))
    (graph,) = recorder.graphs
    assert len(graph.matches) == regions, recorder.why()
    assert all(match.problem.jagged_key and not match.notes for match in graph.matches)


def test_the_published_layers_have_one_graph_with_a_total_length(tmp_path, monkeypatch) -> None:
    try:
        source = Path(hstu_file(RESEARCH, tmp_path, NEEDS).__file__)
    except ImportError as error:
        pytest.skip(str(error))
    (tmp_path / "mended").mkdir()
    text = source.read_text()
    without = "        [x_offsets],\n    )[0]\n    return attn_output"
    assert text.count(without) == 1
    mended = text.replace(without, without.replace("],\n", "],\n        q.shape[0],\n", 1))
    (tmp_path / "mended" / source.name).write_text(mended)
    case, counts = MODELS["hstu-research"].case("hstu-research", "cpu", "float32"), []
    for folder in (source.parent, tmp_path / "mended"):
        monkeypatch.setenv("HSTU_FILES", str(folder))
        recorder, built = Recorder(), hstu.research(case)
        torch.compile(built.function, backend=recorder)(*built.inputs).sum().backward()
        jagged = [match.problem.jagged_query for match in recorder.matches]
        counts.append((len(recorder.graphs), jagged))
    assert counts == [(counts[0][0], [False]), (1, [True, True])] and counts[0][0] > 1
