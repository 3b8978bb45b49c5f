"""Our kernels at the shapes of mutation: twice as many steps as stages, two tiles a CTA."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from tests.kernels import cute_cases, test_cute_backward, test_cute_forward
from tests.kernels.cute_cases import CAUSAL, F16
from tests.kernels.test_cute_backward import Case as BackwardCase

Subject = Callable[[Sequence[str]], list[torch.Tensor]]


def forward(case: cute_cases.Case, schedules: Sequence[str]) -> list[torch.Tensor]:
    return [test_cute_forward.forward(case, case.operands(), schedules=tuple(schedules))]


def backward(case: BackwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    call = test_cute_backward.make_call(case)
    return test_cute_backward.emulated(case, call, schedules=tuple(schedules))


SUBJECTS: dict[str, Subject] = {
    "forward": partial(forward, cute_cases.Case("mutants", d=64, n=300, m=1000, ctas=1)),
    "forward-causal": partial(
        forward,
        cute_cases.Case("mutants", CAUSAL.format("sigmoid(s)"), d=64, n=520, m=520, dtype=F16),
    ),
    "forward-jagged": partial(
        forward,
        cute_cases.Case("mutants", d=64, q_lengths=(300, 0, 129), k_lengths=(500, 0, 129)),
    ),
    "backward": partial(backward, BackwardCase(rows=650, keys=200, heads=1, key_heads=1, ctas=1)),
    "backward-causal": partial(
        backward,
        BackwardCase(test_cute_backward.CAUSAL, rows=300, keys=300, heads=1, key_heads=1, ctas=1),
    ),
}
