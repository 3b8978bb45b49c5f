"""ATen's clamps as score expressions: a rule for each convention of their slopes at a bound.

Versions of torch differ there, and `contract` asks the installed one which rule holds:

| bound | up to torch 2.13 | from 2.14 on (pytorch/pytorch#191142) |
|---|---|---|
| a number | all of the gradient to x | none |
| a tensor, equal to x | all of it to x | half to x, half to the bound |
| two tensors, both equal to x | all of it to x | all of it to x |
| two equal tensors above x | none | all of it to the lower bound |
| a NaN among tensors | none | all of it to x, as if nothing were clamped |
"""

from __future__ import annotations

import math

from ...program.expr import Expr, call, const
from .kinds import as_kind, either, literal, real, where

Bound = Expr | None


def closed(kind: str, x: Expr, min: Bound = None, max: Bound = None) -> Expr:
    """A clamp by numbers or tensors; x has all of the gradient where it is equal to a bound."""
    if kind == "i":
        return _of_integers(x, min, max)
    if _vary(min, max):
        return _closed_between(real(x), min, max)
    x = real(x) if min is None else call("clamp_min", real(x), literal(min))
    return x if max is None else call("clamp_max", x, literal(max))


def open_(kind: str, x: Expr, min: Bound = None, max: Bound = None) -> Expr:
    """A clamp by numbers; x has no gradient where it is equal to a bound."""
    if kind == "i":
        return _of_integers(x, min, max)
    x = real(x)
    if _vary(min, max):
        inside = const(True)
        for compare, bound in (("gt", min), ("lt", max)):
            if bound is not None:
                inside = where("b", inside, call(compare, x, real(bound)), const(False))
        return call("where", inside, x, call("detach", _closed_between(x, min, max)))
    x = x if min is None else call("clamp_min_open", x, literal(min))
    return x if max is None else call("clamp_max_open", x, literal(max))


def shared(kind: str, x: Expr, min: Bound = None, max: Bound = None) -> Expr:
    """A clamp by tensors; x and a bound that is equal to it have half of the gradient each."""
    if kind == "i":
        return _of_integers(x, min, max)
    x = real(x)
    if min is not None and max is not None:
        return _shared_between(x, real(min), real(max))
    return call("maximum", x, real(min)) if min is not None else call("minimum", x, real(max or x))


def _of_integers(x: Expr, low: Bound, high: Bound) -> Expr:
    x = as_kind("i", x)
    x = x if low is None else call("maximum", x, as_kind("i", low))
    return x if high is None else call("minimum", x, as_kind("i", high))


def _vary(*bounds: Bound) -> bool:
    return any(bound is not None and not bound.is_const for bound in bounds)


def _closed_between(x: Expr, low: Bound, high: Bound) -> Expr:
    """A bound gets the gradient of the elements that it cuts: `low` only where it is below `high`.
    A NaN among the three makes a NaN, and takes no gradient.
    """
    low, high = (None if bound is None else real(bound) for bound in (low, high))
    spread = _is_nan(x, low, high)
    result = where("f", spread, const(math.nan), x)
    if low is not None:
        own = low if high is None else where("f", call("lt", low, high), low, call("detach", low))
        result = call("where", call("lt", x, low), own, result)
    if high is not None:
        over = call("gt", x, high)
        over = over if low is None else call("or", over, call("lt", high, low))
        result = call("where", over, high, result)
    return result + call("where", spread, math.nan, 0.0)


def _shared_between(x: Expr, low: Expr, high: Expr) -> Expr:
    """Three cases: low < high, where ties are shared; low >= high, where they are not; and a NaN,
    beside which x has the gradient unless a bound still cuts it.
    """
    over, under = call("gt", x, high), call("lt", x, low)
    crossed = call("lt", high, low)
    ordered = call("minimum", call("maximum", x, low), high)
    meeting = call("where", call("or", crossed, over), high, call("where", under, low, x))
    result = call("where", call("lt", low, high), ordered, meeting)
    spread = _is_nan(x, low, high)
    if spread.is_const:
        return result
    uncut = call("where", call("or", over, under), 0.0, x) + call("where", crossed, high, 0.0)
    return call("where", spread, uncut + math.nan, result)


def _is_nan(*terms: Bound) -> Expr:
    """Whether one of the terms is NaN. Literals and integers are not."""
    result = const(False)
    for term in terms:
        if term is not None and not term.is_const and term.op != "float":
            result = either(result, call("isnan", term))
    return result
