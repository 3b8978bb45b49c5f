"""Look-ups in learned tables: those that biases come from, each read in one form (`Lookup`).

A changed look-up gives the same bits. So it may be changed whatever calls come after it, and the
walk from a bias needs no list of known functions. It follows all plain calls, and all calls that
write into their results. It ends at matrix products, as calls before these are another part of the
model.

`LOOKUPS` has a function for each kind of call. It says which indices the call reads, and whether it
does nothing but look up along one dim. All other arguments (whole dims, slices, numbers) do not
matter: the same call on a table of places tells which elements it reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ... import look_up
from ..._compat import operators, shapes
from ...ops import ATTENTION
from ...rejection import Code
from ..host import facts, products
from ..host.candidates import HostGraph
from ..host.sizes import Size
from ..result import Refused

_CHOICES = (torch.bool, torch.uint8)  # such an index reads no element twice, so nothing is summed
_REST = -1  # the width of an ellipsis


@dataclass(frozen=True)
class Places:
    """Which elements of a table a call reads.

    indices: Its indices.
    dim:     If all that the call does is to read the elements at one index along one dim: this dim.
             Else None.
    flat:    The dim is that of the flattened table.
    pads:    The place of the row without a gradient, or None.
    """

    indices: tuple[Node, ...]
    dim: int | None = None
    flat: bool = False
    pads: Size | None = None


@dataclass(frozen=True)
class Lookup:
    """A call that looks up elements of `table`.

    crowded: So many elements are looked up that each one of the table is read many times.
    """

    node: Node
    table: Node
    places: Places
    crowded: bool


def lookup_calls(graph: HostGraph, biases: Iterable[Node]) -> list[Node]:
    """The calls before `biases` that may look up in a table, the last first."""
    stack, visited, calls = list(biases), set[Node](), list[Node]()
    while stack:
        node = stack.pop()
        if node in visited or not _is_followed(node):
            continue
        visited.add(node)
        if facts.name(node) in LOOKUPS and node in graph.order:
            calls.append(node)
        stack += node.all_input_nodes
        stack += (n for writer in writers(graph, node) for n in writer.all_input_nodes)
        stack += writers(graph, node)
    return latest_first(graph, calls)


def latest_first(graph: HostGraph, nodes: Iterable[Node]) -> list[Node]:
    """The nodes in reverse program order. So a look-up in a looked-up table comes first."""
    return sorted(nodes, key=graph.order.__getitem__, reverse=True)


def bias_sources(gm: GraphModule) -> list[Node]:
    """The nodes that a graph passes to bodies, and from which biases are made there."""
    sources: dict[Node, None] = {}
    for call, body in facts.bodies(gm):
        inputs = _bias_inputs(body)
        sources |= dict.fromkeys(x for inner, x in facts.body_inputs(call, body) if inner in inputs)
    return list(sources)


def _bias_inputs(body: GraphModule) -> set[Node]:
    """The inputs of a body from which biases are made, in the body and in bodies that it calls."""
    stack, visited = bias_sources(body), set[Node]()
    for node in body.graph.nodes:
        if node.target is ATTENTION.op:
            stack += facts.flat_nodes(ATTENTION.bind(*node.args, **node.kwargs).operands.aux)
    while stack:
        node = stack.pop()
        if node not in visited and (node.op == "placeholder" or _is_followed(node)):
            visited.add(node)
            stack += node.all_input_nodes
    return {node for node in visited if node.op == "placeholder"}


def _is_followed(node: Node) -> bool:
    """Whether a node is a plain call whose result may have a gradient."""
    return (
        node.op in ("call_function", "call_method")
        and (facts.is_einops(node) or not facts.is_opaque(node))
        and not products.is_product(node)
        and any(t.is_floating_point() for t in facts.tensors(node))
    )


def writers(graph: HostGraph, node: Node) -> list[Node]:
    """The calls that write into a node's value."""
    storages = facts.storages(node)
    return [m for m, changed in graph.mutators.items() if not storages.isdisjoint(changed)]


def crowded(graph: HostGraph, biases: Sequence[Node]) -> int:
    """How many elements of the gradients of `biases` are added to tables with many look-ups.

    In the model as it is, additions to one address run one after the other.
    """
    count = 0
    for node in lookup_calls(graph, biases):
        with contextlib.suppress(Refused):
            lookup = read_lookup(graph, node)
            if lookup is not None and lookup.crowded:
                count += shapes.size_hint(facts.tensors(node)[0].numel()) or 0
    return count


def read_lookup(graph: HostGraph, node: Node) -> Lookup | None:
    """A node read as a look-up in a learned table, or None if torch sums its gradient as well.

    Raises Refused if a look-up must stay as it is.
    """
    operands = [n for n in node.all_input_nodes if facts.tensors(n)]
    tables = [n for n in operands if facts.tensors(n)[0].is_floating_point()]
    state = graph.ambient[node]
    if len(facts.tensors(node)) != 1 or len(tables) != 1 or len(operands) < 2:
        return None
    if not state.grad or state.transforms or not _learns(node, tables[0]):
        return None
    if tables[0] not in graph.order:
        return None  # it was changed before
    size, count = (shapes.size_hint(facts.tensors(n)[0].numel()) for n in (tables[0], node))
    if size is None or count is None or not 0 < size <= count:
        return None  # a sum of few terms gains nothing
    places = _places(node, tables[0])
    if node in graph.mutators:
        raise refused("it writes into a tensor", node)
    is_crowded = look_up.copies(size, count) > 1
    if places is None or not (is_crowded or facts.tensors(node)[0].dtype in look_up.NARROW):
        return None
    return Lookup(node, tables[0], places, is_crowded)


def _learns(node: Node, table: Node) -> bool:
    """True if a table has a gradient, and a node copies elements of it."""
    copied = not facts.storages(node) & facts.storages(table)
    return facts.tensors(table)[0].requires_grad and copied and facts.is_plain(table)


def _places(node: Node, table: Node) -> Places | None:
    """The places that a call reads, or None if it is not a look-up.

    Raises Refused if `gdpa::look_up` would not have the gradient of the table.
    """
    places = LOOKUPS[facts.name(node)](node, facts.tensors(table)[0])
    if places is None or not all(map(_is_index, places.indices)):
        return None
    return places


def _is_index(argument: Any) -> bool:
    """Whether elements of an argument are places. Bools would choose elements instead."""
    if not isinstance(argument, Node) or not facts.is_plain(argument):
        return False
    return any(t.dtype in (torch.int32, torch.int64) for t in facts.tensors(argument))


def refused(reason: str, node: Node) -> Refused:
    return Refused(Code.TABLE_GRADIENT, reason, node)


def _subscript(node: Node, table: torch.Tensor) -> Places | None:
    """`table[i]`, `table[:, i, None, 2]`, `table[..., i, j]`.

    In ATen's index, None is a whole dim.
    """
    whole = facts.name(node) == "index"
    subscript: Any = node.args[1]
    entries = list(subscript) if whole or isinstance(subscript, tuple) else [subscript]
    widths = [_width(entry, whole) for entry in entries]
    at = [i for i, entry in enumerate(entries) if isinstance(entry, Node) and facts.tensors(entry)]
    if not at or None in widths:
        return None
    indices = tuple(entries[i] for i in at)
    others = [entry for entry in entries if entry not in indices]
    if len(indices) > 1 or not all(_is_whole(entry, whole) for entry in others):
        return Places(indices)
    rest = table.dim() - sum(w for w in widths if w and w > 0)
    before = [rest if width == _REST else width or 0 for width in widths[: at[0]]]
    return Places(indices, sum(before))


def _width(entry: Any, whole: bool) -> int | None:
    """How many dims of the table an entry of a subscript reads, or None for an entry of bools."""
    if entry is None:
        return int(whole)
    if entry is Ellipsis:
        return _REST
    if isinstance(entry, Node):
        return None if any(t.dtype in _CHOICES for t in facts.tensors(entry)) else 1
    return 1 if isinstance(entry, (slice, int)) and not isinstance(entry, bool) else None


def _is_whole(entry: Any, none: bool) -> bool:
    """True if an entry of a subscript keeps a dim as it is. none: `None` does."""
    return entry is Ellipsis or entry == slice(None) or (none and entry is None)


def _index_select(node: Node, table: torch.Tensor) -> Places | None:
    dim = facts.argument(node, 1, "dim")
    index = facts.argument(node, 2, "index")
    return Places((index,), dim % table.dim()) if table.dim() else None


def _gather(node: Node, table: torch.Tensor) -> Places | None:
    if facts.argument(node, 3, "sparse_grad"):
        raise refused("its gradient is sparse", node)
    index = facts.argument(node, 2, "index")
    return Places((index,), 0 if table.dim() == 1 else None) if table.dim() else None


def _take(node: Node, table: torch.Tensor) -> Places:
    return Places((facts.argument(node, 1, "index"),), 0, flat=True)


def _take_along_dim(node: Node, table: torch.Tensor) -> Places | None:
    return Places((facts.argument(node, 1, "indices"),)) if table.dim() else None


def _embedding(node: Node, table: torch.Tensor) -> Places:
    """`F.embedding`, or ATen's, which has the table first and no negative padding index."""
    argument = node.args[0] if node.args else None
    first = isinstance(argument, Node) and facts.tensors(argument)[0].is_floating_point()
    pads = facts.argument(node, 2, "padding_idx")
    if not isinstance(node.target, operators.OpOverload) and not first:
        if facts.argument(node, 3, "max_norm") is not None:
            raise refused("`max_norm` changes the rows that are looked up", node)
        pads = pads + table.shape[0] if pads is not None and pads < 0 else pads
    if facts.argument(node, 3 if first else 5, "scale_grad_by_freq"):
        raise refused("`scale_grad_by_freq` divides by how often a row is looked up", node)
    if facts.argument(node, 4 if first else 6, "sparse"):
        raise refused("its gradient is sparse", node)
    index = facts.argument(node, *((1, "indices") if first else (0, "input")))
    return Places((index,), 0, pads=None if pads is None or pads < 0 else pads)


# The reader of each call, by its short name.
LOOKUPS: Mapping[str, Callable[[Node, torch.Tensor], Places | None]] = {
    "getitem": _subscript,
    "index": _subscript,
    "index_select": _index_select,
    "gather": _gather,
    "embedding": _embedding,
    "take": _take,
    "take_along_dim": _take_along_dim,
}
