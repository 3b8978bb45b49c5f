"""The judge where numbers overflow: the order of a product decides whether it does."""

import pytest
import torch

from gdpa_inductor.judge.ranges import outside
from gdpa_inductor.judge.samples import CASES, COUNT
from tests.judge.rewritten import program, verdicts

INF, MOST = torch.inf, torch.finfo(torch.float64).max
RIGHT = "a0:f[b,h,q_idx]; a1:f[-,-,q_idx]; a2:f[-]; pow(div(add(s,mul(mul(0.5,a0),a1)),a2),2.0)"


def added_divided_squared(q, k, v, a, b, c, x):
    """What the fuzzer drew: a lane of it has a gradient of 1.1e308."""
    q = torch.tanh(q.view(2, 2, 2, 2, 2).permute(2, 0, 1, 3, 4))
    scores = torch.addcmul((k.permute(2, 3, 1, 0, 4) * x) @ q.mT, a, b, value=0.5)
    weights = ((scores / c.expand(2, 2, 2, 2, 2)) ** 2 * 1.0).contiguous()
    return v.view(2, 2, 2, 2, 2).mT.matmul(weights)


SHAPES = [(4, 2, 2, 2), (2, 2, 2, 2, 2), (4, 2, 2, 2), (2, 2, 2, 1, 2), (1, 1, 2), (1,), (2,)]


def inputs() -> list[torch.Tensor]:
    return [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in SHAPES]


def test_a_gradient_that_overflows_in_another_order_is_right():
    assert verdicts(added_divided_squared, inputs()) == [None]


@pytest.mark.parametrize(
    "text",
    [
        RIGHT.replace("mul(0.5,a0)", "mul(mul(mul(0.5,a0),1e200),1e-200)"),
        RIGHT.replace("add(s,", "add(mul(mul(s,1e6),1e-6),"),
        RIGHT.replace("2.0)", "4.0)"),
    ],
    ids=["an operand beyond the range", "scores beyond the range", "another power"],
)
def test_a_program_that_overflows_far_below_is_invalid(text: str):
    (verdict,) = verdicts(added_divided_squared, inputs(), program(text))
    assert verdict is not None and verdict.invalid, verdict


@pytest.mark.parametrize(
    ("theirs", "mine", "right"),
    [
        (MOST / 2, INF, True),
        (-MOST / 2, -INF, True),
        (MOST / 2, -INF, False),
        (INF, MOST / 2, False),
        (MOST / 1024, INF, False),
        (3e38, INF, False),
        (1.0, INF, False),
        (torch.nan, INF, False),
    ],
)
def test_only_a_number_at_the_end_of_the_range_may_overflow(theirs, mine, right):
    expected, actual = (torch.full((COUNT,), x, dtype=torch.float64) for x in (theirs, mine))
    wrong = outside([expected], [actual], 1e-8, torch.ones(COUNT, dtype=torch.float64))
    assert wrong.all() != right and COUNT % CASES == 0
