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
from typing import Any

from ..._compat import shapes
from ...rejection import Code
from ..host.sizes import Size, is_one, is_zero, same
from ..result import Refused


@dataclass(frozen=True, eq=False)
class Atom:
    """An index variable from 0 to `size` - 1. Atoms are compared by identity.

    value: Its value, if it is fixed. part: (digits, start), if it runs over a part of other digits.
    """

    size: Size
    number: int
    value: int | None = None
    part: tuple[Digits, int] | None = None

    @property
    def is_fixed(self) -> bool:
        return self.value is not None

    def __repr__(self) -> str:
        return f"x{self.number}:{self.size}" + (f"={self.value}" if self.is_fixed else "")


Digits = tuple[Atom, ...]
Index = tuple[Digits, ...]


def _divides(divisor: Size, size: Size) -> bool:
    return same(divisor, size) or _quotient(size, divisor) is not None


def _quotient(size: Size, divisor: Size) -> Size | None:
    """size / divisor where it is known to be whole."""
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
        """The digits of a new dimension."""
        return () if is_one(size) else (Atom(size, next(self._numbers), **special),)

    def once(self, key: tuple[object, ...], size: Size, **special: Any) -> Digits:
        """The digits of a dimension with this key: the same ones in every pass."""
        if key not in self._known:
            self._known[key] = self.fresh(size, **special)
        return self.resolve(self._known[key])

    def fixed(self, size: int, value: int) -> Digits:
        """Position `value` of a dimension of `size`."""
        return self.once(("fixed", size, value), size, value=value)

    def part(self, digits: Digits, start: int, size: int) -> Digits:
        """The `size` positions of `digits` from `start` on."""
        return self.once(("part", digits, start, size), size, part=(digits, start))

    def resolve(self, digits: Digits) -> Digits:
        """The same position after all splits."""
        if not any(atom in self.splits for atom in digits):
            return digits
        parts = (self.resolve(self.splits[a]) if a in self.splits else (a,) for a in digits)
        return tuple(itertools.chain.from_iterable(parts))

    def is_whole(self, digits: Digits) -> bool:
        """Whether the digits have all parts of each variable that views of the scores have
        split.
        """
        have = set(digits)
        return all(
            set(self.resolve(parts)) <= have or not set(self.resolve(parts)) & have
            for atom, parts in self.splits.items()
            if atom not in (self.outer or ())
        )

    def resolve_index(self, index: Index) -> Index:
        return tuple(self.resolve(digits) for digits in index)

    def regroup(self, index: Index, shape: Sequence[Size]) -> Index:
        """The index into a tensor of `shape` with the same elements, in row-major order.

        Raises Refused if the dims do not divide.
        """
        left = deque(itertools.chain.from_iterable(self.resolve_index(index)))
        grouped: list[Digits] = []
        for size in shape:
            digits: list[Atom] = []
            covered: Size = 1
            while not same(covered, size):
                if not left:
                    raise Refused(Code.LAYOUT, "a view of the scores cuts across their dimensions")
                atom = left.popleft()
                if _divides(covered * atom.size, size):
                    digits.append(atom)
                    covered = covered * atom.size
                else:
                    outer, inner = self._split(atom, covered, size)
                    digits.append(outer)
                    left.appendleft(inner)
                    covered = size
            grouped.append(tuple(digits))
        if left:
            raise Refused(Code.LAYOUT, "a view of the scores cuts across their dimensions")
        return tuple(grouped)

    def _split(self, atom: Atom, covered: Size, size: Size) -> tuple[Atom, Atom]:
        """Split `atom` so that its outer part completes a dim of `size`, if `covered` is there."""
        outer = _quotient(size, covered)
        inner = None if outer is None else _quotient(atom.size, outer)
        if outer is not None and inner is not None and not (atom.is_fixed or atom.part):
            parts = (Atom(outer, next(self._numbers)), Atom(inner, next(self._numbers)))
            self.splits[atom] = parts
            return parts
        raise Refused(Code.LAYOUT, "a view of the scores cuts across their dimensions")


def broadcast(index: Index, result: Sequence[Size], source: Sequence[Size]) -> Index:
    """The index into an operand of shape `source` that broadcasts to a result of shape `result`."""
    offset = len(result) - len(source)
    digits: list[Digits] = []
    for dim, size in enumerate(source):
        if is_one(size):
            digits.append(())
        elif same(size, result[offset + dim]):
            digits.append(index[offset + dim])
        else:
            reason = f"whether a dimension of size {size} broadcasts is not known"
            raise Refused(Code.LAYOUT, reason)
    return tuple(digits)


def permuted(index: Index, order: Sequence[int]) -> Index:
    """The index into the source of `permute(order)`."""
    source: list[Digits] = [()] * len(order)
    for position, dim in enumerate(order):
        source[dim % len(order)] = index[position]
    return tuple(source)


def atoms(index: Index) -> set[Atom]:
    return set(itertools.chain.from_iterable(index))
