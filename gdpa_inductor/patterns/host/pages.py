"""Gathers of pages: `k_pages[page_table]` copies keys or values from where a table says.

Serving code does so before it attends, and nothing else uses the copy. If the region reads the
pages itself, at its end, there is none. So neither the pages, the table nor the copy may be
written in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import effects, facts, places
from .candidates import HostGraph, behind_views, indexes


@dataclass(frozen=True)
class PageReads:
    """Calls that a region reads through to the pages of its factors.

    way:   Gathers of pages, and views and copies of their results.
    ends:  The pages and the tables. They are read as they are.
    """

    way: frozenset[Node] = frozenset()
    ends: frozenset[Node] = frozenset()


def page_reads(
    host: HostGraph, factors: Iterable[Node], closed: Collection[Node], end: Node
) -> PageReads:
    """The page reads of a region. closed: Gathers that stay as they are.

    Raises Refused with a gather if its copy has to stay.
    """
    ways = [way for factor in factors if (way := _way_to_gather(host, factor, closed))]
    for *_, gather in ways:
        _check_writes(host, gather, end)
    for way in ways:
        written = next((n for n in way if effects.is_overwritten(host, n, end)), None)
        if written is not None:
            raise kept(way[-1], "the copy is written into")
    ends = {behind_views(n) if _is_index(n) else n for way in ways for n in way[-1].all_input_nodes}
    return PageReads(frozenset(n for way in ways for n in way), frozenset(ends))


def kept(gather: Node, why: str) -> Refused:
    reason = f"{places.describe(gather)} copies pages: {why}"
    return Refused(Code.PAGES_COPIED, reason, gather)


def _way_to_gather(host: HostGraph, factor: Node, closed: Collection[Node]) -> list[Node]:
    """The calls from a factor back to the gather that makes it; empty if there is none."""
    way = [factor]
    while facts.lays_out(way[-1]) or facts.is_upcast(way[-1]):
        way.append(way[-1].all_input_nodes[0])
    found = way[-1] not in closed and _is_gather(host, way[-1])
    return way if found else []


def _is_gather(host: HostGraph, node: Node) -> bool:
    """Whether a call copies elements at integers, of a tensor that has no gradient."""
    if not facts.is_call(node) or not indexes(node) or not facts.is_plain(node):
        return False
    inputs = [n for n in node.all_input_nodes if facts.tensors(n)]
    devices = {t.device for n in inputs for t in facts.tensors(n)}
    wanted = any(host.wants(n) for n in inputs if not _is_index(n))
    return len(devices) == 1 and all(map(facts.is_plain, inputs)) and not wanted


def _is_index(node: Node) -> bool:
    return not any(t.is_floating_point() for t in facts.tensors(node))


def _check_writes(host: HostGraph, gather: Node, end: Node) -> None:
    sources = (n for n in gather.all_input_nodes if facts.tensors(n))
    storages = set[int]().union(*map(facts.storages, sources))
    for mutator in host.written(storages, host.order[gather], host.order[end]):
        raise kept(gather, f"{places.describe(mutator)} writes into them or their table later")
