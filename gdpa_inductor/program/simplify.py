"""Make terms and simplify them at once: evaluate literals, simplify logic.

`expr.call` keeps a program as it was written, so that its text is stable. Terms that are derived
from a program for a kernel (`tile_classes`) are built here instead, as short as possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .expr import OPS, Expr, Literal, call, const, dtype_of, fold, is_ordinary

TRUE, FALSE = const(True), const(False)
# An operation on one integer twice: its value, or None where it is the integer.
_REFLEXIVE: dict[str, Literal | None] = {
    "eq": True, "le": True, "ne": False, "lt": False, "sub": 0, "minimum": None, "maximum": None,
}  # fmt: skip
_MIRRORED = {"gt": "lt", "ge": "le"}  # comparisons are written one way, so that equal ones meet
_DUAL = {"and": "or", "or": "and"}
_LIMIT = {"minimum": math.inf, "maximum": -math.inf}  # what is no limit at all
_REACH = 24  # how much of a long condition is searched for what another one says already


def build(name: str, *operands: Expr | Literal) -> Expr:
    """`call`, folded. Raises ValueError as `call` does."""
    args = [x if isinstance(x, Expr) else const(x) for x in operands]
    if name in _MIRRORED:
        name, args = _MIRRORED[name], args[::-1]
    rule = _FOLDS.get(name)
    known = None if rule is None else rule(name, *args)
    if known is None and any(a.op in _CHOICES or a.is_const for a in args):
        known = _pushed(name, args)
    return call(name, *args) if known is None else known


def with_literal(name: str, x: Expr, y: Expr) -> Expr | None:
    """x and y, or x or y, where one of them is a literal; else None."""
    for one, other in ((x, y), (y, x)):
        if one.is_const:
            return other if one.value is (name == "and") else const(name == "or")
    return None


def _connective(name: str, x: Expr, y: Expr) -> Expr:
    known = with_literal(name, x, y)
    if known is not None:
        return known
    for one, other in ((x, y), (y, x)):  # one may say already what the other says
        if other in _parts(name, one):
            return one
        if other in _parts(_DUAL[name], one):
            return other
    return call(name, x, y)


def _parts(name: str, x: Expr) -> set[Expr]:
    """The first conditions that a chain of `name` joins."""
    parts: set[Expr] = set()
    stack = [x]
    while stack and len(parts) < _REACH:
        node = stack.pop()
        if node not in parts:
            parts.add(node)
            stack.extend(node.args if node.op == name else ())
    return parts


def both(x: Expr, y: Expr) -> Expr:
    return _connective("and", x, y)


def either(x: Expr, y: Expr) -> Expr:
    return _connective("or", x, y)


def negation(x: Expr) -> Expr:
    if x.is_const:
        return const(not x.value)
    if x.op == "not":
        return x.args[0]
    if x.args and x.args[0].kind == "i":  # not of reals: NaN is neither below nor above
        if x.op in ("lt", "le"):
            return build({"lt": "le", "le": "lt"}[x.op], x.args[1], x.args[0])
        if x.op in ("eq", "ne"):
            return call({"eq": "ne", "ne": "eq"}[x.op], *x.args)
    return call("not", x)


def chosen(condition: Expr, x: Expr, y: Expr) -> Expr:
    """x where the condition holds, else y, of any kind."""
    if condition.is_const:
        return x if condition.value else y
    if x is y:
        return x
    if x.kind == "b":
        return either(both(condition, x), both(negation(condition), y))
    return call("where", condition, x, y)


def _shifted(name: str, x: Expr, y: Expr) -> Expr | None:
    # Without a zero, and with one literal at most.
    if y.is_const and y.value == 0:
        return x
    if name == "add" and x.is_const and x.value == 0:
        return y
    if x is y and x.kind == "i" and name == "sub":
        return const(0)
    if x.kind != "i" or not y.is_const or x.op not in ("add", "sub") or not x.args[1].is_const:
        return None
    inner = x.args[1].value * (1 if x.op == "add" else -1)
    total = inner + y.value * (1 if name == "add" else -1)
    if abs(total) >= 1 << 63:
        return None
    return build("add" if total > 0 else "sub", x.args[0], abs(total))


def _reflexive(name: str, x: Expr, y: Expr) -> Expr | None:
    if x is not y or x.kind != "i":
        return None
    same = _REFLEXIVE[name]
    return x if same is None else const(same)


def _extremum(name: str, x: Expr, y: Expr) -> Expr | None:
    """The other infinity stays: what it meets may be NaN."""
    for one, other in ((x, y), (y, x)):
        if one.is_const and one.value == _LIMIT[name]:
            return other
    return _reflexive(name, x, y)


def _negated(_: str, x: Expr) -> Expr | None:
    if x.op == "neg":
        return x.args[0]
    return build("sub", *x.args[::-1]) if x.op == "sub" and x.kind == "i" else None


_FOLDS: dict[str, Any] = {
    "and": _connective,
    "or": _connective,
    "not": lambda name, x: negation(x),
    "where": lambda name, c, x, y: chosen(c, x, y) if c.is_const or x is y else None,
    "add": _shifted,
    "sub": _shifted,
    "neg": _negated,
    "minimum": _extremum,
    "maximum": _extremum,
    **dict.fromkeys(["eq", "ne", "lt", "le"], _reflexive),
}
_CHOICES = ("where", "float", "int")


def _pushed(name: str, args: Sequence[Expr], nested: int = 4) -> Expr | None:
    # f(2) is evaluated. f(where(c, 2, 3)) is where(c, f(2), f(3)).
    open_args = [a for a in args if not a.is_const]
    if not open_args:
        return _evaluated(name, args)
    choice = open_args[0]
    if not nested or len(open_args) > 1 or choice.op not in _CHOICES or name in _CHOICES:
        return None
    if choice.op == "where":
        condition, *ways = choice.args
    elif choice.args[0].kind == "b":
        condition, ways = choice.args[0], [const(True), const(False)]
        ways = [build(choice.op, way) for way in ways]
    else:
        return None
    yes, no = (_pushed(name, [w if a is choice else a for a in args], nested - 1) for w in ways)
    return None if yes is None or no is None else chosen(condition, yes, no)


def _evaluated(name: str, args: Sequence[Expr]) -> Expr | None:
    term, op = call(name, *args), OPS[name]
    if not term.args:
        return term
    real = torch.float64
    operands = [torch.tensor(a.value, dtype=dtype_of(a.kind, real)) for a in args]
    count = len(args) - op.params
    try:
        result = op.torch(*operands[:count], *(a.value for a in args[count:]))
        value = result.to(dtype_of(term.kind, real)).item()
    except RuntimeError:  # an integer divided by zero
        return None
    # What overflows or vanishes in fp32 only is left to the kernel.
    alike = term.kind != "f" or not math.isfinite(value) or is_ordinary(value)
    return const(value) if alike else None


def substitute(roots: Sequence[Expr], known: Mapping[Expr, Expr]) -> list[Expr]:
    """The terms with others put in place of some of their parts."""

    def apply(node: Expr, values: list[Any]) -> Expr:
        return known[node] if node in known else build(node.op, *values)

    return fold(roots, lambda node: known.get(node, node), apply)
