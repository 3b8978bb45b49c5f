"""Loop bounds in closed form, for masks that are linear along the axis of a kernel's loop.

`tile_classes.classify` decides for one tile. Its conditions may be comparisons that are linear in
the position of the tile: a causal mask, a window, lengths. Then the tiles that are not zero form an
interval, and so do the tiles that need no mask. The ends follow from the conditions:

    zero  or of  X < Y      not zero:  first column <= upper,  last column >= lower,  not empty
    full  and of X < Y      full:      first column >= whole_lower,  last column <= whole_upper,
                                       not mixed

A kernel then computes these ends instead of classifying every tile of the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from .expr import POSITIONS, Expr, const, postorder
from .integers import sums
from .simplify import FALSE, TRUE, both, build, either, negation
from .tile_classes import TileClasses, within

# Ends that skip no tile.
_ALL = {"upper": 1 << 30, "lower": -1, "whole_lower": 1 << 30, "whole_upper": -1}
_MERGE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "upper": functools.partial(build, "minimum"),
    "lower": functools.partial(build, "maximum"),
    "empty": either,
    "whole_lower": functools.partial(build, "maximum"),
    "whole_upper": functools.partial(build, "minimum"),
    "mixed": either,
}


@dataclass(frozen=True)
class _Linear:
    """slope · place + rest. slope is -1, 0 or 1; place is an end of the tile along the axis."""

    slope: int
    rest: Expr


def closed(
    classes: TileClasses, axis: str, inside: Collection[int] = ()
) -> Mapping[str, Expr] | None:
    """The ends of the loop by name (as in `_MERGE`), or None if the classes are not intervals.

    Ends are integer terms over b, h, scalars, operands and the tile's position on the other axis.
    "empty" and "mixed" are bools.

    Args:
        axis: "kv_idx" for a loop over keys, "q_idx" for a loop over queries.
        inside: The numbers of operands whose bounds vary along this axis.
    """
    assert axis in POSITIONS, axis
    if not set(inside).isdisjoint(classes.bounds):
        return None
    ends = frozenset((f"{axis}_lo", f"{axis}_hi"))
    bounds: dict[str, Expr] = {}
    halves = [
        *((atom, "zero") for atom in _parts("or", _without(classes.modest, classes.zero))),
        *((atom, "full") for atom in _parts("and", _without(classes.modest, classes.full))),
    ]
    for atom, kind in halves:
        half = _half(atom, kind, ends)
        if half is None:
            return None
        name, value = half
        if name in bounds:
            value = _MERGE[name](bounds[name], value)
        bounds[name] = value
    return _guarded(bounds)


def _without(modest: Expr, condition: Expr) -> Expr:
    """The condition that was joined to `modest`."""
    joined = condition.op == "and" and modest in condition.args
    return next(x for x in condition.args if x is not modest) if joined else condition


def _guarded(bounds: dict[str, Expr]) -> dict[str, Expr]:
    """The ends, or the whole axis if an operand is so large that a sum may wrap.

    For example, a window of the largest int64 is no window.
    """
    modest = TRUE
    for node in sums(list(bounds.values())):
        if node.op.startswith("aux"):
            modest = both(modest, within(node, node))
    if modest is TRUE:
        return bounds
    guarded = {
        name: build("where", modest, bounds[name], end)
        for name, end in _ALL.items()
        if name in bounds
    }
    if "empty" in bounds:
        guarded["empty"] = both(modest, bounds["empty"])
    if "mixed" in bounds or guarded.keys() & {"whole_lower", "whole_upper"}:
        guarded["mixed"] = either(negation(modest), bounds.get("mixed", FALSE))
    return guarded


def _parts(name: str, condition: Expr) -> Iterator[Expr]:
    if condition.op == name:
        for part in condition.args:
            yield from _parts(name, part)
    elif not condition.is_const:
        yield condition
    elif bool(condition.value) is (name == "or"):
        yield condition  # zero everywhere, or full nowhere


def _half(atom: Expr, kind: str, ends: frozenset[str]) -> tuple[str, Expr] | None:
    # (name of the end, its value) of one condition.
    if not any(node.op in ends for node in postorder([atom])):
        return ("empty", atom) if kind == "zero" else ("mixed", negation(atom))
    if atom.op not in ("lt", "le"):
        return None
    # `x < y` is y - x >= 1 of integers, `x <= y` is y - x >= 0.
    gap = _combined(_linear(atom.args[1], ends), _linear(atom.args[0], ends), -1)
    if gap is None or gap.slope == 0:
        return None
    least = 1 if atom.op == "lt" else 0  # the condition: slope · place + rest >= least
    if kind == "full":
        if gap.slope > 0:
            return "whole_lower", _minus(const(least), gap.rest)
        return "whole_upper", _minus(gap.rest, const(least))
    if gap.slope > 0:
        return "upper", _minus(const(least - 1), gap.rest)
    return "lower", _minus(gap.rest, const(least - 1))


def _linear(term: Expr, ends: frozenset[str]) -> _Linear | None:
    if term.op in ends:
        return _Linear(1, const(0))
    if not any(node.op in ends for node in postorder([term])):
        return _Linear(0, term)
    if term.op in ("add", "sub"):
        x, y = (_linear(x, ends) for x in term.args)
        return _combined(x, y, 1 if term.op == "add" else -1)
    return None


def _combined(x: _Linear | None, y: _Linear | None, sign: int) -> _Linear | None:
    """x + sign · y"""
    if x is None or y is None or abs(x.slope + sign * y.slope) > 1 or x.slope * y.slope:
        return None
    rest = build("add", x.rest, y.rest) if sign > 0 else _minus(x.rest, y.rest)
    return _Linear(x.slope + sign * y.slope, rest)


def _minus(x: Expr, y: Expr) -> Expr:
    """x - y, without the two signs of c - (d - z)."""
    if x.is_const and y.op == "sub" and y.args[0].is_const:
        return build("add", y.args[1], build("sub", x, y.args[0]))
    return build("sub", x, y)
