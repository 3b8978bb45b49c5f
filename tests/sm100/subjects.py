"""Our kernels at the shapes of mutation: twice as many steps as stages, two tiles a CTA."""

from collections.abc import Sequence
from functools import partial

import torch

from tests.kernels import cute_cases, test_cute_backward, test_cute_forward
from tests.kernels.cute_cases import CAUSAL, F16
from tests.kernels.test_cute_backward import Case as BackwardCase

from .mutate import Subject

# A tail of P (and of dS) is compared per element, and each comparison is moved and made true.
PADDING = (272, "past the end P and dS meet rows that TMA filled with zeros")
# Two in each kernel of the backward: for the second of two operands that are released together, and
# for sums whose reader writes the P that is waited for next.
SECOND = (4, "a wait beside them waits for what comes later")


def forward(case: cute_cases.Case, schedules: Sequence[str]) -> list[torch.Tensor]:
    return [test_cute_forward.forward(case, case.operands(), schedules=tuple(schedules))]


def backward(case: BackwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    call = test_cute_backward.make_call(case)
    return test_cute_backward.emulated(case, call, schedules=tuple(schedules))


def of_forward(**options: object) -> Subject:
    return Subject(partial(forward, cute_cases.Case("mutants", **options)), {"mask": PADDING})


def of_backward(*program: str, **options: object) -> Subject:
    case = BackwardCase(*program, heads=1, key_heads=1, ctas=1, **options)
    return Subject(partial(backward, case), {"mask": PADDING, "wait": SECOND})


SUBJECTS: dict[str, Subject] = {
    "forward": of_forward(d=64, n=300, m=1000, ctas=1),
    "forward-causal": of_forward(
        program=CAUSAL.format("sigmoid(s)"), d=64, n=520, m=520, dtype=F16
    ),
    # sigmoid(0) is not 0: a row past the end that is stored makes a difference.
    "forward-jagged": of_forward(
        program="sigmoid(s)", d=64, q_lengths=(300, 0, 440), k_lengths=(500, 0, 129)
    ),
    "backward": of_backward(rows=650, keys=200),
    "backward-causal": of_backward(test_cute_backward.CAUSAL, rows=300, keys=300),
}
