"""Whether a value lies in the range of those that are expected, case by case."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .samples import CASES, COUNT

SLACK = 32  # roundings of the narrowest type
EDGE = torch.finfo(torch.float64).max / 64


def outside(
    expected: Sequence[Tensor], actual: Sequence[Tensor], eps: float, least: Tensor
) -> Tensor:
    """Lanes in which no actual value matches the expected ones.

    A value matches if it is in the range of the expected values of all variants of the case. It
    also matches if it is NaN or infinite, and one of these is too.
    """
    wrong = torch.ones(CASES, dtype=torch.bool)
    known = torch.stack(list(expected)).view(-1, CASES)
    finite = known.isfinite()
    low = torch.where(finite, known, torch.inf).amin(0)
    high = torch.where(finite, known, -torch.inf).amax(0)
    spread = torch.where(low <= high, high - low, 0.0)
    size = torch.where(finite, known.abs(), 0.0).amax(0)
    slack = SLACK * eps * size + 4 * spread + least[:CASES]
    for value in (x[:CASES] for x in actual):
        close = (value >= low - slack) & (value <= high + slack)
        same = (known == value).any(0) | (known.isnan().any(0) & value.isnan())
        # A number is 0 in one precision and not in another, and is multiplied by infinity.
        same |= known.isnan().any(0) & finite.any(0) & value.isinf()
        # Near the end of the range the order of factors decides whether a product overflows.
        same |= (high > EDGE) & (value == torch.inf) | (low < -EDGE) & (value == -torch.inf)
        wrong = wrong & ~(close | same)
    return wrong.repeat(COUNT // CASES)
