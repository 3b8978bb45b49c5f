"""Which tiles of the scores cannot matter: score programs lifted from elements to tiles.

A tile is the queries q_idx_lo..q_idx_hi and the keys kv_idx_lo..kv_idx_hi, both inclusive, of one
(batch, head). `classify` turns terms over (b, h, q_idx, kv_idx) into two programs over those
bounds, for a kernel to evaluate at run time. `zero`: every term is exactly 0 on the tile, so that
it can be left out. `full`: no element of the tile is masked, so that the terms without their masks
do. No block mask is made, and no length is read on the host.

Scores, the gradient g and operands that vary inside the tile count as finite, and x·0 as 0. This is
the one departure from the unfused formula: NaN and infinities do not spread from masked elements,
be their tile left out or not. A term whose gradient needs a masked score (that of a learned mask)
is not zero there. Lifting the terms of the backward finds that by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .expr import AXES, POSITIONS, Expr, const, postorder
from .integers import MODEST, sums
from .intervals import Interval, lift, literal, pinned, unknown
from .score_mod import Aux
from .simplify import FALSE, TRUE, both, build, negation, substitute

TILE = {
    name: Expr(name, (), None, "i") for name in ("q_idx_lo", "q_idx_hi", "kv_idx_lo", "kv_idx_hi")
}
# The entries of an access map that vary inside a tile.
_INSIDE = POSITIONS | {"q", "k"}
Leaf = Callable[[Expr], Interval]


def aux_bound(end: str, number: int, kind: str) -> Expr:
    """The smallest (end "lo") or largest ("hi") element of an operand on the tile."""
    return Expr(f"aux_{end}", (), number, kind)


@dataclass(frozen=True)
class TileClasses:
    """Truth values over the leaves of `TILE`, b, h, scalars, operands that are constant on a tile
    and `aux_bound`s.

    full_terms: what the terms are on a full tile.
    keep: over the elements, as the terms are. Each term is its full term where this holds, and
    else 0. None where no one condition says so.
    modest: what `zero` and `full` demand besides, that no integer wraps.
    """

    zero: Expr
    full: Expr
    full_terms: tuple[Expr, ...]
    keep: Expr | None = None
    modest: Expr = TRUE

    @property
    def skips(self) -> bool:
        """Whether any tile can be zero."""
        return self.zero is not FALSE

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the operands that `zero` and `full` read."""
        return self._numbers("aux", "aux_lo", "aux_hi")

    @property
    def bounds(self) -> tuple[int, ...]:
        """The numbers of those that they read an `aux_bound` of."""
        return self._numbers("aux_lo", "aux_hi")

    def _numbers(self, *names: str) -> tuple[int, ...]:
        nodes = postorder([self.zero, self.full])
        return tuple(sorted({int(x.value or 0) for x in nodes if x.op in names}))


def classify(
    roots: Sequence[Expr], aux: Sequence[Aux], bounded: Collection[int] = ()
) -> TileClasses:
    """Classify tiles for a kernel that computes the terms `roots`, of kind "f".

    aux: the operands that the program declares. bounded: the numbers of those that vary inside a
    tile and whose `aux_bound`s the kernel gives; the others are unknown.
    """
    found = _classified(roots, _leaves(aux, bounded))
    if _size(found) <= _LARGEST:
        return found
    # A choice of many heads or samples: a tile then has to be zero for all of them.
    alike = _classified(roots, _leaves(aux, bounded, apart=False))
    return alike if _size(alike) <= _LARGEST else TileClasses(FALSE, TRUE, tuple(roots), TRUE)


def boundable(aux: Sequence[Aux]) -> list[int]:
    """The operands that are worth a table of bounds on tiles. Of reals, a vector that all samples
    share is a scale, and no mask. One that no (batch, head) shares costs as much to read as it may
    save. Rows of a jagged operand are in no table."""

    def worth_reading(spec: Aux) -> bool:
        axes = spec.axes
        return spec.kind != "f" or (axes != set(AXES) and ("b" in axes or axes >= POSITIONS))

    return [
        number
        for number, spec in enumerate(aux)
        if spec.axes & POSITIONS and not {"q", "k"} & set(spec.access) and worth_reading(spec)
    ]


def classify_by_tables(
    roots: Sequence[Expr], aux: Sequence[Aux], among: Collection[int]
) -> TileClasses:
    """`classify`, with tables of operands `among` those. Tables of reals are for terms that leave
    out no tile otherwise."""
    masks = [number for number in among if aux[number].kind != "f"]
    found = classify(roots, aux, masks)
    return found if found.skips or len(masks) == len(among) else classify(roots, aux, among)


_LARGEST = 512  # terms that are worth evaluating to leave out a tile


def _size(classes: TileClasses) -> int:
    return sum(1 for _ in postorder([classes.zero, classes.full]))


def _classified(roots: Sequence[Expr], leaf: Leaf) -> TileClasses:
    zero = TRUE if roots else FALSE
    for found in lift(roots, leaf):
        zero = both(zero, found.zero)
    opened: dict[Expr, Expr] = {}
    for condition in _conditions(roots, leaf):
        value = _open_value(condition, roots, leaf)
        if value is not None:
            opened[condition] = const(value)
    full = TRUE
    for wanted, found in zip(opened.values(), lift(list(opened), leaf), strict=True):
        full = both(full, found.always if wanted.value else found.never)
    modest = _modest([zero, full], roots, leaf)
    terms = tuple(substitute(roots, opened))
    zero, full = both(zero, modest), full if full is TRUE else both(full, modest)
    return TileClasses(zero, full, terms, _keep(opened, roots, leaf), modest)


def _modest(classes: Sequence[Expr], roots: Sequence[Expr], leaf: Leaf) -> Expr:
    """Whether the integers that are added up are so small on a tile that no sum wraps: sentinels
    like the largest int64 are not.
    """
    read = set(postorder(classes))
    found = TRUE
    for node in sorted(sums(roots), key=str):
        bounds = leaf(node) if node.op == "aux" else unknown("i")
        if bounds.lo in read or bounds.hi in read:
            found = both(found, within(bounds.lo, bounds.hi))
    return found


def within(lo: Expr | None, hi: Expr | None) -> Expr:
    """Whether bounds are MODEST."""
    assert lo is not None and hi is not None
    return both(build("le", MODEST[0], lo), build("le", hi, MODEST[1]))


def _keep(opened: Mapping[Expr, Expr], roots: Sequence[Expr], leaf: Leaf) -> Expr | None:
    """All the conditions at once, if each of them alone makes every term 0 where it masks."""
    keep = TRUE
    for condition, value in opened.items():
        masked = substitute(roots, {condition: const(not value.value)})
        if not all(found.zero is TRUE for found in lift(masked, _sizes(leaf))):
            return None
        keep = both(keep, condition if value.value else negation(condition))
    return keep


def _leaves(aux: Sequence[Aux], bounded: Collection[int], apart: bool = True) -> Leaf:
    """The intervals of a program's leaves. apart: b and h are known; else every tile is judged for
    all of them.
    """

    def leaf(node: Expr) -> Interval:
        if node.op in POSITIONS:
            return Interval(TILE[f"{node.op}_lo"], TILE[f"{node.op}_hi"])
        if node.op == "aux" and not _INSIDE.isdisjoint(aux[int(node.value or 0)].access):
            number = int(node.value or 0)
            if number not in bounded:
                return unknown(node.kind)
            lo, hi = (aux_bound(end, number, node.kind) for end in ("lo", "hi"))
            zero = pinned(lo, hi, node.kind == "f")
            return Interval(lo, hi, zero, flat=True)
        if node.is_const:
            return literal(node)
        known = node.op not in ("s", "g") and (apart or node.op not in ("b", "h"))
        return Interval(node, node) if known else unknown(node.kind)

    return leaf


def _conditions(roots: Sequence[Expr], leaf: Leaf) -> list[Expr]:
    """The largest truth values in the terms that can be decided for a tile, and are not a matter of
    b and h alone.
    """
    decided: set[Expr] = set()
    masking: set[Expr] = set()
    for node in postorder(roots):
        if not node.args:
            found = leaf(node)
            if found.lo is not None and found.lo is not FALSE:
                decided.add(node)
        elif all(a in decided for a in node.args):
            decided.add(node)
        if node.op in (*POSITIONS, "aux") or any(a in masking for a in node.args):
            masking.add(node)
    conditions: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.kind == "b" and node in decided and node in masking:
            conditions[node] = None
        elif node not in seen:
            seen.add(node)
            stack.extend(node.args)
    return list(conditions)


def _open_value(condition: Expr, roots: Sequence[Expr], leaf: Leaf) -> bool | None:
    """The value of a condition that masks nothing; None if neither value makes more terms 0."""

    def at_work(node: Expr) -> Interval:
        """Sizes and scales taken for 1: whether one is 0 is not what is asked here."""
        if node.op in ("scalar", "aux") and node.kind != "b" and leaf(node).point is node:
            return literal(const(1 if node.kind == "i" else 1.0))
        return leaf(node)

    zeros = {}
    for value in (False, True):
        terms = substitute(roots, {condition: const(value)})
        zeros[value] = sum(found.zero is TRUE for found in lift(terms, at_work))
    return None if zeros[False] == zeros[True] else zeros[False] > zeros[True]


def _sizes(leaf: Leaf) -> Leaf:
    """Scalars as what they are, sizes: 1 or more, so that one may divide."""
    return lambda node: Interval(const(1), None) if node.op == "scalar" else leaf(node)
