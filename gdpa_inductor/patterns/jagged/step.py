"""The step from a dense reading to a jagged one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.fx import Node

from ..host.region import Sink
from ..reading.layout import Layout, layout_of
from ..reading.reading import Reading
from .implied import without_implied
from .padding import GraphPadding
from .sides import Sides, sides


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
    found = sides(padding, reading, sink, keys, end)
    layout = found.layout(layout_of(reading, found.batch, found.rows))
    reading = replace(reading, aux=tuple(map(found.operand, reading.aux)))
    return Understood(without_implied(padding, reading, found), layout, found)
