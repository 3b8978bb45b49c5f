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

from collections.abc import Collection, Iterable

from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import facts, functions, places, writes
from .candidates import HostGraph
from .region import Region

_EXPANSIONS = frozenset(["expand", "expand_as", "broadcast_to"])


def check(graph: HostGraph, region: Region) -> None:
    """Raise Refused if an in-place call forbids to replace a region."""
    for mutator in _mutators(graph, functions.MOVES):
        reason = f"{places.describe(mutator)} gives a tensor another storage"
        raise Refused(Code.OPAQUE_CALL, reason)
    _check_operands(graph, region)
    _check_dims(graph, region)
    _check_copies(graph, region)
    _check_expanded(graph, region)
    if graph.ambient[region.end].grad:
        _check_history(graph, region)


def is_overwritten(graph: HostGraph, maker: Node, end: Node) -> bool:
    """Whether the copy that a call makes is written into before `end`."""
    own = facts.storages(maker).difference(*map(facts.storages, maker.all_input_nodes))
    return bool(graph.written(own, -1, graph.order[end]))


def is_watched(node: Node) -> bool:
    """Whether a call asks for the gradient of this very tensor."""
    return any(facts.name(user) in functions.WATCHERS for user in node.users)


# Values


def _check_operands(graph: HostGraph, region: Region) -> None:
    reads, end = _first_reads(graph, region), graph.order[region.end]
    for operand, place in reads.items():
        for mutator in graph.written(facts.storages(operand), place, end):
            reason = "changes an operand between its use and the output"
            raise Refused(Code.MUTATED_OPERAND, f"{places.describe(mutator)} {reason}")
    outer = frozenset().union(*map(facts.storages, reads))
    for mutator in _writers(graph, region):
        if not graph.mutators[mutator].isdisjoint(outer):
            reason = f"{places.describe(mutator)} changes an operand in place"
            raise Refused(Code.MUTATED_OPERAND, reason)


def _writers(graph: HostGraph, region: Region) -> list[Node]:
    return [n for n in region.nodes if n in graph.mutators]


def _first_reads(graph: HostGraph, region: Region) -> dict[Node, int]:
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


def _check_copies(graph: HostGraph, region: Region) -> None:
    """Refuse if scores or a copy of them is written, and the other one is read afterwards.

    Whether the copy is an alias depends on strides, which the analysis does not know.
    """
    order, writers = graph.order, _writers(graph, region)
    copies = [n for n in region.nodes if writes.may_alias(n)] if writers else []
    for copy in copies:
        below = _aliases(region, [copy])
        # What it may be an alias of, up to the call that made the storage.
        bases = facts.walk(
            copy.all_input_nodes[:1],
            lambda node: [n for n in node.all_input_nodes[:1] if _is_alias(node, n)],
        )
        above = _aliases(region, bases, below)
        for writer in (n for n in writers if order[n] > order[copy]):
            targets = set(writes.mutated(writer))
            others = above if targets & below else below if targets & above else set[Node]()
            readers = (n for n in region.nodes if order[n] > order[writer])
            if any(not others.isdisjoint(n.all_input_nodes) for n in readers):
                reason = f"{places.describe(writer)} changes scores of which "
                reason += f"{places.describe(copy)} may be a copy or an alias"
                raise Refused(Code.MUTATED_SCORES, reason)


def _check_expanded(graph: HostGraph, region: Region) -> None:
    """Refuse writes through an expanded view.

    Functionalisation turns such a write into x + (new - x), which is not `new` if x is infinite.
    """
    views = [n for n in region.nodes if facts.name(n) in _EXPANSIONS]
    for writer in _writers(graph, region) if views else ():
        targets = set(writes.mutated(writer))
        for view in views:
            if targets & _aliases(region, [view]):
                reason = f"changes the scores through {places.describe(view)}"
                raise Refused(Code.MUTATED_SCORES, f"{places.describe(writer)} {reason}")


def _aliases(region: Region, start: Iterable[Node], without: Collection[Node] = ()) -> set[Node]:
    aliases = set(start)
    for node in region.nodes:
        sources = aliases.intersection(node.all_input_nodes)
        if node not in without and any(_is_alias(node, source) for source in sources):
            aliases.add(node)
    return aliases


def _is_alias(node: Node, source: Node) -> bool:
    return bool(facts.storages(node) & facts.storages(source)) or writes.may_alias(node)


# Dims, strides and history: a view takes them from its base at the place where it is made


def _mutators(graph: HostGraph, names: frozenset[str]) -> list[Node]:
    return [m for m in graph.mutators if facts.name(m) in names]


def _changes_results(graph: HostGraph, region: Region, call: Node) -> bool:
    own = set[int]().union(*map(facts.storages, (*region.nodes, region.end)))
    return not graph.mutators[call].isdisjoint(own)


def _changes_operand(graph: HostGraph, region: Region, call: Node) -> bool:
    """Whether a call acts on an operand that the region has used before, even if only by a view."""
    users = {*region.nodes, *region.makers}
    return any(
        graph.mutators[call] & facts.storages(operand)
        and min((graph.order[n] for n in operand.users if n in users), default=0)
        < graph.order[call]
        for operand in (*region.leaves, *region.makers)
    )


def _check_dims(graph: HostGraph, region: Region) -> None:
    """Refuse calls that change dims in place. A fake value shows the dims at the end only."""
    for call in _mutators(graph, functions.RESHAPES):
        if _changes_results(graph, region, call):
            reason = f"{places.describe(call)} changes dims of the scores in place"
            raise Refused(Code.MUTATED_SCORES, reason)
        if _changes_operand(graph, region, call):
            reason = f"{places.describe(call)} changes dims of an operand"
            raise Refused(Code.MUTATED_OPERAND, reason)


def _check_history(graph: HostGraph, region: Region) -> None:
    trains = any(map(facts.may_want_gradients, (*region.nodes, *region.leaves)))
    for call in _mutators(graph, functions.CUTS):
        if _changes_operand(graph, region, call) or (
            trains and _changes_results(graph, region, call)
        ):
            reason = f"{places.describe(call)} cuts a tensor of the region from autograd"
            raise Refused(Code.GRAD_MODE, reason)
    if trains:
        _check_silent_writes(graph, region)


def _check_silent_writes(graph: HostGraph, region: Region) -> None:
    """Refuse scores that are changed through an alias without history, unseen by autograd."""
    writers = _writers(graph, region)
    for alias in filter(writes.cuts_history, region.nodes if writers else ()):
        for writer in writers:
            if graph.mutators[writer] & facts.storages(alias):
                reason = f"changes the scores through {places.describe(alias)}, unseen by autograd"
                raise Refused(Code.GRAD_MODE, f"{places.describe(writer)} {reason}")
