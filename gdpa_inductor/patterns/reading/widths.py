"""Checks that a number is the same in the program as in the model, although dtypes differ.

A program has one integer type, torch's int64, and one float type, that of the scores. The model may
have narrower types: integers that wrap, and, if scores are fp64, floats that round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..._compat import shapes
from ...program.expr import Expr, call, const, fold, postorder
from ...program.integers import ANY, INT32, Range, inside, ranges
from ..host import facts
from ..host.sizes import Size, product
from .frame import Digits
from .reading import Operand
from .vocabulary import real

COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
ROUNDING = {torch.bfloat16: "bf16", torch.float16: "f16"}
# Calls that give out, or decide by, their operands as they are, once these are of one dtype. Not
# hardtanh: its slope is decided by the numbers that it is given.
ROUNDS_OPERANDS = COMPARISONS | {
    "where", "masked_fill", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "fill",
    "hardshrink", "softshrink", "threshold",
}  # fmt: skip
# Calls that decide by a number which some devices round and others do not (threshold: GPUs do).
ROUNDS_ON_SOME = {"threshold": 1}  # which argument
_EXACT_IN_FP32 = (-(1 << 24), 1 << 24)


def limits(dtype: torch.dtype) -> Range:
    info = torch.iinfo(dtype)
    return info.min, info.max


def leaf_ranges(
    operands: list[Operand], scalars: list[Size], positions: list[Digits],
    dtype_of: Callable[[Operand], torch.dtype],
) -> Callable[[Expr], Range]:  # fmt: skip
    """The known ranges of the integer leaves of a reading."""

    def leaf(node: Expr) -> Range:
        number = int(node.value or 0)
        if node.op == "aux":
            return limits(dtype_of(operands[number]))
        if node.op == "scalar":
            return size_range(scalars[number])
        low, high = size_range(product(atom.size for atom in positions[number]))
        return 0, max(high - 1, 0) if low >= 0 else INT32[1]

    return leaf


def size_range(size: Size) -> Range:
    """Kernels count places in 32 bits, so a dimension is no longer than that."""
    if isinstance(size, int):
        return size, size
    low, high = shapes.size_bounds(size)
    low, high = ANY[0] if low is None else low, ANY[1] if high is None else high
    is_length = low >= 0 and shapes.expression_of(size).is_Symbol
    return (low, min(high, INT32[1])) if is_length else (low, high)


def fits(x: Expr, dtype: torch.dtype, leaf: Callable[[Expr], Range]) -> bool:
    """True if an integer, or a term that becomes one, fits `dtype` for all operands."""
    if dtype == torch.int64 or dtype.is_floating_point or dtype == torch.bool or x.kind == "b":
        return True
    return x.kind == "i" and inside(ranges([x], leaf)[x], limits(dtype))


def is_small(x: Expr, leaf: Callable[[Expr], Range]) -> bool:
    """True if an integer is exact in fp32."""
    return x.kind != "i" or inside(ranges([x], leaf)[x], _EXACT_IN_FP32)


def meeting_dtype(node: Node, name: str, result: torch.dtype) -> torch.dtype:
    """The dtype that a call computes in: that of its result, or what a comparison promotes to."""
    if name not in COMPARISONS or len(node.args) < 2:
        return result
    left, right = (_sample(argument) for argument in node.args[:2])
    return torch.result_type(left, right)


def _sample(argument: Any) -> Any:
    value = argument.meta.get("val") if isinstance(argument, Node) else argument
    if isinstance(value, torch.SymInt):
        return 1
    return 1.0 if isinstance(value, torch.SymFloat) else value


def decides_in_fp64(node: Node) -> bool:
    """True if a call that returns no real numbers reads some in fp64.

    A comparison does so if its operands meet there.
    """
    called = facts.name(node)
    if called in COMPARISONS:
        return meeting_dtype(node, called, torch.bool) == torch.float64
    given = [_sample(argument) for argument in node.args]
    return any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in given)


def rounded_literal(value: float, dtype: torch.dtype) -> Expr:
    """A real number as a tensor of `dtype` holds it: past its range it is infinite."""
    return const(float(torch.tensor(value, dtype=torch.float64).to(dtype)))


def in_16_bits(x: Any, given: Any, dtype: torch.dtype, compared: bool) -> Any:
    """An operand of a choice or a comparison in 16 bits, as torch casts it first.

    It casts numbers. In a comparison it also casts tensors of other dtypes.
    """
    if not isinstance(x, Expr) or x.kind == "b":
        return x
    if x.is_const:
        return rounded_literal(float(x.value or 0), dtype)
    value = given.meta.get("val") if isinstance(given, Node) else None
    varies = isinstance(value, (torch.SymInt, torch.SymFloat))
    narrows = compared and isinstance(value, torch.Tensor) and value.dtype != dtype
    return call(ROUNDING[dtype], real(x)) if varies or narrows else x


def kept_in_16_bits(found: Expr, args: Sequence[Any], given: Sequence[Any], dtype: Any) -> Expr:
    """The result of a call in 16 bits, rounded if it is an operand as it is: 1 · x is x.

    args: The operands. given: The call's arguments that they were read from.
    """
    same = [g for x, g in zip(args, given, strict=False) if x is found]
    return in_16_bits(found, same[0], dtype, True) if same else found


def is_rounded_on_some(called: str, args: Sequence[Any], dtype: torch.dtype) -> bool:
    """True if the value of a call in 16 bits depends on the device, next to one number."""
    given = args[ROUNDS_ON_SOME[called]] if called in ROUNDS_ON_SOME else None
    value = float(given.value or 0) if isinstance(given, Expr) and given.is_const else math.nan
    return not math.isnan(value) and rounded_literal(value, dtype).value != value


def in_fp32(weight: Expr) -> Expr:
    """The program with literals past fp32 as what they are there, infinite."""
    largest = torch.finfo(torch.float32).max
    known = {
        node: rounded_literal(float(node.value or 0), torch.float32)
        for node in postorder([weight])
        if node.is_const and node.kind == "f" and largest < abs(float(node.value or 0)) < math.inf
    }

    def apply(node: Expr, values: list[Any]) -> Expr:
        return call(node.op, *values)

    return fold([weight], lambda node: known.get(node, node), apply)[0] if known else weight
