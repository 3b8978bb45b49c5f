"""Symbolic sizes as score expressions, and score expressions' integers as arguments of the op.

A SymInt becomes one integer argument. A SymFloat, such as the square root of a size, becomes an
expression over the sizes that it is made from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..._compat import shapes
from ...program.expr import Expr, call, const, scalar
from ...rejection import Code
from ..host.sizes import Size
from ..result import Refused
from .kinds import real


def expression(value: torch.SymInt | torch.SymFloat, scalars: list[Size]) -> Expr:
    """The expression of a symbolic number; integers that it needs are appended to `scalars`."""
    wanted = shapes.expression_of(value)
    if isinstance(value, torch.SymFloat):
        return real(_convert(wanted, value, scalars))
    if shapes.is_constant(value):
        return const(int(wanted))
    for position, known in enumerate(scalars):
        if isinstance(known, torch.SymInt) and shapes.expression_of(known) == wanted:
            return scalar(position)
    scalars.append(value)
    return scalar(len(scalars) - 1)


def _chain(name: str) -> Callable[[list[Expr]], Expr]:
    def apply(left: Expr, right: Expr) -> Expr:
        if left.kind != right.kind:
            left, right = real(left), real(right)
        return call(name, left, right)

    return lambda args: functools.reduce(apply, args)


def _power(args: list[Expr]) -> Expr:
    if not args[1].is_const or args[1].value is None:
        raise ValueError("a power with a symbolic exponent")
    return call("pow", real(args[0]), float(args[1].value))


def _quotient(args: list[Expr]) -> Expr:
    return call("div", real(args[0]), real(args[1]))


# Sympy's classes by name: how their arguments combine.
_RULES: dict[str, Callable[[list[Expr]], Expr]] = {
    "Add": _chain("add"),
    "Mul": _chain("mul"),
    "Max": _chain("maximum"),
    "Min": _chain("minimum"),
    "Pow": _power,
    "FloatPow": _power,
    "PowByNatural": _power,
    "FloatTrueDiv": _quotient,
    "IntTrueDiv": _quotient,
    "ToFloat": lambda args: real(args[0]),
    "Identity": lambda args: args[0],
    "OpaqueUnaryFn_sqrt": lambda args: call("sqrt", real(args[0])),
    "OpaqueUnaryFn_exp": lambda args: call("exp", real(args[0])),
    "OpaqueUnaryFn_log": lambda args: call("log", real(args[0])),
}


def _convert(expr: Any, like: torch.SymFloat, scalars: list[Size]) -> Expr:
    if expr.is_Integer:
        return const(int(expr))
    if expr.is_number and not expr.free_symbols:
        return const(float(expr))
    if expr.is_Symbol:
        if not expr.is_integer:
            reason = "a Python float that varies from call to call: make it a constant or a tensor"
            raise Refused(Code.POINTWISE_OP, reason)
        return expression(shapes.without_hint(expr, like), scalars)
    rule = _RULES.get(type(expr).__name__)
    reason = f"a number computed from sizes as {expr}"
    if rule is None:
        raise Refused(Code.POINTWISE_OP, reason)
    try:
        return rule([_convert(arg, like, scalars) for arg in expr.args])
    except ValueError as error:
        raise Refused(Code.POINTWISE_OP, f"{reason}: {error}") from None
