"""Remove conditions that are always true on a jagged side, such as `n < length of its sequence`.

On a jagged side no score is past the end of a sequence. So a mask for that has no effect, but would
cost a load and a comparison. Its lengths have to be the differences of the side's offsets, or the
offsets have to be their running sums.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

from ...program.expr import Expr, const, postorder
from ...program.simplify import FALSE, TRUE, substitute
from ..host import facts
from ..reading.reached import reached
from ..reading.reading import Reading
from .offsets import Offsets
from .padding import GraphPadding
from .sides import JaggedSide, Sides

# The value of a comparison of a position with the length, and of the length with a position.
_TRUTH = ({"lt": TRUE, "ge": FALSE}, {"gt": TRUE, "le": FALSE})


def without_implied(padding: GraphPadding, reading: Reading, sides: Sides) -> Reading:
    """The reading, without such conditions in its weight."""
    jagged = [side for side in (sides.query, sides.key) if side is not None]

    def is_position(node: Expr, side: JaggedSide) -> bool:
        if node.op == "add" and const(0) in node.args:  # an arange, as it is read
            node = next(a for a in node.args if a is not const(0))
        at = None if node.op != "index" else reading.positions[int(node.value or 0)]
        return at is not None and reading.space.resolve(at) == side.positions

    def is_length(node: Expr, side: JaggedSide) -> bool:
        if node.op != "aux" or node.kind != "i":
            return False
        operand = reading.aux[int(node.value or 0)]
        at = tuple(digits for digits in operand.index if digits)
        whole = all(dtype in (torch.int32, torch.int64) for dtype in operand.casts)
        own = at == (side.batch,) and whole
        return own and measures(padding.offsets, operand.leaf, side.pad.offsets)

    known: dict[Expr, Expr] = {}
    for node in postorder([reading.weight]):
        for side in jagged if len(node.args) == 2 else ():
            for truth, (place, length) in zip(_TRUTH, (node.args, node.args[::-1]), strict=True):
                if node.op in truth and is_position(place, side) and is_length(length, side):
                    known[node] = truth[node.op]
    if not known:
        return reading
    (weight,) = substitute([reading.weight], known)
    # The branch that such a condition never chooses still has a gradient of zeros.
    return (
        replace(reading, weight=weight) if reached(weight) == reached(reading.weight) else reading
    )


def measures(known: Offsets, lengths: Node, offsets: Node) -> bool:
    """Whether `lengths` [B] are the lengths of the sequences between `offsets` [B+1]."""
    if any(known.changes(facts.storages(node)) for node in (lengths, offsets)):
        return False
    summed = known.summed_lengths(offsets)
    if summed is not None and known.one(summed, lengths):
        return True
    return _differences(known, lengths, offsets)


def _differences(known: Offsets, lengths: Node, offsets: Node) -> bool:
    given = lengths.all_input_nodes
    if facts.name(lengths) == "diff":
        return len(lengths.args) == 1 and not lengths.kwargs and known.one(given[0], offsets)
    if facts.name(lengths) != "sub" or len(lengths.args) != 2 or lengths.kwargs:
        return False
    parts = (slice(1, None, None), slice(None, -1, None))
    return all(
        isinstance(part, Node)
        and facts.name(part) == "getitem"
        and part.args[1] == wanted
        and known.one(part.all_input_nodes[0], offsets)
        for part, wanted in zip(lengths.args, parts, strict=True)
    )
