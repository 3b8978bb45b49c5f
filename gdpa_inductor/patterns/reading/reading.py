"""The types of a reading, which the matcher passes to `layout`, `jagged` and `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...program.expr import Expr
from ...rejection import Code
from ..host.sizes import Size
from ..result import Refused
from .frame import Digits, Index, Space

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LINEAR_ATTENTION = "three matrices are multiplied, the right-hand ones first: there are no weights"


@dataclass(frozen=True)
class Operand:
    """A tensor from outside the region, the index at which it is read, and the casts on the way.

    detached: It is read without a gradient, for example by `.item()`.
    summed: The dims that it is first summed over. They have no digits.
    places: It is the index into a table of so many places, and stored as small integers.
    wraps: A negative one of these places counts from the end.
    pages: The pages that its rows are copied from. The leaf is this copy.
    is_seed: It is the seed of a dropout, which is the leaf. The index is that of what is drawn.
    """

    leaf: Node
    index: Index
    casts: tuple[torch.dtype, ...] = ()
    detached: bool = False
    summed: tuple[int, ...] = ()
    places: Size | None = None
    wraps: bool = False
    pages: Pages | None = None
    is_seed: bool = False


@dataclass(frozen=True)
class Pages:
    """Where rows of a factor are copied from.

    pool:    All pages, read at the place that the table has.
    table:   The places, as an operand of as many `places` as there are pages.
    number:  The digits of the place.
    """

    pool: Operand
    table: Operand
    number: Digits


@dataclass(frozen=True)
class RowSum:
    """Sums over the keys. term: As `Reading.weight`. index: Of an element of the model's result."""

    term: Expr
    index: Index


@dataclass(frozen=True)
class RowFactor:
    """What each row is multiplied with, or divided by. function: "mul" or "div"."""

    function: str
    operand: Operand


@dataclass(frozen=True)
class Reading:
    """What a region computes: output[output] = sum over `keys` of weight(score, …) · value.

    weight:       The score program. aux(i) is operand i of `aux`. Expr("index", i) is
                  `positions[i]`.
    left, right:  The operands of the first product, in its order.
    inner:        The digits that the first product contracts.
    keys:         The digits that the second product contracts.
    swapped:      The second product has the value on the left.
    dtypes:       The dtype of the second product's result, then the dtypes of casts after it.
    sums:         Row sums that are a result too.
    factor:       A factor of the weights that is made of these, and is no part of `weight`.

    Indices of one and the same element:
    score:        In the first product, as ATen has it.
    scores:       In its result, as the user has it.
    weights:      In the operand of the second product.
    output:       In the result.
    """

    weight: Expr
    aux: tuple[Operand, ...]
    scalars: tuple[Size, ...]
    positions: tuple[Digits, ...]
    left: Operand
    right: Operand
    value: Operand
    output: Index
    weights: Index
    score: Index
    scores: Index
    inner: Digits
    keys: Digits
    space: Space
    swapped: bool
    dtypes: tuple[torch.dtype, ...]
    sums: RowSum | None = None
    factor: RowFactor | None = None

    @property
    def terms(self) -> tuple[Expr, ...]:
        """The weight, and what else is summed over the keys."""
        return (self.weight,) if self.sums is None else (self.weight, self.sums.term)

    def with_terms(self, terms: Sequence[Expr]) -> Reading:
        weight, *summed = terms
        sums = None if self.sums is None else replace(self.sums, term=summed[0])
        return replace(self, weight=weight, sums=sums)


def kind_of(dtype: torch.dtype) -> str:
    """The kind of an element of this dtype. Raises Refused for complex numbers, for formats below
    16 bits, and for integers that int64 does not hold.
    """
    if dtype == torch.bool:
        return "b"
    if dtype in _FLOATS:
        return "f"
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.uint64:
        raise Refused(Code.DTYPE, f"{dtype} operands")
    return "i"
