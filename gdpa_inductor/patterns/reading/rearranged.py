"""Calls that move the elements of a table: which element of the table an element of a bias is.

HSTU's research code makes its bias by distance without an index:

    F.pad(w, [0, n]).repeat(n)[:-n].view(n, 3 * n - 2)[:, n - 1 : 1 - n]

Each call takes an index into its result to one into its source, by arithmetic of integers: a slice
adds its start, `repeat` leaves a rest, `view` takes the flat index apart. Here such an index has a
sum of terms for each dim. A rest of which bounds of the positions say what it is goes away. So the
element (q_idx, kv_idx) above is `w[kv_idx - q_idx + n - 1]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from ...program.expr import Expr, call, const
from ...program.integers import Range
from ...program.simplify import TRUE, both, build
from ..host import facts
from .frame import permuted
from .views import REGROUPING, SAME_ELEMENT, order_of, tensor_of, value_of
from .vocabulary import FILLED

Sum = Mapping[Expr, int]  # the factor of each term
Sums = tuple[Sum, ...]
Piece = tuple[Expr, Node, Sums]
ONE = const(1)
MOST_PIECES = 8  # a kernel reads every piece at every score


class Unread(Exception):
    """It is not known by integers which element is read."""


def plus(x: Sum, y: Sum, times: int = 1) -> Sum:
    """x + times · y"""
    factors = {term: x.get(term, 0) + times * y.get(term, 0) for term in (*x, *y)}
    return {term: factor for term, factor in factors.items() if factor}


def term(x: Sum) -> Expr:
    """As one term: what is added, what is subtracted, and the number last."""
    total = const(0)
    for part, factor in sorted(x.items(), key=lambda item: (item[0] is ONE, item[1] < 0)):
        name = "add" if factor > 0 else "sub"
        total = build(name, total, build("mul", part, abs(factor)))
    return total


def pieces(node: Node, at: Sums, limits: Callable[[Expr], Range]) -> list[Piece]:
    """What element `at` of a node is, each piece with a condition: the first that holds counts.

    A piece is an input at an index. Or it is a call whose number fills the result.

    Args:
        limits: The least and the greatest value of a term.

    Raises:
        Unread: Another call is on the way, a size varies, or there are many pieces.
    """
    called = facts.name(node)
    if node.op == "placeholder" or called in FILLED:
        return [(TRUE, node, at)]
    if called not in _RULES and called not in _PARTS:
        raise Unread
    one = _Call(node, limits)
    if called in _RULES:
        return pieces(one.source, _RULES[called](one, at), limits)
    every: list[Piece] = []
    for inside, part, index in _PARTS[called](one, at):
        inner = pieces(part, index, limits)
        every += [(both(inside, own), source, place) for own, source, place in inner]
        if len(every) > MOST_PIECES:
            raise Unread
    return [*every, (TRUE, node, ())] if called == "constant_pad_nd" else every


class _Call:
    """One call."""

    def __init__(self, node: Node, limits: Callable[[Expr], Range]) -> None:
        self.node, self.limits = node, limits
        values = [value_of(n) for n in (node, *node.all_input_nodes)]
        sizes = [size for x in values if isinstance(x, torch.Tensor) for size in x.shape]
        dtypes = {getattr(x, "dtype", None) for x in values}
        if not all(isinstance(size, int) for size in sizes) or dtypes != {values[0].dtype}:
            raise Unread
        self.source = node.all_input_nodes[0]
        self.shape, self.result = values[1].shape, values[0].shape

    def argument(self, place: int, name: str, default: Any) -> Any:
        value = facts.argument(self.node, place, name)
        return default if value is None else value

    def divided(self, x: Sum, by: int) -> tuple[Sum, Sum]:
        """(quotient, rest)"""
        rest = x
        # Factors are reduced to the nearest to 0: the rest of 46 i + j by 47 is that of j - i.
        for quotient in ({}, {part: (factor + by // 2) // by for part, factor in x.items()}):
            rest = plus(x, quotient, -by)
            low, high = (end // by for end in self.limits(term(rest)))
            if low == high:
                return plus(quotient, {ONE: low}), plus(rest, {ONE: -low * by})
        whole, over = (build(name, term(rest), by) for name in ("floordiv", "mod"))
        return plus(quotient, {whole: 1}), {over: 1}

    def within(self, x: Sum, size: int) -> tuple[Expr, Sum]:
        """Whether x is in a dim of this size, and the nearest place that is."""
        place = nearest = term(x)
        (low, high), inside = self.limits(place), TRUE
        if low < 0:
            inside, nearest = call("ge", place, 0), call("maximum", place, 0)
        if high >= size:
            inside = both(inside, call("lt", place, size))
            nearest = call("minimum", nearest, size - 1)
        return inside, x if inside is TRUE else {nearest: 1}

    def sliced(self, at: Sums) -> Sums:
        dim, step = self.argument(1, "dim", 0) % len(at), self.argument(4, "step", 1)
        start = slice(self.argument(2, "start", 0), None).indices(self.shape[dim])[0]
        return (*at[:dim], plus({ONE: start}, at[dim], step), *at[dim + 1 :])

    def selected(self, at: Sums) -> Sums:
        dim = self.argument(1, "dim", 0) % len(self.shape)
        number = self.argument(2, "index", 0) % self.shape[dim]
        return (*at[:dim], plus({}, {ONE: number}), *at[dim:])

    def repeated(self, at: Sums) -> Sums:
        own = at[len(at) - len(self.shape) :]
        return tuple(self.divided(x, size)[1] for x, size in zip(own, self.shape, strict=True))

    def in_a_row(self, at: Sums) -> Sum:
        """The number of an element of the result, in row-major order."""
        row: Sum = {}
        for x, size in zip(at, self.result, strict=True):
            row = plus(x, row, size)
        return row

    def regrouped(self, at: Sums) -> Sums:
        return self.apart(self.in_a_row(at))

    def apart(self, rest: Sum) -> Sums:
        digits: list[Sum] = []
        for size in self.shape[:0:-1]:
            rest, digit = self.divided(rest, size)
            digits.append(digit)
        return (rest, *digits[::-1]) if self.shape else ()

    def permuted(self, at: Sums) -> Sums:
        return permuted(at, order_of(self.node))

    def rolled(self, at: Sums) -> Sums:
        shifts, dims = self.argument(1, "shifts", []), self.argument(2, "dims", [])
        if not dims:  # all elements, in one row
            row = plus(self.in_a_row(at), {ONE: -shifts[0]})
            return self.apart(self.divided(row, math.prod(self.shape))[1])
        moved = list(at)
        for dim, shift in zip(dims, shifts, strict=True):
            moved[dim] = self.divided(plus(moved[dim], {ONE: -shift}), self.shape[dim])[1]
        return tuple(moved)

    def flipped(self, at: Sums) -> Sums:
        moved = list(at)
        for dim in self.argument(1, "dims", []):
            moved[dim] = plus({ONE: self.shape[dim] - 1}, at[dim], -1)
        return tuple(moved)

    def padded(self, at: Sums) -> Iterator[Piece]:
        widths = self.argument(1, "pad", [])
        moved, inside = list(at), TRUE
        for pair, dim in zip(range(0, len(widths), 2), reversed(range(len(at)))):
            own, moved[dim] = self.within(plus(at[dim], {ONE: -widths[pair]}), self.shape[dim])
            inside = both(inside, own)
        yield inside, self.source, tuple(moved)

    def concatenated(self, at: Sums) -> Iterator[Piece]:
        parts: Any = self.node.args[0]
        dim, start = self.argument(1, "dim", 0) % len(at), 0
        for part in parts:
            size = tensor_of(part).shape[dim]
            inside, place = self.within(plus(at[dim], {ONE: -start}), size)
            yield inside, part, (*at[:dim], place, *at[dim + 1 :])
            start += size


_RULES: Mapping[str, Callable[[_Call, Sums], Sums]] = {
    "slice": _Call.sliced,
    "select": _Call.selected,
    **dict.fromkeys(["repeat", "expand"], _Call.repeated),
    **dict.fromkeys(REGROUPING, _Call.regrouped),
    **dict.fromkeys(["permute", "transpose", "t", "T"], _Call.permuted),
    **dict.fromkeys(SAME_ELEMENT, lambda one, at: at),
    "roll": _Call.rolled,
    "flip": _Call.flipped,
}
_PARTS: Mapping[str, Callable[[_Call, Sums], Iterator[Piece]]] = {
    "constant_pad_nd": _Call.padded,
    "cat": _Call.concatenated,
}
