"""Our kernels at the shapes of mutation: at least twice as many steps as each ring has stages, at
least two tiles a CTA, and tails of every length.

Every program has a pole at a score of zero. That is what scores past an end are, and TMA fills the
rows there with zeros: a weight that loses its mask is infinite, and its product with them NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tests.kernels import test_cute_backward, test_cute_forward
from tests.kernels.cute_cases import CAUSAL, F16
from tests.kernels.cute_cases import Case as ForwardCase
from tests.kernels.test_cute_backward import POLE
from tests.kernels.test_cute_backward import Case as BackwardCase

from .mutate import Subject

CAUSAL_POLE = CAUSAL.format("where(eq(s,0.0),div(1.0,s),sigmoid(s))")


def forward(case: ForwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    return [test_cute_forward.forward(case, case.operands(), schedules=tuple(schedules))]


def backward(side: str, case: BackwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    call = test_cute_backward.make_call(case)
    return test_cute_backward.emulated(case, call, schedules=tuple(schedules), sides=[side])


def of_forward(
    main: Mapping[str, Any], tails: Iterable[Mapping[str, Any]], **fixed: Any
) -> Subject:
    """main, tails: lengths. fixed: what the kernel is a function of."""
    fixed = {"name": "mutants", "program": POLE, "d": 64, "ctas": 1, **fixed}
    made = partial(partial, forward)
    return Subject(
        made(ForwardCase(**fixed, **main)), tuple(made(ForwardCase(**fixed, **x)) for x in tails)
    )


def of_backward(
    side: str, main: tuple[Any, Any], tails: Iterable[tuple[Any, Any]], program: str = POLE
) -> Subject:
    """main, tails: (resident, streamed) lengths of the side."""

    def call(resident: Any, streamed: Any) -> Any:
        rows, keys = (streamed, resident) if side == "keys" else (resident, streamed)
        case = BackwardCase(program, heads=1, key_heads=1, rows=rows, keys=keys, ctas=1)
        return partial(backward, side, case)

    return Subject(call(*main), tuple(call(*x) for x in tails))


COLUMNS = range(1, 128)  # of a tile of scores that are there
HALF = range(1, 65)  # two warpgroups of the backward run the same code, each on a half
LONG, SHORT = (1000, 0, 130), (200, 0, 129)
SUBJECTS: dict[str, Subject] = {
    "forward": of_forward({"n": 396, "m": 700, "h": 2}, ({"n": 40, "m": m} for m in COLUMNS)),
    "forward-wide": of_forward(
        {"n": 396, "m": 400, "h": 2}, ({"n": 40, "m": m} for m in COLUMNS), d=128
    ),
    "forward-causal": of_forward(
        {"n": 520, "m": 520, "h": 2}, ({"n": 130, "m": m} for m in COLUMNS),
        program=CAUSAL_POLE, dtype=F16,
    ),
    "forward-jagged": of_forward(
        {"q_lengths": (300, 0, 440), "k_lengths": (700, 0, 129)},
        ({"q_lengths": (40,), "k_lengths": (m,)} for m in COLUMNS),
    ),
    **{
        f"backward{name}-{side}": of_backward(side, main, ((tail, n) for n in HALF), program)
        for side in ("keys", "rows")
        for name, main, tail, program in (
            ("", (200, 1030), 70, POLE),
            ("-causal", (520, 1030) if side == "keys" else (1030, 1000), 70, CAUSAL_POLE),
        )
    },
    "backward-jagged-keys": of_backward("keys", (SHORT, LONG), (((70,), (n,)) for n in HALF)),
    "backward-jagged-rows": of_backward("rows", (SHORT, LONG), (((70,), (n,)) for n in HALF)),
}  # fmt: skip
