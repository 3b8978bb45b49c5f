"""Kinds of score expressions: conversions, literals, and logic with literals folded."""

from __future__ import annotations

from ...program.expr import Expr, call, const
from ...program.simplify import with_literal
from ...rejection import Code
from ..result import Refused


class Unknown(ValueError):
    """The call has no expression: an option or an operand is out of the vocabulary."""


def as_kind(kind: str, x: Expr) -> Expr:
    """Convert as type promotion does: truth values to 0 and 1, integers to reals; to "b" by
    comparison with zero. A table of reals is one.

    Raises:
        Refused: a literal that no integer of 64 bits is near: machines differ in what it becomes.
    """
    if x.kind == kind or (x.kind == "t" and kind == "f"):
        return x
    if x.is_const and x.value is not None:
        if kind == "i" and not -(2.0**63) <= x.value < 2.0**63:  # nor is NaN
            raise Refused(Code.DTYPE, f"{x.value} becomes an integer, and none of 64 bits is near")
        return const({"f": float, "i": int, "b": bool}[kind](x.value))
    return call({"f": "float", "i": "int", "b": "bool"}[kind], x)


def real(x: Expr) -> Expr:
    return as_kind("f", x)


def literal(x: Expr | None, default: float | None = None) -> float:
    """The value of a literal operand; `default` where it is left out."""
    if x is None and default is not None:
        return default
    if x is None or not x.is_const or x.value is None:
        raise Unknown("a parameter is no constant: it is a tensor, or varies from call to call")
    return float(x.value)


def where(kind: str, condition: Expr, x: Expr, y: Expr) -> Expr:
    condition = as_kind("b", condition)
    if kind != "b":
        return call("where", condition, as_kind(kind, x), as_kind(kind, y))
    return either(both(condition, as_kind("b", x)), both(negation(condition), as_kind("b", y)))


def both(x: Expr, y: Expr) -> Expr:
    return with_literal("and", x, y) or call("and", x, y)


def either(x: Expr, y: Expr) -> Expr:
    return with_literal("or", x, y) or call("or", x, y)


def negation(x: Expr) -> Expr:
    if x.is_const:
        return const(not x.value)
    return x.args[0] if x.op == "not" else call("not", x)
