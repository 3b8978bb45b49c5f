"""Compare sizes that may be symbolic, by static knowledge only. No guard is ever added."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..._compat import shapes

Size = int | torch.SymInt


def same(left: Size, right: Size) -> bool:
    """Whether two sizes are statically known to be equal."""
    return left is right or shapes.known_equal(left, right)


def same_shape(left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Whether two shapes are statically known to be equal."""
    return len(left) == len(right) and all(map(same, left, right))


def alike(left: Size, right: Size) -> bool:
    """Whether two sizes are equal, statically or by their hints.

    A caller that relies on the hints has to leave a check in the graph.
    """
    hints = shapes.size_hint(left), shapes.size_hint(right)
    return same(left, right) or (hints[0] is not None and hints[0] == hints[1])


def smaller(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a tensor has fewer elements than another, as far as hints tell."""
    counts = shapes.size_hint(left.numel()), shapes.size_hint(right.numel())
    return counts[0] is not None and counts[1] is not None and counts[0] < counts[1]


def is_one(size: Size) -> bool:
    return same(size, 1)


def is_zero(size: Size) -> bool:
    return same(size, 0)
