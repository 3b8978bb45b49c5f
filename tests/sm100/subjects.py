"""Our kernels at the shapes of mutation: twice as many steps as stages, two tiles a CTA."""

from collections.abc import Sequence
from functools import partial

import torch

from tests.kernels import cute_cases, test_cute_backward, test_cute_forward
from tests.kernels.cute_cases import CAUSAL, F16
from tests.kernels.test_cute_backward import Case as BackwardCase

from .mutate import Subject

# Columns past the end: the rows of V there are zeros by TMA, so what P holds there does not matter.
COLUMNS = {"mask": (256, "past the end P meets rows of V that TMA filled with zeros")}
# Of two operands that a tile keeps, and that are released together.
SECOND = {"wait": (4, "what they wait for, a wait before them has waited for")}


def forward(case: cute_cases.Case, schedules: Sequence[str]) -> list[torch.Tensor]:
    return [test_cute_forward.forward(case, case.operands(), schedules=tuple(schedules))]


def backward(case: BackwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    call = test_cute_backward.make_call(case)
    return test_cute_backward.emulated(case, call, schedules=tuple(schedules))


def of_forward(redundant: dict, **options: object) -> Subject:
    return Subject(partial(forward, cute_cases.Case("mutants", **options)), redundant)


def of_backward(*program: str, **options: object) -> Subject:
    case = BackwardCase(*program, heads=1, key_heads=1, ctas=1, **options)
    return Subject(partial(backward, case), SECOND)


SUBJECTS: dict[str, Subject] = {
    "forward": of_forward(COLUMNS, d=64, n=300, m=1000, ctas=1),
    "forward-causal": of_forward(
        COLUMNS, program=CAUSAL.format("sigmoid(s)"), d=64, n=520, m=520, dtype=F16
    ),
    "forward-jagged": of_forward(COLUMNS, d=64, q_lengths=(300, 0, 129), k_lengths=(500, 0, 129)),
    "backward": of_backward(rows=650, keys=200),
    "backward-causal": of_backward(test_cute_backward.CAUSAL, rows=300, keys=300),
}
