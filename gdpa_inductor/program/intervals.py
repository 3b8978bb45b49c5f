"""Interval arithmetic on score programs: bounds of a term over a set of elements, such as a tile.

Each operation has a rule, in its row of `program/ops/`. A rule takes the node, the `Interval`s of
its operands, and literals for its parameters. It returns the interval of the result. Bounds are
terms of the same language, and are evaluated at run time.

Integers are exact. Bounds of floats are widened by `SLACK`. So an element stays in its interval if
a kernel rounds the same formula differently, such as by a fused multiply-add. A result without a
rule is unknown. Unknown floats count as finite: x·0 is 0 and x + (-inf) is -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .expr import OPS, Expr, Literal, const, fold
from .integers import wrapping
from .simplify import FALSE, TRUE, both, build, either, negation

Bound = Expr | None
Rule = Callable[..., "Interval"]
SLACK = 2.0**-20
_EXACT = 1 << 24  # integers up to this one are exact in fp32


@dataclass(frozen=True)
class Interval:
    """Bounds of a term on a set of elements.

    lo, hi:  lo <= term <= hi. A bound is None if it is not known. For a bool, lo is "true
             everywhere", and hi is "true somewhere".
    zero:    A term that is true only if the float or integer is 0 everywhere.
    flat:    The term depends on a condition or a clamp. Only then is it worth testing whether it is
             0 everywhere.
    falls:   The term may be -inf.
    whole:   If it is finite, the term is an integer, and its magnitude is at most this number.
    """

    lo: Bound
    hi: Bound
    zero: Expr = FALSE
    flat: bool = False
    falls: bool = False
    whole: float = math.inf

    @property
    def always(self) -> Expr:
        """A term: whether a bool is true everywhere."""
        return FALSE if self.lo is None else self.lo

    @property
    def never(self) -> Expr:
        """A term: whether a bool is false everywhere."""
        return FALSE if self.hi is None else negation(self.hi)

    @property
    def point(self) -> Bound:
        """The term's value if it is known to be the same for all elements. Otherwise None."""
        return self.lo if self.lo is self.hi else None


def unknown(kind: str) -> Interval:
    return Interval(FALSE, TRUE) if kind == "b" else Interval(None, None)


def literal(node: Expr) -> Interval:
    if node.kind != "f":
        return Interval(node, node)
    value: float = node.value
    whole = abs(value) if value.is_integer() else math.inf
    return Interval(node, node, const(value == 0), falls=value == -math.inf, whole=whole)


def lift(roots: Sequence[Expr], leaf: Callable[[Expr], Interval]) -> list[Interval]:
    """The intervals of terms, from those of their leaves.

    Integer operands count as MODEST (integers.py). An integer that may overflow is unknown.
    """
    wraps = wrapping(roots)

    def apply(node: Expr, values: list[Any]) -> Interval:
        rule = OPS[node.op].interval
        return unknown(node.kind) if node in wraps or rule is None else rule(node, *values)

    return fold(roots, leaf, apply)


def pinned(lo: Bound, hi: Bound, flat: bool) -> Expr:
    """A term: whether bounds allow only 0."""
    if not flat or lo is None or hi is None:
        return FALSE
    zero: Literal = 0.0 if lo.kind == "f" else 0
    return both(build("ge", lo, zero), build("le", hi, zero))


def _do(name: str, *bounds: Bound | Literal) -> Bound:
    # None if a bound is not known
    known = [x for x in bounds if x is not None]
    return build(name, *known) if len(known) == len(bounds) else None


def _rounded(kind: str, lo: Bound, hi: Bound, whole: float = math.inf) -> tuple[Bound, Bound]:
    if kind != "f" or whole <= _EXACT:  # nor does the product below widen 0 and infinities
        return lo, hi
    least, most = 1.0 - SLACK, 1.0 + SLACK
    return (
        _do("minimum", _do("mul", lo, least), _do("mul", lo, most)),
        _do("maximum", _do("mul", hi, least), _do("mul", hi, most)),
    )


# Arithmetic


def add(node: Expr, x: Interval, y: Interval) -> Interval:
    lo, hi = _do("add", x.lo, y.lo), _do("add", x.hi, y.hi)
    lo, hi = _rounded(node.kind, lo, hi, x.whole + y.whole)
    for term in (x, y):
        # Masks are filled with -inf. If one term is -inf everywhere, so is the sum, although the
        # other one may be infinite too: the bounds say +inf - inf, which is NaN, and hide that.
        if term.falls and term.hi is not None:
            fallen, rest = build("eq", term.hi, -math.inf), const(math.inf) if hi is None else hi
            hi = build("where", fallen, -math.inf, rest)
    return _sum(lo, hi, x, y)


def sub(node: Expr, x: Interval, y: Interval) -> Interval:
    lo, hi = _do("sub", x.lo, y.hi), _do("sub", x.hi, y.lo)
    return _sum(*_rounded(node.kind, lo, hi, x.whole + y.whole), x, y)


def _sum(lo: Bound, hi: Bound, x: Interval, y: Interval) -> Interval:
    flat = x.flat or y.flat
    zero = either(both(x.zero, y.zero), pinned(lo, hi, flat))
    return Interval(lo, hi, zero, flat, x.falls or y.falls, x.whole + y.whole)


def _corners(name: str, x: Interval, y: Interval) -> tuple[Bound, Bound]:
    # The operation is monotone in each operand, so its extremes are at ends of both.
    if y.point is not None and y.point.is_const:
        ends = (_do(name, x.lo, y.point), _do(name, x.hi, y.point))
        return ends if y.point.value >= 0 else ends[::-1]
    lo = hi = None
    for a, b in dict.fromkeys((a, b) for a in (x.lo, x.hi) for b in (y.lo, y.hi)):
        corner = _do(name, a, b)
        if corner is None:
            return None, None
        lo = corner if lo is None else build("minimum", lo, corner)
        hi = corner if hi is None else build("maximum", hi, corner)
    return lo, hi


def mul(node: Expr, x: Interval, y: Interval) -> Interval:
    whole = x.whole * y.whole if x.whole and y.whole else 0.0
    if node.args[0] is node.args[1]:
        magnitude = absolute(node, x)
        ends = _do("mul", magnitude.lo, magnitude.lo), _do("mul", magnitude.hi, magnitude.hi)
    elif x.point is not None and x.point.is_const:
        ends = _corners("mul", y, x)
    else:
        ends = _corners("mul", x, y)
    lo, hi = _rounded(node.kind, *ends, whole)
    return Interval(
        lo, hi, either(x.zero, y.zero), x.flat or y.flat, x.falls or y.falls, whole=whole
    )


def div(node: Expr, x: Interval, y: Interval) -> Interval:
    lo, hi = (None, None) if y.point is None else _rounded("f", *_corners("div", x, y))
    if y.point is not None:
        is_not_zero = build("ne", y.point, 0.0)
    else:
        is_not_zero = either(_do("gt", y.lo, 0.0) or FALSE, _do("lt", y.hi, 0.0) or FALSE)
    return Interval(lo, hi, both(x.zero, is_not_zero), x.flat or y.flat, x.falls or y.falls)


def neg(node: Expr, x: Interval) -> Interval:
    return Interval(_do("neg", x.hi), _do("neg", x.lo), x.zero, x.flat, whole=x.whole)


def absolute(node: Expr, x: Interval) -> Interval:
    zero: Literal = 0 if node.kind == "i" else 0.0
    lo = _do("maximum", _do("maximum", x.lo, _do("neg", x.hi)), zero)
    hi = _do("maximum", x.hi, _do("neg", x.lo))
    return Interval(lo, hi, x.zero, x.flat, whole=x.whole)


def extremum(name: str) -> Rule:
    def rule(node: Expr, x: Interval, y: Interval) -> Interval:
        lo, hi = _do(name, x.lo, y.lo), _do(name, x.hi, y.hi)
        if node.kind == "i":  # one bound suffices; for floats, the other operand may be NaN
            if name == "maximum":
                lo = lo or x.lo or y.lo
            else:
                hi = hi or x.hi or y.hi
        zero = either(both(x.zero, y.zero), pinned(lo, hi, node.kind == "f"))
        return Interval(lo, hi, zero, True, x.falls or y.falls, max(x.whole, y.whole))

    return rule


def floordiv(node: Expr, x: Interval, y: Interval) -> Interval:
    ends = _corners("floordiv", x, y) if y.point is not None else (None, None)
    return Interval(*ends, flat=True)


def mod(node: Expr, x: Interval, y: Interval) -> Interval:
    # It rises where no multiple of the divisor is inside.
    divisor = y.point
    if divisor is None or x.lo is None or x.hi is None:
        return unknown("i")
    same = build("eq", build("floordiv", x.lo, divisor), build("floordiv", x.hi, divisor))
    least = build("minimum", build("add", divisor, 1), 0)
    most = build("maximum", build("sub", divisor, 1), 0)
    lo = build("where", same, build("mod", x.lo, divisor), least)
    hi = build("where", same, build("mod", x.hi, divisor), most)
    return Interval(lo, hi, flat=True)


# Functions of one real


def function(node: Expr, x: Interval, *params: Literal) -> Interval:
    """The rule of any function. It gives no bounds. The result is 0 if x is 0 and f(0) = 0."""
    at_zero = OPS[node.op].torch(torch.zeros((), dtype=torch.float64), *params)
    return Interval(None, None, x.zero if at_zero == 0 else FALSE, x.flat)


def rising(node: Expr, x: Interval, *params: Literal) -> Interval:
    """The rule of a function that is monotone and exact."""
    lo, hi = _do(node.op, x.lo, *params), _do(node.op, x.hi, *params)
    flat = lo is not None and hi is not None
    zero = either(function(node, x, *params).zero, pinned(lo, hi, flat))
    return Interval(lo, hi, zero, x.flat or flat, x.falls)


def sign(node: Expr, x: Interval) -> Interval:
    # By comparisons: a bound may be NaN, by inf - inf. torch's sign of it is 0, which is no bound.
    lo = hi = None
    if x.lo is not None:
        below = build("where", build("ge", x.lo, 0.0), 0.0, -1.0)
        lo = build("where", build("gt", x.lo, 0.0), 1.0, below)
    if x.hi is not None:
        above = build("where", build("le", x.hi, 0.0), 0.0, 1.0)
        hi = build("where", build("lt", x.hi, 0.0), -1.0, above)
    flat = lo is not None and hi is not None
    return Interval(lo, hi, either(x.zero, pinned(lo, hi, flat)), x.flat or flat)


def vanishing(below: float, at_infinity: bool) -> Rule:
    """The rule of a function that is exactly 0 up to a number, in fp32 and in fp64.

    below: The number. at_infinity: The function is 0 at -inf too. Other functions are NaN there.
    """

    def rule(node: Expr, x: Interval, *params: Literal) -> Interval:
        if params and float(params[0]) <= 0:  # softplus with a negative slope decreases
            return function(node, x, *params)
        limit = below / float(params[0]) if params else below
        far = _do("le", x.hi, limit) or FALSE
        if not at_infinity:
            far = both(far, _do("gt", x.lo, -math.inf) or FALSE)
        return Interval(None, None, either(function(node, x, *params).zero, far), x.flat)

    return rule


def relu(node: Expr, x: Interval) -> Interval:
    is_zero = either(x.zero, _do("le", x.hi, 0.0) or FALSE)
    return Interval(_do("relu", x.lo), _do("relu", x.hi), is_zero, flat=True)


# Truth values


def less(strict: bool, swapped: bool) -> Rule:
    holds, fails = ("lt", "ge") if strict else ("le", "gt")

    def rule(node: Expr, x: Interval, y: Interval) -> Interval:
        x, y = (y, x) if swapped else (x, y)
        always, never = _do(holds, x.hi, y.lo), _do(fails, x.lo, y.hi)
        return _truth(always or FALSE, never or FALSE)

    return rule


def _truth(always: Expr, never: Expr) -> Interval:
    return Interval(always, negation(never), flat=True)


def equal(node: Expr, x: Interval, y: Interval) -> Interval:
    if x.lo is None or x.hi is None or y.lo is None or y.hi is None:
        above, below = _do("gt", x.lo, y.hi) or FALSE, _do("lt", x.hi, y.lo) or FALSE
        return _truth(FALSE, either(above, below))
    if node.args[0].kind == "b":
        same = either(both(x.always, y.always), both(x.never, y.never))
        return _truth(same, either(both(x.always, y.never), both(x.never, y.always)))
    same = both(build("le", x.hi, y.lo), build("ge", x.lo, y.hi))
    return _truth(same, either(build("lt", x.hi, y.lo), build("gt", x.lo, y.hi)))


def unequal(node: Expr, x: Interval, y: Interval) -> Interval:
    return opposite(node, equal(node, x, y))


def opposite(node: Expr, x: Interval) -> Interval:
    return _truth(x.never, x.always)


def conjunction(node: Expr, x: Interval, y: Interval) -> Interval:
    return _truth(both(x.always, y.always), either(x.never, y.never))


def disjunction(node: Expr, x: Interval, y: Interval) -> Interval:
    return _truth(either(x.always, y.always), both(x.never, y.never))


def where(node: Expr, c: Interval, x: Interval, y: Interval) -> Interval:
    low, high = (const(-math.inf), const(math.inf)) if node.kind == "f" else (None, None)
    lo = _between(c, x.lo, y.lo, "minimum", low)
    hi = _between(c, x.hi, y.hi, "maximum", high)
    if x.zero is FALSE or y.zero is FALSE:
        zero = either(both(c.always, x.zero), both(c.never, y.zero))
    else:
        zero = both(either(c.never, x.zero), either(c.always, y.zero))
    return Interval(lo, hi, zero, True, x.falls or y.falls, max(x.whole, y.whole))


def _between(c: Interval, x: Bound, y: Bound, merge: str, none: Bound) -> Bound:
    # merge: What joins both bounds. none: A bound for the side that has none, if there is one.
    if x is None and y is None:
        return None
    x, y = x or none, y or none
    if x is None or y is None:
        return None
    mixed = build(merge, x, y)
    if mixed is x:  # the condition holds everywhere or nowhere, not both
        return build("where", c.never, y, x)
    return build("where", c.always, x, build("where", c.never, y, mixed))


# Changes of kind


def to_float(node: Expr, x: Interval) -> Interval:
    of_truth = node.args[0].kind == "b"
    zero = x.never if of_truth else pinned(x.lo, x.hi, x.flat)
    whole = 1.0 if of_truth else math.inf
    return Interval(_do("float", x.lo), _do("float", x.hi), zero, x.flat, whole=whole)


def to_int(node: Expr, x: Interval) -> Interval:
    if node.args[0].kind == "f":  # one that is too large for an integer may become any integer
        return unknown("i")
    return Interval(_do("int", x.lo), _do("int", x.hi), flat=True)


def to_bool(node: Expr, x: Interval) -> Interval:
    zero: Literal = 0.0 if node.args[0].kind == "f" else 0
    nonzero = unequal(node, x, literal(const(zero)))
    return _truth(nonzero.always, either(nonzero.never, x.zero))
