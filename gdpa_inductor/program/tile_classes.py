"""Which tiles of the scores are empty or whole: lift a score program from elements to tiles.

A tile is the queries q_idx_lo..q_idx_hi and the keys kv_idx_lo..kv_idx_hi, both inclusive, of one
(batch, head). `classify` turns terms over (b, h, q_idx, kv_idx) into two conditions over these
bounds. A kernel evaluates them at run time:

- `zero`: every term is exactly 0 on the tile, so that it can be skipped.
- `full`: no element of the tile is masked, so that terms without their masks serve.

There is no block mask in memory, and the host reads no length.

Scores, the gradient g and operands that vary within the tile count as finite, and x·0 as 0. This is
the only difference from the unfused formula: NaN and infinity do not spread from masked elements,
whether their tile is skipped or not. The gradient of a learned mask needs masked scores. So that
term is not zero there, which lifting the terms of the backward finds by itself.
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
    """The smallest (end "lo") or largest (end "hi") element of an operand on the tile."""
    return Expr(f"aux_{end}", (), number, kind)


@dataclass(frozen=True)
class TileClasses:
    """The classes of tiles, as conditions.

    They are terms over the leaves of `TILE`, b, h, scalars, operands that are constant on a tile,
    and `aux_bound`s.

    zero:        The tile can be skipped.
    full:        No element of the tile is masked.
    full_terms:  The terms on a full tile.
    keep:        A condition on elements. Each term equals its full term where it holds, and 0
                 elsewhere. None if no single condition says so.
    modest:      No integer wraps. `zero` and `full` contain it.
    """

    zero: Expr
    full: Expr
    full_terms: tuple[Expr, ...]
    keep: Expr | None = None
    modest: Expr = TRUE

    @property
    def skips(self) -> bool:
        return self.zero is not FALSE

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the aux operands that `zero` and `full` read."""
        return self._numbers("aux", "aux_lo", "aux_hi")

    @property
    def bounds(self) -> tuple[int, ...]:
        """The numbers of the aux operands whose `aux_bound` they read."""
        return self._numbers("aux_lo", "aux_hi")

    def _numbers(self, *names: str) -> tuple[int, ...]:
        nodes = postorder([self.zero, self.full])
        return tuple(sorted({x.value for x in nodes if x.op in names}))


def classify(
    roots: Sequence[Expr], aux: Sequence[Aux], bounded: Collection[int] = ()
) -> TileClasses:
    """Classify tiles for a kernel that computes the terms `roots`, of kind "f".

    Args:
        aux: The aux operands of the program.
        bounded: The numbers of operands that vary within a tile, and for which the kernel has
            `aux_bound`s. Other operands that vary are unknown.
    """
    classes = _classified(roots, _leaves(aux, bounded))
    if _size(classes) <= _LARGEST:
        return classes
    # If the program chooses by many heads or batches, a tile has to be zero for all of them.
    alike = _classified(roots, _leaves(aux, bounded, apart=False))
    return alike if _size(alike) <= _LARGEST else TileClasses(FALSE, TRUE, tuple(roots), TRUE)


def boundable(aux: Sequence[Aux]) -> list[int]:
    """The operands that are worth a table of tile bounds.

    A float vector that all batches share is a scale, and not a mask. A float operand that no
    (batch, head) share costs as much to read as it may save. Operands that are indexed by jagged
    rows have no table of bounds, and neither has a table that is looked up.
    """

    def worth_reading(spec: Aux) -> bool:
        axes = spec.axes
        return spec.kind != "f" or (axes != set(AXES) and ("b" in axes or axes >= POSITIONS))

    return [
        number
        for number, spec in enumerate(aux)
        if spec.axes & POSITIONS and not {"q", "k", "t"} & set(spec.access) and worth_reading(spec)
    ]


def bounds_on_tiles(terms: Sequence[Expr], aux: Sequence[Aux]) -> list[Interval]:
    """The bounds of terms on a tile, as terms of the same leaves as `TileClasses`."""
    return lift(terms, _leaves(aux, ()))


def classify_by_tables(
    roots: Sequence[Expr], aux: Sequence[Aux], among: Collection[int]
) -> TileClasses:
    """`classify`, with tables for some of the operands `among`.

    Floats have tables only if no tile could be skipped otherwise.
    """
    masks = [number for number in among if aux[number].kind != "f"]
    classes = classify(roots, aux, masks)
    return classes if classes.skips or len(masks) == len(among) else classify(roots, aux, among)


_LARGEST = 512  # the most terms that are worth evaluating to skip a tile


def _size(classes: TileClasses) -> int:
    return sum(1 for _ in postorder([classes.zero, classes.full]))


def _classified(roots: Sequence[Expr], leaf: Leaf) -> TileClasses:
    zero = TRUE if roots else FALSE
    for interval in lift(roots, leaf):
        zero = both(zero, interval.zero)
    opened: dict[Expr, Expr] = {}
    for condition in _conditions(roots, leaf):
        value = _open_value(condition, roots, leaf)
        if value is not None:
            opened[condition] = const(value)
    full = TRUE
    for wanted, interval in zip(opened.values(), lift(list(opened), leaf), strict=True):
        full = both(full, interval.always if wanted.value else interval.never)
    modest = _modest([zero, full], roots, leaf)
    terms = tuple(substitute(roots, opened))
    zero, full = both(zero, modest), full if full is TRUE else both(full, modest)
    return TileClasses(zero, full, terms, _keep(opened, roots, leaf), modest)


def _modest(classes: Sequence[Expr], roots: Sequence[Expr], leaf: Leaf) -> Expr:
    """A condition that integers on a tile are so small that no sum wraps.

    Sentinels like the largest int64 do not meet it.
    """
    read = set(postorder(classes))
    condition = TRUE
    for node in sums(roots):
        bounds = leaf(node) if node.op == "aux" else unknown("i")
        if bounds.lo in read or bounds.hi in read:
            condition = both(condition, within(bounds.lo, bounds.hi))
    return condition


def within(lo: Expr | None, hi: Expr | None) -> Expr:
    assert lo is not None and hi is not None
    return both(build("le", MODEST[0], lo), build("le", hi, MODEST[1]))


def _keep(opened: Mapping[Expr, Expr], roots: Sequence[Expr], leaf: Leaf) -> Expr | None:
    # The conjunction of all conditions, if each of them alone makes every term 0 where it masks.
    # Scalars are at least 1, so they may divide. One that may be 0 is compared with it.
    doubtful = {x for node in postorder(roots) if node.op == "eq" for x in node.args}

    def divisor(node: Expr) -> Interval:
        is_positive = node.op == "scalar" and node not in doubtful
        return Interval(const(1), None) if is_positive else leaf(node)

    keep = TRUE
    for condition, value in opened.items():
        masked = substitute(roots, {condition: const(not value.value)})
        if not all(interval.zero is TRUE for interval in lift(masked, divisor)):
            return None
        keep = both(keep, condition if value.value else negation(condition))
    return keep


def _leaves(aux: Sequence[Aux], bounded: Collection[int], apart: bool = True) -> Leaf:
    """The intervals of a program's leaves.

    apart: b and h are known. Otherwise each tile is judged for all batches and heads.
    """

    def leaf(node: Expr) -> Interval:
        if node.op in POSITIONS:
            return Interval(TILE[f"{node.op}_lo"], TILE[f"{node.op}_hi"])
        if node.op == "aux" and not _INSIDE.isdisjoint(aux[node.value].access):
            number = node.value
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
    """The largest conditions in the terms that can be decided for a tile.

    Conditions on b and h only are left out.
    """
    decided: set[Expr] = set()
    masking: set[Expr] = set()
    for node in postorder(roots):
        if not node.args:
            interval = leaf(node)
            if interval.lo is not None and interval.lo is not FALSE:
                decided.add(node)
        elif node.op != "random16" and all(a in decided for a in node.args):
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
    """The value of a condition for which it masks nothing, or None if neither value masks more."""

    def at_work(node: Expr) -> Interval:
        """Sizes and scales count as 1, since it does not matter here whether one is 0."""
        if node.op in ("scalar", "aux") and node.kind != "b" and leaf(node).point is node:
            return literal(const(1 if node.kind == "i" else 1.0))
        return leaf(node)

    zeros = {}
    for value in (False, True):
        terms = substitute(roots, {condition: const(value)})
        zeros[value] = sum(interval.zero is TRUE for interval in lift(terms, at_work))
    return None if zeros[False] == zeros[True] else zeros[False] > zeros[True]
