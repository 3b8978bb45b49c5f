"""The step from a dense reading to a jagged one."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ..host.region import Sink
from ..reading.layout import Layout, layout_of
from ..reading.reading import Reading
from .implied import without_implied
from .padding import GraphPadding
from .sides import Sides, sides


def without_padding(
    padding: GraphPadding, reading: Reading, sink: Sink | None, keys: bool, end: Node
) -> tuple[Reading, Layout, Sides]:
    """The reading, its layout and its jagged sides: the rows where `sink` unpads the output, the
    keys where `keys` says so. With neither it is dense as before.

    Raises Refused where a side that is wanted cannot do without its padding.
    """
    found = sides(padding, reading, sink, keys, end)
    layout = found.layout(layout_of(reading, found.batch, found.rows))
    reading = replace(reading, aux=tuple(map(found.operand, reading.aux)))
    return without_implied(padding, reading, found), layout, found
