"""No wrong rewrite of a matcher that lacks one of its checks gets past the judge."""

import pytest
import torch

from tests.adversary.program import Operand, Program
from tests.judge import corpus, turning_programs
from tests.judge.checks import CHECKS
from tests.judge.mutations import Outcome, examine, subjects
from tests.judge.programs import PROGRAMS

SAMPLE = (
    "first_hour: number_then_write",
    "first_hour: detach_in_place",
    "first_hour: write_on_a_cast",
    "own: random_numbers_drawn_for_nothing",
    "own: a_value_written_between",
    "own: a_value_that_is_made_from_the_first_result",
    "own: one_of_two_results_is_dropped",
    "precisions: seconds_in_double",  # and two masks that are wrong where a comparison ties
    "masks: halves_and_positions",
    "jagged: jag_other_offsets_v",
    "programs: forward_ad",
    "own: hook_on_a_view",  # from torch 2.15 on the hook is in the graph
    "writes: hook_on_alias_of_key_view",
)


TURNING = [name for name, (f, *_) in PROGRAMS.items() if f.__module__ == turning_programs.__name__]


def assert_stopped(outcome: Outcome) -> None:
    assert outcome.status != "matcher", outcome.fault
    assert not outcome.through, f"{outcome.name}: {outcome.through}"


def test_labels_are_unique():
    labels = [check.label for check in CHECKS]
    assert len(set(labels)) == len(labels)


def test_every_check_is_there():
    """One that has moved would be removed in vain."""
    for check in CHECKS:
        names = check.owner if isinstance(check.owner, dict) else dir(check.owner)
        assert check.name in names, check.label


def test_every_check_can_be_removed():
    for check in CHECKS:
        with check.removed():
            assert check.original is not None, check.label


def hooks_count() -> bool:
    """Whether a hook on a view is in the graph, and changes gradients.

    From torch 2.15 on. Torch 2.13 captures it and changes no gradient.
    """
    graphs = []

    def backend(gm, _):
        graphs.append(gm)
        return gm.forward

    def hooked(x):
        y = x.mT
        z = y.view(y.shape).cos()
        y.register_hook(lambda grad: grad * 3)
        return z

    x = torch.ones(2, 2, requires_grad=True)
    compiled = torch.compile(hooked, backend=backend)
    grads = [torch.autograd.grad(function(x).sum(), x)[0] for function in (hooked, compiled)]
    captured = any("register_hook" in node.name for gm in graphs for node in gm.graph.nodes)
    return captured and torch.equal(*grads)


@pytest.mark.refused_by_judge
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name):
    (subject,) = [s for s in [*corpus.from_programs(), *corpus.from_hunts()] if s.name == name]
    outcome = examine(subject)
    if "hook" in name and not hooks_count():
        pytest.skip("this torch leaves hooks out of graphs or gradients")
    assert outcome.wrong, "no check matters here"
    assert_stopped(outcome)


@pytest.mark.refused_by_judge
@pytest.mark.parametrize("name", TURNING)
def test_the_slope_of_another_torch_at_a_bound_is_refused(name):
    """torch 2.14 changed what a clamp passes on where a score is equal to its bound."""
    (subject,) = [s for s in corpus.from_programs() if s.name == f"own: {name}"]
    (check,) = [check for check in CHECKS if check.name == "holding"]
    outcome = examine(subject, [check])
    assert set(outcome.wrong) == {check.label}
    assert_stopped(outcome)


TWO_OFFSETS = """
import fbgemm_gpu
import torch
import torch.nn.functional as F


def f(q, k, v, lens):
    offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lens)
    ends = lens.cumsum(0)
    ends.clamp_(max=3)
    other = F.pad(ends.int(), (1, 0))
    pad = torch.ops.fbgemm.jagged_to_padded_dense
    q, k, v = (pad(x, [o], [4], 0.0) for x, o in ((q, other), (k, offsets), (v, offsets)))
    w = F.hardsigmoid(q @ k.mT / 6.0)
    return torch.ops.fbgemm.dense_to_jagged(w @ v, [offsets], 12)[0]
"""


@pytest.mark.refused_by_judge
def test_rows_that_the_fused_call_leaves_out_are_missed():
    """Q is padded by offsets with a clamp, the output unpadded by those without. Which rows the two
    share are right."""
    pytest.importorskip("fbgemm_gpu")
    operands = [Operand(name, ("12", "2"), grad=True) for name in "qkv"]
    operands.append(Operand("lens", ("3",), kind="int64", values=(4, 4, 1)))
    drawn = Program(0, TWO_OFFSETS, operands, "float32", "hazard", (), "jagged")
    outcome = examine(corpus.drawn(drawn))
    assert "sides._check_sink" in outcome.wrong
    assert_stopped(outcome)


DROPPED = """
import torch
import torch.nn.functional as F


def f(q, k, v):
    with torch.no_grad():
        w = F.silu(q @ k.mT)
        with torch.enable_grad():
            w = F.dropout(w, 0.4)
        return w @ v
"""


def test_other_masks_of_a_fused_dropout_are_not_wrong():
    """Fused without the check of gradient modes, it draws other random numbers than eager."""
    operands = [Operand(name, ("2", "6", "4"), grad=True) for name in "qkv"]
    drawn = Program(0, DROPPED, operands, "float32", "hazard", (), "plain")
    outcome = examine(corpus.drawn(drawn))
    assert "finder.Finder._check_ambient" in outcome.changed
    assert not outcome.wrong


@pytest.mark.refused_by_judge
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_all(first):
    torch.set_num_threads(1)
    through = {}
    for subject in subjects(400, slice(first, None, 2)):
        outcome = examine(subject)
        if outcome.through:
            through[outcome.name] = outcome.through
    assert not through
