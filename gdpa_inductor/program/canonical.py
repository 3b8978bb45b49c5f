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

    def apply(node: Expr, values: list[object]) -> Expr:
        args = [v if isinstance(v, Expr) else const(v) for v in values]  # type: ignore[arg-type]
        term = call(node.op, *args)
        rewritten = _named(_folded(term))
        if rewritten is not term and rewritten.kind == "f":
            changed.add(rewritten)
        return rewritten

    (result,) = fold([weight], lambda leaf: leaf, apply)
    return weight if reworded_decision(result, changed, Trait.TURNS) is not None else result


def _named(node: Expr) -> Expr:
    """The operation that a term equals by `Op.spelled`, or the term itself."""
    spelled = ((name, row.spelled) for name, row in OPS.items() if row.spelled is not None)
    for name, written in spelled if node.op in OPS else ():
        for spelling in _spellings(written):
            argument = _match(spelling, node)
            if argument is not None:
                return call(name, argument)
    return node


@functools.cache
def _spellings(written: Callable[[Expr], tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The formulas of a row, made once and not for each comparison."""
    return written(X)


def _folded(node: Expr) -> Expr:
    """Fold x·c·d to x·(c·d), if both overflow and vanish for the same x. Integers lose neutral
    terms.
    """
    if node.kind == "i" and node.op in ("add", "sub"):
        left, right = node.args
        if right.is_const and right.value == 0:
            return left
        return right if node.op == "add" and left.is_const and left.value == 0 else node
    if node.kind == "f" and node.op == "mul" and node.args[0].op == "mul":
        (x, inner), outer = node.args[0].args, node.args[1]
        if inner.is_const and outer.is_const:
            first, second = float(inner.value or 0), float(outer.value or 0)
            if _same_range(first, second):
                return call("mul", x, first * second)
    return node


def _same_range(first: float, second: float) -> bool:
    """Whether x·first·second leaves the range of a float for the same x as x·(first·second).

    It does if both numbers shrink x or both enlarge it. Then the intermediate result is not further
    out than the final one.
    """
    product = abs(first * second)
    grows = abs(first) >= 1.0 and abs(second) >= 1.0
    shrinks = abs(first) <= 1.0 and abs(second) <= 1.0
    return (grows or shrinks) and _LEAST < product < 1.0 / _LEAST


@functools.lru_cache(maxsize=4096)
def _match(pattern: Expr, node: Expr) -> Expr | None:
    """The term for X, if `node` is an instance of `pattern`; else None."""
    if pattern is X:
        return node
    if pattern.is_const:
        return X if node.is_const and _close(pattern, node) else None  # X: no wildcard seen
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


def _close(pattern: Expr, node: Expr) -> bool:
    return node.kind == "f" and math.isclose(
        float(pattern.value or 0), float(node.value or 0), rel_tol=1e-12
    )
