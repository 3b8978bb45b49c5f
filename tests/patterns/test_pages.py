"""Keys and values that are gathered by a page table: read in place, or copied for a reason."""

import pytest
import torch

from gdpa_inductor.rejection import Code
from tests._recorder import Recorder

from .pages import FORMS, operands, subscript


def judged(function, inputs, grad: bool = False) -> Recorder:
    """Outputs and whatever is written are eager's."""
    recorder = Recorder()
    mine, eager = ([x.clone() for x in inputs] for _ in range(2))
    with torch.set_grad_enabled(grad):
        expected = function(*eager)
        actual = torch.compile(function, backend=recorder, fullgraph=True)(*mine)
    torch.testing.assert_close(actual, expected)
    assert all(map(torch.equal, mine, eager))
    return recorder


@pytest.mark.parametrize("function", FORMS, ids=lambda function: function.__name__)
def test_every_form(function):
    (match,) = judged(function, operands()).matches
    result = FORMS[function]
    if isinstance(result, int):
        assert match.problem.page == result and not match.notes
    else:
        (note,) = match.notes
        assert note.code is Code.PAGES_COPIED and result in note.reason


def test_the_copy_is_gone():
    (graph,) = judged(subscript, operands()).graphs
    assert not graph.calls_after["getitem"] and graph.calls_after["attention"] == 1
