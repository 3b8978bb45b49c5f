"""Keys and values that are gathered by a page table: read in place, or copied for a reason."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.rejection import Code
from tests._recorder import ALWAYS, Recorder
from tests.jagged import offsets_of, pad, unpad

from .pages import FORMS, R, attend, heads, operands, subscript


def judged(function, inputs, grad: bool = False) -> Recorder:
    """Outputs and whatever is written are eager's."""
    recorder = Recorder()
    mine, eager = (
        [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs] for _ in range(2)
    )
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


def varying(query, keys, values, table, lengths):
    key, value = (pool[table].flatten(1, 2).transpose(1, 2) for pool in (keys, values))
    return attend(query, key, value, lengths)


def test_tables_pools_and_batches_of_any_size():
    """One graph for all, for pages of as many rows."""
    recorder = Recorder()
    compiled = torch.compile(varying, backend=recorder, fullgraph=True, dynamic=True)
    query, keys, values, table, lengths = operands()
    with torch.no_grad():
        for batch, pages, length in ((3, 11, 6), (2, 9, 4), (3, 6, 5)):
            table = torch.randint(-1, pages, (batch, length))
            parts = (query[:batch], keys[:pages], values[:pages], table, lengths[:batch])
            inputs = [part.clone() for part in parts]  # no views, whose bases Dynamo guards
            torch.testing.assert_close(compiled(*inputs), varying(*inputs))
    (match,) = recorder.matches
    assert match.problem.page is not None and not match.notes


def test_two_values_of_the_same_weights():
    """They are not put side by side: that would copy both pools."""

    def two(query, keys, values, table, lengths):
        key, value, other = (heads(pool[table]) for pool in (keys, values, values.flip(0)))
        weights = F.silu(query @ key.mT)
        return weights @ value, weights @ other

    matches = judged(two, operands()).matches
    assert [match.problem.page for match in matches] == [R, R]


def test_a_region_that_trains_keeps_the_copy():
    query, *others = operands()
    (match,) = judged(subscript, [query.requires_grad_(), *others], grad=True).matches
    (note,) = match.notes
    assert match.problem.training and "gradients are wanted" in note.reason


def test_a_pool_that_trains_is_no_page():
    query, keys, values, *others = operands()
    pools = (x.requires_grad_() for x in (keys, values))
    (match,) = judged(subscript, [query, *pools, *others], grad=True).matches
    assert match.problem.page is None and not match.notes


def test_a_backend_without_pages_gets_the_copy():
    graph = {}

    def backend(gm, example_inputs):
        refuses = lambda problem: None if problem.page is not None else True
        graph["result"] = rewrite_graph(gm, options=ALWAYS, supports=refuses)
        return gm.forward

    with torch.no_grad():
        actual = torch.compile(subscript, backend=backend, fullgraph=True)(*operands())
    torch.testing.assert_close(actual, subscript(*operands()))
    (match,) = graph["result"].matches
    assert "no kernel supports it" in match.notes[0].reason


def test_new_rows_of_each_request_are_jagged():
    """Delta queries: rows unpadded, keys in pages."""
    query, keys, values, table, lengths = operands()
    rows = query.transpose(1, 2).flatten(0, 1)[:9]

    def delta(rows, keys, values, table, lengths, ends):
        query = pad(rows, ends, 5).transpose(1, 2)
        out = varying(query, keys, values, table, lengths)
        return unpad(out.transpose(1, 2), ends, rows.shape[0])

    inputs = [rows, keys, values, table, lengths, offsets_of((4, 0, 5))]
    (match,) = judged(delta, inputs).matches
    assert match.problem.jagged_query and match.problem.page == R and not match.notes
