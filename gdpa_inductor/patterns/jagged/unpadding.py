"""From a dense reading to a jagged one: `without_padding`.

Conditions that are always true on a jagged side are removed as well, such as
`n < length of its sequence`. There no score is past the end of a sequence. So a mask for that has
no effect, but would cost a load and a comparison. Its lengths have to be the differences of the
side's offsets, or the offsets have to be their running sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...program.expr import Expr, const, postorder
from ...program.simplify import FALSE, TRUE, substitute
from ..host import facts
from ..host.region import Sink
from ..reading.layout import Layout
from ..reading.reached import reached
from ..reading.reading import Reading
from .offsets import Offsets
from .padding import GraphPadding
from .sides import JaggedSide, Sides, sides_of

# The value of a comparison of a position with the length, and of the length with a position.
_TRUTH = ({"lt": TRUE, "ge": FALSE}, {"gt": TRUE, "le": FALSE})


@dataclass(frozen=True)
class Understood:
    """A region that is fully read: what it computes, the roles of its axes, its jagged sides."""

    reading: Reading
    layout: Layout
    sides: Sides


def without_padding(
    padding: GraphPadding, reading: Reading, sink: Sink | None, keys: bool, end: Node
) -> Understood:
    """A reading with jagged rows if there is a `sink`, and jagged keys if `keys` is set.

    With neither it stays dense. Raises Refused if the padding of a wanted side cannot be removed.
    """
    sides = sides_of(padding, reading, sink, keys, end)
    layout = sides.layout(reading)
    reading = replace(reading, aux=tuple(map(sides.operand, reading.aux)))
    return Understood(_without_implied(padding, reading, sides), layout, sides)


def _without_implied(padding: GraphPadding, reading: Reading, sides: Sides) -> Reading:
    """The reading, without conditions in its weight that its jagged sides make true."""
    jagged = [side for side in (sides.query, sides.key) if side is not None]
    known: dict[Expr, Expr] = {}
    for node in postorder([reading.weight]):
        if len(node.args) != 2:
            continue
        for truth, (place, length) in zip(_TRUTH, (node.args, node.args[::-1]), strict=True):
            if node.op in truth and any(
                _is_position(reading, place, side) and _is_length(padding, reading, length, side)
                for side in jagged
            ):
                known[node] = truth[node.op]
    if not known:
        return reading
    (weight,) = substitute([reading.weight], known)
    # The branch that such a condition never chooses still has a gradient of zeros.
    if reached(weight) != reached(reading.weight):
        return reading
    return replace(reading, weight=weight)


def _is_position(reading: Reading, node: Expr, side: JaggedSide) -> bool:
    if node.op == "add" and const(0) in node.args:  # an arange, as it is read
        node = next(a for a in node.args if a is not const(0))
    if node.op != "index":
        return False
    return reading.space.resolve(reading.positions[int(node.value or 0)]) == side.positions


def _is_length(padding: GraphPadding, reading: Reading, node: Expr, side: JaggedSide) -> bool:
    if node.op != "aux" or node.kind != "i":
        return False
    operand = reading.aux[int(node.value or 0)]
    at = tuple(digits for digits in operand.index if digits)
    if at != (side.batch,) or not set(operand.casts) <= {torch.int32, torch.int64}:
        return False
    return measures(padding.offsets, operand.leaf, side.pad.offsets)


def measures(known: Offsets, lengths: Node, offsets: Node) -> bool:
    """Whether `lengths` [B] are the lengths of the sequences between `offsets` [B+1]."""
    if any(known.changes(facts.storages(node)) for node in (lengths, offsets)):
        return False
    summed = known.summed_lengths(offsets)
    if summed is not None and known.one(summed, lengths):
        return True
    return _differences(known, lengths, offsets)


def _differences(known: Offsets, lengths: Node, offsets: Node) -> bool:
    """Whether `lengths` are `offsets.diff()` or `offsets[1:] - offsets[:-1]`."""
    if facts.name(lengths) == "diff":
        source = lengths.all_input_nodes[0]
        return len(lengths.args) == 1 and not lengths.kwargs and known.one(source, offsets)
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
