"""What a region was read as: the types that cross from the matcher to layout, jagged and plan."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch.fx import Node

from ...program.expr import Expr
from ...rejection import Code
from ..host.sizes import Size
from ..result import Refused
from .frame import Digits, Index, Space

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Operand:
    """A tensor from outside, the index it is read at, and the casts that it goes through.

    detached: it is read as a number, by `.item()`, and so without a gradient.
    """

    leaf: Node
    index: Index
    casts: tuple[torch.dtype, ...] = ()
    detached: bool = False


@dataclass(frozen=True)
class Reading:
    """What a region computes: output[output] = sum over `keys` of weight(score, …) · value.

    weight       the score program. In it aux(i) stands for operand i of `aux`, and
                 Expr("index", i) for `positions[i]`
    left, right  operands of the first product, in the order in which it multiplies them
    inner        what the first product contracts
    keys         what the second product contracts
    swapped      the second product has the value on the left
    dtypes       of the second product's result, and those that it is cast to, one after the other

    Indices, all of one element:
    score        of the first product, as ATen has it
    scores       of its result, as the user has it
    weights      of what the second product reads
    output       of the result
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


def kind_of(dtype: torch.dtype) -> str:
    """The kind of an element of this dtype. Raises Refused for complex numbers and for formats
    below 16 bits.
    """
    if dtype == torch.bool:
        return "b"
    if dtype in _FLOATS:
        return "f"
    if dtype.is_floating_point or dtype.is_complex:
        raise Refused(Code.DTYPE, f"{dtype} operands")
    return "i"


def flat(index: Index) -> Digits:
    return tuple(itertools.chain.from_iterable(index))
