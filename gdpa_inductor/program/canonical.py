"""Recognise operations that are written out by hand: `x * sigmoid(x)` is silu.

The row of an operation lists formulas that equal it (`Op.spelled`). They equal it for every x, also
infinities, and in gradients. So a name only gives a kernel a fast form, and never changes a result.
A formula that differs anywhere is not listed: a clamp at 0 is not relu, as their gradients at 0
differ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from .expr import OPS, Expr, Trait, call, const, fold
from .rounding import reworded_decision

X = Expr("any")  # stands for any term in a spelling
_COMMUTATIVE = ("add", "mul")
_LEAST = 1e-30  # the smallest scale that is folded; smaller ones need no speed


def canonical(weight: Expr) -> Expr:
    """The same program, with formulas replaced by their operations, and constant scales folded.

    It is unchanged if a term that would change decides something, such as a mask.
    """
    changed = set[Expr]()

    def apply(node: Expr, values: list[Any]) -> Expr:
        term = call(node.op, *values)
        rewritten = _named(_folded(term))
        if rewritten is not term and rewritten.kind == "f":
            changed.add(rewritten)
        return rewritten

    (result,) = fold([weight], lambda leaf: leaf, apply)
    return weight if reworded_decision(result, changed, Trait.TURNS) is not None else result


def _named(node: Expr) -> Expr:
    for name, row in OPS.items() if node.op in OPS else ():
        for spelling in () if row.spelled is None else _spellings(row.spelled):
            argument = _match(spelling, node)
            if argument is not None:
                return call(name, argument)
    return node


@functools.cache  # comparisons are many
def _spellings(spelled: Callable[[Expr], tuple[Expr, ...]]) -> tuple[Expr, ...]:
    return spelled(X)


def _folded(node: Expr) -> Expr:
    zero = const(0)
    match node.op, node.args:
        case "add" | "sub", (x, y) if y is zero:
            return x
        case "add", (x, y) if x is zero:
            return y
        case "mul", (Expr(op="mul", args=(x, inner)), outer) if inner.is_const and outer.is_const:
            if node.kind == "f" and _same_range(inner.value, outer.value):
                return call("mul", x, inner.value * outer.value)
    return node


def _same_range(first: float, second: float) -> bool:
    """Whether x·first·second overflows and vanishes for the same x as x·(first·second)."""
    # So it does if the intermediate result is not further out than the final one.
    product = abs(first * second)
    grows = abs(first) >= 1.0 and abs(second) >= 1.0
    shrinks = abs(first) <= 1.0 and abs(second) <= 1.0
    return (grows or shrinks) and _LEAST < product < 1.0 / _LEAST


@functools.lru_cache(maxsize=4096)
def _match(pattern: Expr, node: Expr) -> Expr | None:
    """The term that X stands for, or X if it is not in `pattern`; None if they do not match."""
    if pattern is X:
        return node
    if pattern.is_const:
        is_float = node.is_const and node.kind == "f"
        return X if is_float and math.isclose(pattern.value, node.value, rel_tol=1e-12) else None
    if pattern.op != node.op or len(pattern.args) != len(node.args):
        return None
    for args in [node.args, node.args[::-1]] if pattern.op in _COMMUTATIVE else [node.args]:
        argument = X
        for part, arg in zip(pattern.args, args, strict=True):
            seen = _match(part, arg)
            if seen is None or (argument is not X and seen is not X and seen is not argument):
                break
            argument = argument if seen is X else seen
        else:
            return argument
    return None
