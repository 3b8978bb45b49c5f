"""How large the integers of a program can become.

The integers of a program are torch's int64. A model's narrower integers may wrap, and so may those
of a kernel. `ranges` bounds every integer term of a program. `wide` says whether a kernel needs 64
bits for its integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from .expr import OPS, Expr, postorder

Range = tuple[int, int]
ANY: Range = (-(1 << 63), (1 << 63) - 1)  # an unknown integer
TRUTH: Range = (0, 1)
INT32: Range = (-(1 << 31), (1 << 31) - 1)
# Sizes, and indices of queries, keys, heads and batches. A kernel counts them in 32 bits, with room
# for a sum of some of them.
_PLACE: Range = (-(1 << 28), 1 << 28)
# Elements of operands of which a sum of a few fits into 64 bits. Times in nanoseconds do.
MODEST: Range = (-(1 << 61), 1 << 61)
_INPUTS = frozenset(["aux", "aux_lo", "aux_hi", "scalar"])
_KEEPS = frozenset(["maximum", "minimum", "where"])  # an operand comes out as it is


def inside(inner: Range, outer: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def ranges(roots: Sequence[Expr], leaf: Callable[[Expr], Range]) -> dict[Expr, Range]:
    """The (smallest, largest) value of every integer term.

    leaf: A function from a leaf that is not a literal to its range.
    """
    known_ranges: dict[Expr, Range] = {}
    for node in postorder(roots):
        if node.kind != "i":
            continue
        if node.is_const:
            known = (node.value,) * 2
        elif not node.args:
            known = leaf(node)
        else:
            rule = OPS[node.op].integers
            operands = [TRUTH if a.kind == "b" else known_ranges.get(a, ANY) for a in node.args]
            known = ANY if rule is None else rule(*operands)
        # What leaves 64 bits may wrap, as it does in torch.
        known_ranges[node] = known if inside(known, ANY) else ANY
    return known_ranges


def wide(terms: Sequence[Expr]) -> bool:
    """Whether a kernel must compute the integers of these terms in 64 bits.

    Elements of operands may be as large as their dtype allows. So 32 bits are enough only if terms
    compare and choose them, and nothing else.
    """
    known_ranges = ranges(terms, lambda node: ANY if node.op.startswith("aux") else _PLACE)
    return any(
        node.op in ("mul", "int") or (node.op not in _KEEPS and not inside(known, INT32))
        for node, known in known_ranges.items()
        if node.args or node.is_const
    )


def wrapping(terms: Sequence[Expr]) -> set[Expr]:
    """The integer operations that may leave 64 bits, though every operand is MODEST."""
    known_ranges = ranges(terms, lambda node: MODEST if node.op in _INPUTS else _PLACE)
    return {node for node, known in known_ranges.items() if node.args and known == ANY}


def sums(terms: Sequence[Expr]) -> list[Expr]:
    """The integer leaves that enter a sum, a product or a quotient.

    Their order is the same in every process, as a kernel's text and its place in caches follow it.
    """
    computed = [x for x in postorder(terms) if x.args and x.kind == "i" and x.op not in _KEEPS]
    results = [x for x in computed if OPS[x.op].integers is not None]
    leaves = [x for x in postorder(results) if not x.args and x.kind == "i"]
    return sorted(leaves, key=lambda leaf: (leaf.op, repr(leaf.value)))


# Rules: from the ranges of the operands to that of the result.


def add(x: Range, y: Range) -> Range:
    return x[0] + y[0], x[1] + y[1]


def sub(x: Range, y: Range) -> Range:
    return add(x, neg(y))


def neg(x: Range) -> Range:
    return -x[1], -x[0]


def mul(x: Range, y: Range) -> Range:
    corners = [a * b for a, b in itertools.product(x, y)]
    return min(corners), max(corners)


def absolute(x: Range) -> Range:
    return max(x[0], -x[1], 0), max(-x[0], x[1])


def floordiv(x: Range, y: Range) -> Range:
    if y[0] <= 0 <= y[1]:
        return ANY
    corners = [a // b for a, b in itertools.product(x, y)]
    return min(corners), max(corners)


def mod(x: Range, y: Range) -> Range:
    if y[0] <= 0 <= y[1]:
        return ANY
    if y[0] > 0 and x[0] >= 0 and x[1] < y[0]:
        return x
    return min(y[0] + 1, 0), max(y[1] - 1, 0)


def where(_: Range, x: Range, y: Range) -> Range:
    return min(x[0], y[0]), max(x[1], y[1])


def maximum(x: Range, y: Range) -> Range:
    return max(x[0], y[0]), max(x[1], y[1])


def minimum(x: Range, y: Range) -> Range:
    return min(x[0], y[0]), min(x[1], y[1])


def of_truth(x: Range) -> Range:
    """A truth value as an integer. Of a real it is unknown."""
    return x
