"""What a program makes of an element of a table alone is computed once for each element.

A kernel that copies a table computes it as it copies, and the program looks up the result:

    bf16(lookup(a0, place))    becomes    lookup(a0, place),    where a0 holds bf16(element)

A power of two that multiplies a sum multiplies the terms instead, where these are such look-ups and
products by constants. It commutes with roundings, and costs nothing for each score then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from .expr import SCORE, Expr, call, fold, postorder

_SUMS = ("add", "sub")


def of_elements(
    roots: Sequence[Expr], tables: Collection[int]
) -> tuple[list[Expr], dict[int, Expr]]:
    """(roots, functions): with look-ups in place of functions of elements of `tables`.

    functions: By the number of a table, what it has to hold of an element, as a function of `s`.
    """
    roots = _distributed(roots, tables)
    sources = _sources(roots, tables)
    largest: dict[Expr, set[Expr]] = {}
    for node in [*roots, *(x for y in postorder(roots) if not sources[y] for x in y.args)]:
        if look_up := sources[node]:
            largest.setdefault(look_up, set()).add(node)
    known: dict[Expr, Expr] = {}
    functions: dict[int, Expr] = {}
    for look_up, (node, *others) in largest.items():
        if not others:
            known[node] = look_up
            functions[look_up.args[0].value] = _replaced([node], {look_up: SCORE})[0]
    return _replaced(roots, known), functions


def _sources(roots: Sequence[Expr], tables: Collection[int]) -> dict[Expr, Expr | None]:
    """The look-up that a term is a function of, if it depends on nothing else."""
    sources: dict[Expr, Expr | None] = {}
    for node in postorder(roots):
        own = {sources[x] for x in node.args if not x.is_const}
        sources[node] = own.pop() if len(own) == 1 and node.kind == "f" else None
        if node.op == "lookup" and node.args[0].value in tables:
            sources[node] = node
    return sources


def _distributed(roots: Sequence[Expr], tables: Collection[int]) -> list[Expr]:
    """Sums that a power of two multiplies, as sums of multiplied terms where these cost nothing."""
    sources = _sources(roots, tables)
    users = Counter(x for node in postorder(roots) for x in node.args)
    known = {}
    for node in postorder(roots):
        factor = _power_of_two(node)
        if factor and node.args[0].op in _SUMS and users[node.args[0]] == 1:
            terms = _terms(node.args[0])
            costly = [x for x in terms if not sources[x] and not _factor(x)]
            if len(costly) < 2 and any(sources[x] for x in terms):
                known[node] = _scaled(node.args[0], factor)
    return _replaced(roots, known)


def _power_of_two(node: Expr) -> float:
    factor = _factor(node)
    return factor if factor and math.log2(abs(factor)).is_integer() else 0.0


def _factor(node: Expr) -> float:
    """The constant that multiplies a term, or 0."""
    constant = node.op == "mul" and node.kind == "f" and node.args[1].is_const
    return float(node.args[1].value) if constant else 0.0


def _terms(node: Expr) -> list[Expr]:
    return [y for x in node.args for y in _terms(x)] if node.op in _SUMS else [node]


def _scaled(node: Expr, factor: float) -> Expr:
    if node.op in _SUMS:
        return call(node.op, *(_scaled(x, factor) for x in node.args))
    own = _factor(node)
    return node.args[0] * (own * factor) if own else node * factor


def _replaced(roots: Sequence[Expr], known: dict[Expr, Expr]) -> list[Expr]:
    """The terms with others in place of some of their parts, else as they are written."""

    def apply(node: Expr, args: list[Any]) -> Expr:
        return known.get(node) or call(node.op, *args)

    return fold(roots, lambda node: known.get(node, node), apply)
