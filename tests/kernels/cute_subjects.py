"""Our kernels at the shapes of mutation: at least twice as many steps as each ring has stages, at
least two tiles a CTA, and tails of every length.

Every program has a pole at a score of zero. That is what scores past an end are, and TMA fills the
rows there with zeros: a weight that loses its mask is infinite, and its product with them NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tests.emulator.mutate import Subject
from tests.kernels import test_cute_backward, test_cute_forward
from tests.kernels.cute_backward_cases import POLE
from tests.kernels.cute_backward_cases import Case as BackwardCase
from tests.kernels.cute_cases import CAUSAL, F16
from tests.kernels.cute_cases import Case as ForwardCase

CAUSAL_POLE = CAUSAL.format("where(eq(s,0.0),div(1.0,s),sigmoid(s))")


def forward(case: ForwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    return [test_cute_forward.forward(case, case.operands(), schedules=tuple(schedules))]


def backward(side: str, case: BackwardCase, schedules: Sequence[str]) -> list[torch.Tensor]:
    call = test_cute_backward.make_call(case)
    return test_cute_backward.emulated(case, call, schedules=tuple(schedules), sides=[side])


def of_forward(
    *main: Mapping[str, Any],
    tails: Iterable[Mapping[str, Any]],
    redundant: Mapping[str, tuple[int, str]] | None = None,
    **fixed: Any,
) -> Subject:
    """main, tails: lengths, the cheapest first. fixed: what the kernel is a function of."""
    fixed = {"name": "mutants", "program": POLE, "d": 64, "ctas": 1, **fixed}
    calls = (
        tuple(partial(forward, ForwardCase(**fixed, **lengths)) for lengths in row)
        for row in (main, tails)
    )
    return Subject(*calls, dict(redundant or {}))


def of_backward(
    side: str,
    *main: tuple[Any, Any],
    tails: Iterable[tuple[Any, Any]],
    redundant: Mapping[str, tuple[int, str]] | None = None,
    **fixed: Any,
) -> Subject:
    """main, tails: (resident, streamed) lengths of the side, the cheapest first. fixed: what the
    kernel is a function of."""

    def call(resident: Any, streamed: Any) -> Any:
        rows, keys = (resident, streamed) if side == "rows" else (streamed, resident)
        options = {"program": POLE, "heads": 1, "key_heads": 1, "ctas": 1, **fixed}
        return partial(backward, side, BackwardCase(rows=rows, keys=keys, **options))

    calls = (tuple(call(*lengths) for lengths in row) for row in (main, tails))
    return Subject(*calls, dict(redundant or {}))


FIRST = (3, "the first column of a block is there; a query tile without keys has no rows")
TOGETHER = (1, "both query tiles are released together")
HERE = (2, FIRST[1].partition(";")[0])  # with one query tile
# The loads' waits for room for K0, K2 and V1, of the parts K0 K1 K2 V0 V1 of a block. The part
# before each takes a buffer that was released together with theirs.
PARTS = (4, f"{TOGETHER[1]}, and so are all parts of K or V of a block")
# The loads' wait for room for Q_1. A tile before with one block has as many for Q_0, on whose room
# they waited. Else its last V found room only after the scores of Q_1 that were to come.
BEFORE = (1, f"{TOGETHER[1]}, or room for a later V came after the last scores of Q_1")
PROXIES = (2, "the emulator does not order the accesses of two proxies to global memory")
COLUMNS = range(1, 128)  # of a tile of scores that are there
# Two warpgroups of the backward run the same code, each on two parts of 32 columns.
HALF = (*range(1, 33), *range(65, 97))
SHORT, LONG = (200, 0, 129, 40), (1000, 0, 130, 0)
SUBJECTS: dict[str, Subject] = {
    "forward": of_forward(
        {"m": 640, "n": 100, "h": 2}, {"m": 396, "n": 700, "h": 2},
        tails=({"m": 40, "n": n} for n in COLUMNS), redundant={"mask": FIRST},
    ),
    "forward-wide": of_forward(
        {"m": 640, "n": 100, "h": 2}, {"m": 396, "n": 400, "h": 2},
        tails=({"m": 40, "n": n} for n in COLUMNS), d=128,
        redundant={"mask": FIRST, "wait": TOGETHER},
    ),
    "forward-192": of_forward(
        {"m": 640, "n": 100, "h": 2}, {"m": 396, "n": 700, "h": 2},
        tails=({"m": 40, "n": n} for n in COLUMNS), d=192, dv=128,
        redundant={"mask": FIRST, "wait": PARTS},
    ),
    "forward-256": of_forward(
        {"m": 300, "n": 100, "h": 2}, {"m": 200, "n": 700, "h": 2},
        tails=({"m": 40, "n": n} for n in COLUMNS), d=256, redundant={"mask": HERE},
    ),
    "forward-256-jagged": of_forward(
        {"q_lengths": (100, 200, 140, 130), "k_lengths": (0, 80, 0, 100)},
        {"q_lengths": (200, 0, 140), "k_lengths": (700, 0, 129)},
        tails=({"q_lengths": (40,), "k_lengths": (n,)} for n in COLUMNS), d=192, dv=256,
        redundant={"mask": HERE},
    ),
    "forward-causal": of_forward(
        {"m": 640, "n": 100, "h": 2}, {"m": 520, "n": 520, "h": 2},
        tails=({"m": 130, "n": n} for n in COLUMNS), program=CAUSAL_POLE, dtype=F16,
        redundant={
            "mask": (4, f"{FIRST[1]}; no row lies above the first column of its blocks"),
            "wait": BEFORE,
        },
    ),
    "forward-jagged": of_forward(
        {"q_lengths": (100, 384, 140, 130), "k_lengths": (0, 80, 0, 100)},
        {"q_lengths": (500, 0, 440), "k_lengths": (700, 0, 129)},
        tails=({"q_lengths": (40,), "k_lengths": (n,)} for n in COLUMNS),
        redundant={"mask": FIRST, "wait": TOGETHER},
    ),
}  # fmt: skip
for _name in ("keys", "rows", "both", "pair"):
    _side = "both" if _name == "pair" else _name
    _redundant = {"fence": PROXIES} if _side == "both" else {}
    _dims = (72, 64) if _name == "pair" else (64, 64)
    SUBJECTS |= {
        f"backward-{_name}": of_backward(
            _side, (300, 100), (200, 1030), tails=((70, n) for n in HALF), dims=_dims,
            redundant=_redundant,
        ),
        f"backward-causal-{_name}": of_backward(
            _side, (300, 100), (1100, 1000) if _side == "rows" else (300, 1100),
            tails=((70, n) for n in HALF), program=CAUSAL_POLE, dtype=F16,
            dims=(40, 72) if _name == "both" else (72, 40), redundant=_redundant,
        ),
        f"backward-jagged-{_name}": of_backward(
            _side, ((300, 140), (100, 80)), (SHORT, LONG), dims=_dims,
            tails=(((70,), (n,)) for n in HALF), redundant=_redundant,
        ),
    }  # fmt: skip
