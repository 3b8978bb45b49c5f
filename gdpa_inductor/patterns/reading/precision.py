"""Check that a number is the same in the program as in the model, although dtypes differ.

A program has one integer type, torch's int64, and one float type, that of the scores. The model may
have narrower types: integers that wrap, and floats that round, in 16 bits or beside fp64. If that
could change a result, the region is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ..._compat import shapes
from ...program.expr import AXES, SCORE, Expr, call, const, postorder, with_leaves
from ...program.integers import ANY, INT32, Range, inside, ranges
from ...program.rounding import (
    decision_at_limit,
    fragile_condition,
    reworded_decision,
    rounded_term,
)
from ...program.score_mod import formula
from ...rejection import Code
from ..host import facts
from ..host.sizes import Size
from ..result import Refused
from .frame import Digits
from .kinds import real
from .reading import Operand, kind_of
from .shadow import Shadow
from .views import value_of

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
# Functions with a limit of 1 or -1, which 16 bits reach where fp32 does not.
_LIMITED = frozenset(["sigmoid", "tanh", "erf", "expm1", "div"])
# Calls that give a finite number for any finite ones.
_FINITE = COMPARISONS | {
    "add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where", "float", "and", "or", "not",
}  # fmt: skip
_EXACT_IN_FP32 = (-(1 << 24), 1 << 24)


@dataclass
class Precision:
    """Facts about the numbers of one reading, whose operands, scalars and positions it shares.

    wide:      Terms that the model computes in fp64.
    singles:   Terms that the model has in fp32.
    number:    A call that takes a Python float which varies, in fp32.
    narrow:    A call in 16 bits that reads no score.
    rounded:   Positions that the model computes in 16 bits.
    limited:   Scored terms that it rounds to 16 bits, maybe to a limit.
    reworded:  Floats for which torch uses another formula.
    """

    shadow: Shadow
    operands: list[Operand]
    scalars: list[Size]
    positions: list[Digits]
    wide: Node | None = None
    number: Node | None = None
    narrow: Node | None = None
    singles: dict[Expr, Node] = field(default_factory=dict)
    rounded: set[Expr] = field(default_factory=set)
    limited: set[Expr] = field(default_factory=set)
    reworded: set[Expr] = field(default_factory=set)

    def range_of(self, leaf: Expr) -> Range:
        if leaf.op == "aux":
            operand = self.operands[leaf.value]
            return ANY if operand.is_seed else _limits(facts.tensors(operand.leaf)[0].dtype)
        if leaf.op in AXES:
            return 0, INT32[1]
        if leaf.op == "scalar":
            return _size_range(self.scalars[leaf.value])
        low, high = _size_range(math.prod(atom.size for atom in self.positions[leaf.value]))
        return 0, max(high - 1, 0) if low >= 0 else INT32[1]

    def note_numbers(self, node: Node, args: Iterable[Any], dtype: torch.dtype) -> None:
        """Note a call that takes a Python float which varies, if it takes it in fp32."""
        if dtype == torch.float32 and any(
            isinstance(x, Node) and isinstance(value_of(x), torch.SymFloat) for x in args
        ):
            self.number = node

    def note_rounding(self, x: Expr, dtype: torch.dtype, node: Node) -> None:
        """Note a term that the model computes in 16 bits: without a score, or limited."""
        leaves = {leaf.op for leaf in postorder([x]) if not leaf.args}
        if dtype in ROUNDING and "index" in leaves and "s" not in leaves:
            self.rounded.add(x)
        if dtype in ROUNDING and "s" not in leaves:
            self.narrow = self.narrow or node
        if dtype in ROUNDING and x.op in _LIMITED and SCORE in postorder(x.args[-1:]):
            self.limited.add(x)

    def check_term(self, x: Expr, dtype: torch.dtype, node: Node) -> None:
        """Refuse a term that may wrap in the model. Note one in fp32."""
        if not fits(x, dtype, self.range_of):
            reason = f"may go beyond what {dtype} holds"
            raise self.shadow.refused(Code.DTYPE, node, reason, at_source=True)
        if dtype == torch.float32:
            self.singles[real(x)] = node

    def checked(self, weight: Expr) -> Expr:
        """The weight with safe divisors. Raises Refused where a rounding would change its mask."""
        self.check_conditions(weight)
        return self.doubtful_divisors(weight)

    def check_conditions(self, weight: Expr) -> None:
        """Refuse a mask that another rounding would change."""
        fragile = fragile_condition(weight, self.rounded)
        fragile = fragile or reworded_decision(weight, self.reworded)
        fragile = fragile or decision_at_limit(weight, self.limited)
        if fragile is not None:
            reason = f"a mask that depends on how its numbers round: {formula(fragile)}"
            raise Refused(Code.POINTWISE_OP, reason)

    def doubtful_divisors(self, weight: Expr) -> Expr:
        """The weight, with `where(n == 0, 0, n)` for each number n that it divides by and that may
        be below 1. Kernels take a plain one for finite in quotients that they mask.
        """
        doubtful: dict[Expr, Expr] = {}
        for node in postorder([weight]):
            divisors = node.args[1:] if node.op == "div" else node.args
            for term in divisors if node.op not in _FINITE else ():
                leaves = set(postorder([term]))
                if node.op == "div" or SCORE not in leaves:
                    doubtful |= {x: _or_zero(x) for x in leaves if self._may_be_zero(x)}
        return with_leaves(weight, lambda x: doubtful.get(x, x)) if doubtful else weight

    def _may_be_zero(self, x: Expr) -> bool:
        return x.op == "scalar" and not shapes.statically_known_true(self.scalars[x.value] >= 1)

    def check_dtypes(self, dtype: torch.dtype, weight: Expr) -> None:
        """Refuse what is no product of reals, and what rounds elsewhere than the model."""
        if kind_of(dtype) != "f":
            raise Refused(Code.DTYPE, f"the first product multiplies {dtype} operands")
        if dtype != torch.float64:
            if self.wide is not None:
                reason = f"continues in fp64 on scores in {dtype}"
                raise self.shadow.refused(Code.DTYPE, self.wide, reason)
            return
        integers = (node.args[0] for node in self.singles if node.op == "float")
        large = [x for x in integers if not is_small(x, self.range_of)]
        rounded = rounded_term(weight, self.singles, large)
        node = self.number if rounded is None else self.singles[rounded]
        node = node or self.narrow
        if node is not None:
            reason = f"rounds beside scores in {dtype}"
            raise self.shadow.refused(Code.DTYPE, node, reason, at_source=True)


def _or_zero(x: Expr) -> Expr:
    return call("where", call("eq", x, const(0)), const(0), x)


def _limits(dtype: torch.dtype) -> Range:
    info = torch.iinfo(dtype)
    return info.min, info.max


def _size_range(size: Size) -> Range:
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
    return x.kind == "i" and inside(ranges([x], leaf)[x], _limits(dtype))


def is_small(x: Expr, leaf: Callable[[Expr], Range]) -> bool:
    """True if an integer is exact in fp32."""
    return x.kind != "i" or inside(ranges([x], leaf)[x], _EXACT_IN_FP32)


def meeting_dtype(node: Node, name: str, result: torch.dtype) -> torch.dtype:
    """The dtype that a call computes in: that of its result, or what a comparison promotes to."""
    if name not in COMPARISONS or len(node.args) < 2:
        return result
    return torch.result_type(*map(_sample, node.args[:2]))


def _sample(argument: Any) -> Any:
    value = value_of(argument)
    if isinstance(value, torch.SymInt):
        return 1
    return 1.0 if isinstance(value, torch.SymFloat) else value


def decides_in_fp64(node: Node) -> bool:
    """True if a call that returns no real numbers reads some in fp64."""
    called = facts.name(node)
    if called in COMPARISONS:
        return meeting_dtype(node, called, torch.bool) == torch.float64
    values = map(value_of, node.args)
    return any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in values)


def rounded_literal(value: float, dtype: torch.dtype) -> Expr:
    """A real number as a tensor of `dtype` holds it: past its range it is infinite."""
    return const(float(torch.tensor(value, dtype=torch.float64).to(dtype)))


def in_16_bits(x: Any, argument: Any, dtype: torch.dtype, compared: bool) -> Any:
    """An operand of a choice or a comparison in 16 bits, as torch casts it first.

    compared: It casts tensors of other dtypes too, and not numbers alone.
    """
    if not isinstance(x, Expr) or x.kind == "b":
        return x
    if x.is_const:
        return rounded_literal(float(x.value), dtype)
    value = value_of(argument) if isinstance(argument, Node) else None
    varies = isinstance(value, (torch.SymInt, torch.SymFloat))
    narrows = compared and isinstance(value, torch.Tensor) and value.dtype != dtype
    return call(ROUNDING[dtype], real(x)) if varies or narrows else x


def result_in_16_bits(x: Expr, operands: Sequence[Any], args: Sequence[Any], dtype: Any) -> Expr:
    """The result of a call in 16 bits, rounded if it is an operand as it is: 1 · x is x.

    args: The call's arguments that the operands were read from.
    """
    same = [arg for operand, arg in zip(operands, args, strict=False) if operand is x]
    return in_16_bits(x, same[0], dtype, True) if same else x


def is_rounded_on_some(called: str, operands: Sequence[Any], dtype: torch.dtype) -> bool:
    """True if the value of a call in 16 bits depends on the device, next to one number."""
    number = operands[ROUNDS_ON_SOME[called]] if called in ROUNDS_ON_SOME else None
    if not isinstance(number, Expr) or not number.is_const:
        return False
    value = float(number.value)
    return not math.isnan(value) and rounded_literal(value, dtype).value != value


def in_fp32(weight: Expr) -> Expr:
    """The program with literals past fp32 as what they are there, infinite."""
    largest = torch.finfo(torch.float32).max

    def is_past(node: Expr) -> bool:
        return node.is_const and node.kind == "f" and largest < abs(node.value) < math.inf

    if not any(map(is_past, postorder([weight]))):
        return weight
    return with_leaves(
        weight, lambda x: rounded_literal(x.value, torch.float32) if is_past(x) else x
    )
