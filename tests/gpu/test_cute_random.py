"""500 random jagged problems on the Hopper kernels, on the card. Poison lies around every operand,
in rows that no sequence owns, and where results will be."""

import pytest
import torch

pytest.importorskip("cutlass")
pytestmark = pytest.mark.cuda

from gdpa_inductor.kernels.cute.backward.launch import backward  # noqa: E402
from gdpa_inductor.kernels.cute.launch import forward  # noqa: E402
from gdpa_inductor.operands import output_shape  # noqa: E402
from tests.gpu.checks import hopper  # noqa: E402, F401
from tests.gpu.test_cute_backward import poisoned  # noqa: E402
from tests.kernels.jagged_random import (  # noqa: E402
    GUARD,
    KINDS,
    JaggedProblem,
    draw,
    fault,
    storage,
)

PROBLEMS = 500
EACH = PROBLEMS // len(KINDS)
FREE = ("silu, wide", "causal")  # also with dQ in any order
FEW = 15


def results(problem: JaggedProblem, ordered: bool) -> list[torch.Tensor]:
    """O, dQ, dK and dV. Nothing is written beside O, and nothing into the operands."""
    o, needs = problem.operands, (True,) * 3 + (False,) * len(problem.operands.aux)
    tensors = [x for x in (*o.flat(), problem.grad_out) if isinstance(x, torch.Tensor)]
    before = [storage(x).clone() for x in tensors]
    shape = output_shape(o)
    room = o.query.new_full((shape[0] + 2 * GUARD, *shape[1:]), float("nan"))
    out = room[GUARD : GUARD + shape[0]]
    with poisoned():
        forward(o, ctas=problem.ctas, out=out)
        outcome = backward(problem.grad_out, o, needs, ctas=problem.ctas, ordered=ordered)
    assert room[:GUARD].isnan().all() and room[-GUARD:].isnan().all(), "written beside O"
    for x, y in zip(tensors, before, strict=True):
        assert torch.equal(storage(x).view(torch.uint8), y.view(torch.uint8)), "an operand changed"
    return [out, *outcome]


def faults(name: str, seeds: range, ordered: bool) -> dict[int, str]:
    """By seed."""
    outcome = {}
    for seed in seeds:
        problem = draw(KINDS[name], seed).to("cuda")
        wrong = fault(problem, results(problem, ordered))
        if wrong is not None:
            outcome[seed] = wrong
    return outcome


@pytest.mark.parametrize("name", KINDS)
def test_random_problems(name: str) -> None:
    assert faults(name, range(EACH), ordered=True) == {}


@pytest.mark.parametrize("name", FREE)
def test_random_problems_in_any_order(name: str) -> None:
    assert faults(name, range(FEW), ordered=False) == {}
