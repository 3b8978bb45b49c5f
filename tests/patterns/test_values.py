"""Several values of one set of weights: one call without gradients, else one for each."""

import pytest
import torch
import torch.nn.functional as F

from gdpa_inductor.options import Options
from tests._recorder import Recorder
from tests.operands import make_operands
from tests.patterns import values_table as table
from tests.patterns.rows import ROWS, SIZES, fused, refused

SIDE_BY_SIDE = {
    table.two_values: 2,
    table.three_values_of_other_widths: 3,
    table.two_values_with_mask_and_bias: 2,
    table.results_written_in_place: 2,
    table.one_value_twice: 2,
}
SPECS = {row.function: row.specs for row in ROWS}
by_name = pytest.mark.parametrize("function", SIDE_BY_SIDE, ids=lambda f: f.__name__)


@by_name
def test_values_stand_side_by_side_in_inference(function):
    (match,) = fused(function, SPECS[function], training=False).matches
    assert len(match.also) == SIDE_BY_SIDE[function] - 1


@by_name
def test_values_have_calls_of_their_own_in_training(function):
    """In one call each would reach the others: gradients of zeros where the model has none."""
    recorder = fused(function, SPECS[function], regions=SIDE_BY_SIDE[function])
    assert not any(match.also for match in recorder.matches)


def test_values_that_are_made_later_have_calls_of_their_own():
    fused(table.values_made_between, SPECS[table.values_made_between], regions=2, training=False)


@pytest.mark.parametrize(
    "function", [table.two_values_and_the_weights, table.an_unknown_function_beside]
)
def test_all_regions_of_one_score_are_fused_or_none(function):
    """Whoever keeps the scores keeps them for all: the reason names that user."""
    for refusal in refused({"SCORES_ESCAPE"}, function, SPECS[function]).rejections:
        if refusal.code.name == "SCORES_ESCAPE":
            assert "besides the second product" in refusal.reason


def jagged(q, k, v, u, offsets):
    padded = lambda x: torch.ops.gdpa.jagged_to_padded_dense(x, offsets, 9).unflatten(2, (2, 4))
    q, k, v, u = (padded(x).transpose(1, 2) for x in (q, k, v, u))
    w = F.silu(q @ k.mT)
    outs = ((w @ x).transpose(1, 2).flatten(2) for x in (v, u))
    return tuple(torch.ops.gdpa.dense_to_jagged(x, offsets, 14) for x in outs)


@pytest.mark.parametrize("training", [True, False])
def test_jagged_values_share_their_weights_too(training):
    operands = make_operands(dict.fromkeys("qkvu", "14 8"), SIZES, dtype=torch.float64)
    operands["offsets"] = torch.tensor([0, 5, 5, 14])
    matches = fused(jagged, operands=operands, training=training, regions=1 + training).matches
    assert all(m.problem.jagged_query and m.problem.jagged_key for m in matches)


def as_advised(q, k, v, u):
    w = F.relu(q @ k.mT / q.shape[-2]) ** 2
    return (w @ torch.cat([v, u], -1)).chunk(2, -1)


def test_the_cost_model_asks_for_values_side_by_side_in_training():
    """Each would compute the scores again; the advice is fused in one call."""
    inputs = [torch.randn(2, 2, 64, 16, requires_grad=True) for _ in range(4)]
    recorder = Recorder(Options.make({}))
    torch.compile(table.two_values, backend=recorder)(*inputs)
    assert not recorder.matches and len(recorder.rejections) == 2
    for refusal in recorder.rejections:
        assert refusal.code.name == "SLOWER" and "torch.cat([v, u], -1)" in refusal.advice
    with torch.no_grad():
        torch.compile(table.two_values, backend=recorder)(*inputs)
    assert len(recorder.matches) == 1
    advised = Recorder(Options.make({}))
    torch.compile(as_advised, backend=advised)(*inputs)
    assert len(advised.matches) == 1 and not advised.rejections
    for mine, other in zip(as_advised(*inputs), table.two_values(*inputs)):
        torch.testing.assert_close(mine, other)
