"""Check in-place calls around a region: can one call at its end replace it?

The op reads all operands at the end of the region. At that point each operand must have the value
that the region has read, and its gradient must flow to the same tensors. So:

- No operand is changed in between, by any call, through any alias. A number from `.item()` counts
  as read at the `.item()`.
- A copy that is written into is an operand of its own, not the tensor that it was copied from.
- Scores may be changed in place, if autograd sees the call and no copy of them may be an alias.
- No tensor of the region is detached in place, reshaped in place or given another storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import facts, functions, places, writes
from .candidates import HostGraph

_EXPANSIONS = frozenset(["expand", "expand_as", "broadcast_to"])


@dataclass(frozen=True)
class Extent:
    """A region to check.

    nodes:   Its nodes in program order.
    makers:  Pure calls between the leaves and the nodes.
    end:     The node that the op will replace.
    """

    nodes: Sequence[Node]
    makers: Sequence[Node]
    leaves: Sequence[Node]
    end: Node

    @property
    def results(self) -> tuple[Node, ...]:
        """The nodes, with the node that the op replaces."""
        return (*self.nodes, self.end)


def check(graph: HostGraph, region: Extent) -> None:
    """Raise Refused if an in-place call forbids to replace a region."""
    for mutator in graph.mutators:
        if facts.name(mutator) in functions.MOVES:
            raise Refused(
                Code.OPAQUE_CALL, f"{places.describe(mutator)} gives a tensor another storage"
            )
    _check_operands(graph, region)
    _check_dims(graph, region)
    _check_copies(graph, region)
    _check_expanded(graph, region)
    if graph.ambient[region.end].grad:
        _check_history(graph, region)


def is_overwritten(graph: HostGraph, maker: Node, end: Node) -> bool:
    """Whether the copy that a call makes is written into before `end`."""
    own = facts.storages(maker)
    own = own.difference(*map(facts.storages, maker.all_input_nodes))
    return bool(graph.written(own, -1, graph.order[end]))


def is_watched(node: Node) -> bool:
    """Whether a call asks for the gradient of this very tensor."""
    return any(facts.name(user) in functions.WATCHERS for user in node.users)


# Values


def _check_operands(graph: HostGraph, region: Extent) -> None:
    reads, end = _first_reads(graph, region), graph.order[region.end]
    for operand, place in reads.items():
        for mutator in graph.written(facts.storages(operand), place, end):
            raise Refused(
                Code.MUTATED_OPERAND,
                f"{places.describe(mutator)} changes an operand between its use and the output",
            )
    outer = frozenset().union(*map(facts.storages, reads))
    for mutator in region.nodes:
        if not graph.mutators.get(mutator, frozenset()).isdisjoint(outer):
            raise Refused(
                Code.MUTATED_OPERAND, f"{places.describe(mutator)} changes an operand in place"
            )


def _first_reads(graph: HostGraph, region: Extent) -> dict[Node, int]:
    """The place where each operand is first read. A view reads nothing, but its users do."""
    order, uses = graph.order, dict[Node, int]()
    inside = set(region.nodes)
    for node in [*region.nodes, *reversed(region.makers)]:
        reads = node in inside or not facts.is_view(node)
        place = order[node] if reads else uses.get(node, order[node])
        for source in node.all_input_nodes:
            uses[source] = min(uses.get(source, place), place)
    positions = {leaf: uses.get(leaf, order[region.end]) for leaf in region.leaves}
    for number in [leaf for leaf in region.leaves if facts.name(leaf) == "item"]:
        (tensor,) = number.all_input_nodes
        positions[tensor] = min(positions.get(tensor, order[number]), order[number])
    return positions


def _check_copies(graph: HostGraph, region: Extent) -> None:
    """Refuse if scores or a copy of them is written, and the other one is read afterwards.

    Whether the copy is an alias depends on strides, which the analysis does not know.
    """
    writers = [n for n in region.nodes if n in graph.mutators]
    copies = [n for n in region.nodes if writes.may_alias(n)] if writers else []
    for copy in copies:
        below = _aliases(region.nodes, [copy], set())
        above = _aliases(region.nodes, _roots(copy), below)
        for writer in writers:
            targets = set(writes.mutated(writer))
            others = above if targets & below else below if targets & above else set[Node]()
            if graph.order[writer] > graph.order[copy] and any(
                graph.order[n] > graph.order[writer] and others & set(n.all_input_nodes)
                for n in region.nodes
            ):
                raise Refused(
                    Code.MUTATED_SCORES,
                    f"{places.describe(writer)} changes scores of which {places.describe(copy)} "
                    "may be a copy or an alias",
                )


def _check_expanded(graph: HostGraph, region: Extent) -> None:
    """Refuse writes through an expanded view.

    Functionalisation turns such a write into x + (new - x), which is not `new` if x is infinite.
    """
    views = [n for n in region.nodes if facts.name(n) in _EXPANSIONS]
    for writer in (n for n in region.nodes if views and n in graph.mutators):
        targets = set(writes.mutated(writer))
        for view in views:
            if targets & _aliases(region.nodes, [view], set()):
                raise Refused(
                    Code.MUTATED_SCORES,
                    f"{places.describe(writer)} changes the scores through {places.describe(view)}",
                )


def _roots(copy: Node) -> list[Node]:
    """The nodes that a copy may be an alias of, up to the call that made the storage."""
    roots = [copy.all_input_nodes[0]]
    while roots[-1].all_input_nodes and _is_alias(roots[-1], roots[-1].all_input_nodes[0]):
        roots.append(roots[-1].all_input_nodes[0])
    return roots


def _aliases(nodes: Sequence[Node], start: Iterable[Node], without: set[Node]) -> set[Node]:
    aliases = set(start)
    for node in nodes:
        if node not in without and any(
            source in aliases and _is_alias(node, source) for source in node.all_input_nodes
        ):
            aliases.add(node)
    return aliases


def _is_alias(node: Node, source: Node) -> bool:
    return bool(facts.storages(node) & facts.storages(source)) or writes.may_alias(node)


# Dims, strides and history: a view takes them from its base at the place where it is made


def _first_touches(graph: HostGraph, region: Extent) -> dict[Node, int]:
    """The place where each operand is first used, even if only by a view."""
    users = {*region.nodes, *region.makers}
    return {
        leaf: min((graph.order[n] for n in leaf.users if n in users), default=0)
        for leaf in (*region.leaves, *region.makers)
    }


def _calls(graph: HostGraph, names: frozenset[str]) -> dict[Node, frozenset[int]]:
    return {m: changed for m, changed in graph.mutators.items() if facts.name(m) in names}


def _check_dims(graph: HostGraph, region: Extent) -> None:
    """Refuse calls that change dims in place. A fake value shows the dims at the end only."""
    calls = _calls(graph, functions.RESHAPES)
    if not calls:
        return
    own = frozenset().union(*map(facts.storages, region.results))
    touches = _first_touches(graph, region)
    for call, changed in calls.items():
        if changed & own:
            raise Refused(
                Code.MUTATED_SCORES, f"{places.describe(call)} changes dims of the scores in place"
            )
        for operand, place in touches.items():
            if changed & facts.storages(operand) and graph.order[call] > place:
                raise Refused(
                    Code.MUTATED_OPERAND, f"{places.describe(call)} changes dims of an operand"
                )


def _check_history(graph: HostGraph, region: Extent) -> None:
    touches = _first_touches(graph, region)
    trains = any(map(facts.may_want_gradients, (*region.nodes, *region.leaves)))
    own = frozenset().union(*map(facts.storages, region.results)) if trains else frozenset[int]()
    for call, changed in _calls(graph, functions.CUTS).items():
        late = [
            operand
            for operand, place in touches.items()
            if changed & facts.storages(operand) and graph.order[call] > place
        ]
        if changed & own or late:
            raise Refused(
                Code.GRAD_MODE, f"{places.describe(call)} cuts a tensor of the region from autograd"
            )
    if trains:
        _check_silent_writes(graph, region)


def _check_silent_writes(graph: HostGraph, region: Extent) -> None:
    """Refuse scores that are changed through an alias without history: autograd misses the
    change.
    """
    writers = [n for n in region.nodes if n in graph.mutators]
    for alias in filter(writes.cuts_history, region.nodes if writers else ()):
        for writer in writers:
            if graph.mutators[writer] & facts.storages(alias):
                raise Refused(
                    Code.GRAD_MODE,
                    f"{places.describe(writer)} changes the scores through "
                    f"{places.describe(alias)}, unseen by autograd",
                )
