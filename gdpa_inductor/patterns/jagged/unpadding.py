"""From a dense reading to a jagged one: `without_padding`.

Conditions that are always true on a jagged side are removed as well, such as
`n < length of its sequence`. There no score is past the end of a sequence. So a mask for that has
no effect, but would cost a load and a comparison. Its lengths have to be the differences of the
side's offsets, or the offsets have to be their running sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...program.expr import Expr, const, postorder
from ...program.score_mod import ScoreMod
from ...program.simplify import FALSE, TRUE, substitute
from ..host import facts
from ..host.region import Sink
from ..reading.layout import Layout, program_of
from ..reading.reached import reached
from ..reading.reading import Operand, Reading
from .offsets import Offsets
from .padding import GraphPadding
from .sides import JaggedSide, Sides, sides_of

# The value of a comparison of a position with the length, and whether the length comes first.
_IMPLIED = {
    "lt": (TRUE, False),
    "ge": (FALSE, False),
    "gt": (TRUE, True),
    "le": (FALSE, True),
}


@dataclass(frozen=True)
class Understood:
    """A region that is fully read: what it computes, the roles of its axes, its jagged sides, and
    its score program with the operands.
    """

    reading: Reading
    layout: Layout
    sides: Sides
    program: ScoreMod
    operands: Sequence[Operand]


def without_padding(
    padding: GraphPadding, reading: Reading, sink: Sink | None, keys: bool, end: Node
) -> Understood:
    """A reading with jagged rows if there is a `sink`, and jagged keys if `keys` is set.

    With neither it stays dense. Raises Refused if the padding of a wanted side cannot be removed.
    """
    sides = sides_of(padding, reading, sink, keys, end)
    layout = sides.layout(reading)
    reading = replace(reading, aux=tuple(map(sides.operand, reading.aux)))
    reading = _without_implied(padding, reading, sides)
    program, operands = program_of(reading, layout)
    return Understood(reading, layout, sides, program, operands)


def _without_implied(padding: GraphPadding, reading: Reading, sides: Sides) -> Reading:
    known: dict[Expr, Expr] = {}
    for node in postorder(reading.terms):
        if node.op in _IMPLIED:
            truth, mirrored = _IMPLIED[node.op]
            place, length = reversed(node.args) if mirrored else node.args
            if any(
                _is_position(reading, place, side) and _is_length(padding, reading, length, side)
                for side in sides.jagged
            ):
                known[node] = truth
    if not known:
        return reading
    terms = substitute(reading.terms, known)
    # The branch that such a condition never chooses still has a gradient of zeros.
    if [*map(reached, terms)] != [*map(reached, reading.terms)]:
        return reading
    return reading.with_terms(terms)


def _is_position(reading: Reading, node: Expr, side: JaggedSide) -> bool:
    if node.op == "add" and const(0) in node.args:  # an arange, as it is read
        node = next(a for a in node.args if a is not const(0))
    is_index = node.op == "index"
    return is_index and reading.space.resolve(reading.positions[node.value]) == side.positions


def _is_length(padding: GraphPadding, reading: Reading, node: Expr, side: JaggedSide) -> bool:
    if node.op != "aux" or node.kind != "i":
        return False
    operand = reading.aux[node.value]
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
    # `offsets.diff()`, or `offsets[1:] - offsets[:-1]`.
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
