"""Check that the numbers of a program are those of the model.

A program has one integer type and one float type (`widths`). The model may round or wrap numbers
where the program does not. If that could change a result, the region is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ...program.expr import Expr, postorder
from ...program.integers import Range
from ...program.rounding import fragile_condition, reworded_decision, rounded_term
from ...program.score_mod import formula
from ...rejection import Code
from ..result import Refused
from .reading import kind_of
from .shadow import Shadow
from .views import tensor_of
from .widths import ROUNDING, fits, is_small


@dataclass
class Precision:
    """Facts about the numbers of one reading.

    ranges:    The ranges of the integer leaves.
    wide:      Terms that the model computes in fp64.
    singles:   Terms that the model has in fp32.
    number:    A call that takes a Python float which varies, in fp32.
    rounded:   Positions that the model computes in 16 bits.
    reworded:  Floats for which torch uses another formula.
    """

    shadow: Shadow
    ranges: Callable[[Expr], Range]
    wide: Node | None = None
    number: Node | None = None
    singles: dict[Expr, Node] = field(default_factory=dict)
    rounded: set[Expr] = field(default_factory=set)
    reworded: set[Expr] = field(default_factory=set)

    def note_width(self, node: Node) -> None:
        """A real number of fp64 among the terms."""
        if tensor_of(node).dtype == torch.float64:
            self.wide = node

    def note_numbers(self, node: Node, given: Iterable[Any], dtype: torch.dtype) -> None:
        """Note a call that takes a Python float which varies, if it takes it in fp32."""
        if dtype == torch.float32 and any(map(_varies, given)):
            self.number = node

    def note_rounding(self, x: Expr, dtype: torch.dtype) -> None:
        """Note a term of positions, and of no score, that the model computes in 16 bits."""
        leaves = {leaf.op for leaf in postorder([x]) if not leaf.args}
        if dtype in ROUNDING and "index" in leaves and "s" not in leaves:
            self.rounded.add(x)

    def check_fit(self, x: Expr, dtype: torch.dtype, node: Node) -> None:
        """Integers of a program do not wrap: those of the model must not either."""
        if not fits(x, dtype, self.ranges):
            reason = f"{self.shadow.describe(node)} may go beyond what {dtype} holds"
            raise Refused(Code.DTYPE, reason, self.shadow.source(node))

    def check_conditions(self, weight: Expr) -> None:
        """Refuse a mask that another rounding would change."""
        fragile = fragile_condition(weight, self.rounded)
        fragile = fragile or reworded_decision(weight, self.reworded)
        if fragile is not None:
            raise Refused(
                Code.POINTWISE_OP,
                f"a mask that depends on how its numbers round: {formula(fragile)}",
            )

    def check_dtypes(self, dtype: torch.dtype, weight: Expr) -> None:
        """Refuse what is no product of reals, and what rounds elsewhere than the model."""
        if kind_of(dtype) != "f":
            raise Refused(Code.DTYPE, f"the first product multiplies {dtype} operands")
        if self.wide is not None and dtype != torch.float64:
            raise Refused(
                Code.DTYPE,
                f"{self.shadow.describe(self.wide)} continues in fp64 on scores in {dtype}",
            )
        if dtype != torch.float64:
            return
        large = [node.args[0] for node in self.singles if node.op == "float"]
        large = [x for x in large if not is_small(x, self.ranges)]
        rounded = rounded_term(weight, self.singles, large)
        node = self.number if rounded is None else self.singles[rounded]
        if node is not None:
            reason = f"{self.shadow.describe(node)} rounds to fp32 beside scores in {dtype}"
            raise Refused(Code.DTYPE, reason, self.shadow.source(node))


def _varies(given: Any) -> bool:
    """True if an argument is a Python float that varies from call to call."""
    return isinstance(given, Node) and isinstance(given.meta.get("val"), torch.SymFloat)
