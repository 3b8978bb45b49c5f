"""Dimension algebra: from an element of a tensor to the element of another that it is made from.

An `Atom` is an index variable. A position in one dim is a tuple of atoms, the most significant
first (mixed radix); such a tuple is called *digits*. An `Index` has digits for each dim of a
tensor. A dim of size 1 has none.

A view maps the index of its result to the index of its source. So "the element of
`x.view(b, h, n, m)` at (b, h, n, m)" becomes "the element of `x` at ((b, h), n, m)". If a view cuts
through an atom, the atom is split in two everywhere. An atom may be fixed: `x[:, 1]` at (b, n) is
`x` at (b, 1, n).

Sizes may be symbolic. Only static knowledge is used, and no guard is ever added.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..._compat import shapes
from ...rejection import Code
from ..host.sizes import Size, is_one, is_zero, same
from ..result import Refused


@dataclass(frozen=True, eq=False)
class Atom:
    """An index variable from 0 to `size` - 1. Atoms are compared by identity.

    value: Its value, if it is fixed. part: (digits, start), if it runs over a part of other digits.
    place: It is the place at which a table is looked up, and no index of the scores.
    """

    size: Size
    number: int
    value: int | None = None
    part: tuple[Digits, int] | None = None
    place: bool = False

    @property
    def is_fixed(self) -> bool:
        return self.value is not None

    def __repr__(self) -> str:
        return f"x{self.number}:{self.size}" + (f"={self.value}" if self.is_fixed else "")


T = TypeVar("T")
Digits = tuple[Atom, ...]
Index = tuple[Digits, ...]
CUTS_ACROSS = "a view of the scores cuts across their dimensions"


def _quotient(size: Size, divisor: Size) -> Size | None:
    quotient = shapes.exact_quotient(size, divisor)
    if quotient is None and is_zero(size % divisor):  # type: ignore[operator]  # by what guards say
        return size // divisor
    return quotient


@dataclass
class Space:
    """The atoms of one analysis, and how they were split.

    outer:  Atoms that were split by views of the second product's result, and not by views of the
            scores.
    """

    splits: dict[Atom, Digits] = field(default_factory=dict)
    outer: frozenset[Atom] | None = None
    _known: dict[tuple[object, ...], Digits] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, size: Size, **special: Any) -> Digits:
        return () if is_one(size) else (Atom(size, next(self._numbers), **special),)

    def once(self, key: tuple[object, ...], size: Size, **special: Any) -> Digits:
        """The digits of a dimension with this key: the same ones in every pass."""
        if key not in self._known:
            self._known[key] = self.fresh(size, **special)
        return self.resolve(self._known[key])

    def fixed(self, size: int, value: int) -> Digits:
        return self.once(("fixed", size, value), size, value=value)

    def part(self, digits: Digits, start: int, size: int) -> Digits:
        return self.once(("part", digits, start, size), size, part=(digits, start))

    def resolve(self, digits: Digits) -> Digits:
        """The same position after all splits."""
        if not any(atom in self.splits for atom in digits):
            return digits
        parts = (self.resolve(self.splits[a]) if a in self.splits else (a,) for a in digits)
        return flat(tuple(parts))

    def is_whole(self, digits: Digits) -> bool:
        """Whether the digits have all parts of each variable that views of the scores split."""
        inner = (parts for atom, parts in self.splits.items() if atom not in (self.outer or ()))
        return all(
            set(digits).issuperset(parts) or set(digits).isdisjoint(parts)
            for parts in map(self.resolve, inner)
        )

    def resolve_index(self, index: Index) -> Index:
        return tuple(self.resolve(digits) for digits in index)

    def regroup(self, index: Index, shape: Sequence[Size]) -> Index:
        """The index into a tensor of `shape` with the same elements, in row-major order.

        Raises Refused if the dims do not divide.
        """
        left = deque(flat(self.resolve_index(index)))
        grouped: list[Digits] = []
        for size in shape:
            digits: list[Atom] = []
            covered: Size = 1
            while left and not same(covered, size):
                atom = left.popleft()
                total = covered * atom.size
                if same(total, size) or _quotient(size, total) is not None:
                    covered = total
                else:
                    atom, inner = self._split(atom, _quotient(size, covered))
                    left.appendleft(inner)
                    covered = size
                digits.append(atom)
            if not same(covered, size):
                raise Refused(Code.LAYOUT, CUTS_ACROSS)
            grouped.append(tuple(digits))
        if left:
            raise Refused(Code.LAYOUT, CUTS_ACROSS)
        return tuple(grouped)

    def _split(self, atom: Atom, outer: Size | None) -> tuple[Atom, Atom]:
        inner = None if outer is None else _quotient(atom.size, outer)
        if outer is None or inner is None or atom.is_fixed or atom.part or atom.place:
            raise Refused(Code.LAYOUT, CUTS_ACROSS)
        parts = (Atom(outer, next(self._numbers)), Atom(inner, next(self._numbers)))
        self.splits[atom] = parts
        return parts


def broadcast(index: Index, result: Sequence[Size], source: Sequence[Size]) -> Index:
    """The index into an operand of shape `source` that broadcasts to a result of shape `result`."""
    first = len(result) - len(source)
    digits: list[Digits] = []
    for size, own, wanted in zip(source, index[first:], result[first:], strict=True):
        if not is_one(size) and not same(size, wanted):
            reason = f"whether a dimension of size {size} broadcasts is not known"
            raise Refused(Code.LAYOUT, reason)
        digits.append(() if is_one(size) else own)
    return tuple(digits)


def permuted(index: tuple[T, ...], order: Sequence[int]) -> tuple[T, ...]:
    return tuple(index[order.index(dim)] for dim in range(len(order)))


def flat(index: Index) -> Digits:
    return tuple(itertools.chain.from_iterable(index))


def atoms(index: Index) -> set[Atom]:
    return set(flat(index))
