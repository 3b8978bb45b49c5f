"""Which terms need no mask past the end of a sequence.

A kernel loads zeros past the ends of Q, K, V and dO. So the score and the gradient are 0 there, and
the value of a term is multiplied by another such zero. A term needs no mask if it is finite there,
whatever its operands are. `silu(c·s)` is finite, but a bias may be infinite.

If a key (or query) has infinite elements, this is not enough: 0 · inf is NaN, and it is added to
the gradient of that key. Then the formula's own gradient must not be finite either. It is not if
`silu` gets an infinite score, but `sigmoid` gives 1 there. It is not either if an infinite gradient
is multiplied by a slope, even by 0. It may be finite if a term chooses by the score.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .expr import OPS, Expr, Trait, dtype_of, fold, postorder

_Values = frozenset[Any] | None  # what a term may be for one score and gradient; None: anything
_BOTH: _Values = frozenset((False, True))
_MOST = 16  # values that are followed
_LARGEST = 2.0**14  # so that neither fp16 nor a sum of products overflows


def still(names: Sequence[str], variants: Sequence[Sequence[Expr]]) -> frozenset[str]:
    """The names of terms that need no mask past the ends, in any of the variants.

    names: "p" and "ds" are multiplied by zeros there. Other terms are summed as they are. variants:
    Each has a term for each name.
    """
    return frozenset(
        name
        for name, *terms in zip(names, *variants, strict=True)
        if all(_bounded(t, _LARGEST if name in ("p", "ds") else 0.0) and _shows(t) for t in terms)
    )


def _bounded(term: Expr, most: float) -> bool:
    values = _values(term, 0.0, 0.0)
    return values is not None and all(abs(value) <= most for value in values)


def _shows(term: Expr) -> bool:
    """Whether the formula is not finite wherever an infinite operand would reach it from a tail."""
    scores = _finite(term, math.nan, 0.0) or not any(
        _finite(term, score, 1.0, some=True) for score in (math.inf, -math.inf)
    )
    return scores and (_finite(term, 0.0, math.nan) or _is_smooth(term))


def _finite(term: Expr, score: float, gradient: float, some: bool = False) -> bool:
    values = _values(term, score, gradient)
    if values is None:
        return some
    return (any if some else all)(map(math.isfinite, values))


def _is_smooth(term: Expr) -> bool:
    """Whether a term never chooses by the score or the gradient."""
    moving: set[Expr] = set()
    for node in postorder([term]):
        if node.op in ("s", "g"):
            moving.add(node)
        elif any(arg in moving for arg in node.args):
            moving.add(node)
            smooth = Trait.SMOOTH in OPS[node.op].traits
            if not smooth or (node.op == "where" and node.args[0] in moving):
                return False
    return True


def _values(term: Expr, score: float, gradient: float) -> _Values:
    moving = {"s": frozenset((score,)), "g": frozenset((gradient,))}

    def leaf(node: Expr) -> _Values:
        if node.is_const:
            return frozenset((node.value,))
        return moving.get(node.op, _BOTH if node.kind == "b" else None)

    (values,) = fold([term], leaf, _applied)
    return values


def _applied(node: Expr, operands: list[Any]) -> _Values:
    params = OPS[node.op].params
    args, literals = operands[: len(operands) - params], operands[len(operands) - params :]
    if node.op == "where" and args[0] is not None:
        ways = [args[1] if condition else args[2] for condition in args[0]]
        if args[0] == _BOTH:  # a masked element is 0 in the formula as well
            ways = [way for way in ways if way != frozenset((0.0,))] or ways
        return None if any(way is None for way in ways) else _few(itertools.chain(*ways))
    if node.op == "div" and args[0] is not None and _is_size(node.args[1]):
        return args[0]  # no size is below 1, so the largest values are those of no division
    if any(arg is None for arg in args):
        return _BOTH if node.kind == "b" else None
    return _few(_applications(node, args, literals))


def _applications(node: Expr, args: list[Any], literals: list[Any]) -> Iterator[Any]:
    dtypes = [dtype_of(arg.kind, torch.float32) for arg in node.args]
    for values in itertools.product(*args):
        operands = (torch.tensor(x, dtype=dtype) for x, dtype in zip(values, dtypes))
        yield OPS[node.op].torch(*operands, *literals).item()


def _is_size(x: Expr) -> bool:
    return x.op == "scalar" or (x.op == "float" and _is_size(x.args[0]))


def _few(values: Iterable[Any]) -> _Values:
    distinct = set[Any]()
    for value in values:
        distinct.add(math.nan if value != value else value)  # two NaN are never equal
        if len(distinct) > _MOST:
            return None
    return frozenset(distinct)
