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
from ...ops import ATTENTION, FORWARDS
from ...rejection import Code
from ..host import facts, products
from ..host.candidates import HostGraph
from ..host.sizes import Size
from ..result import Refused

_CHOICES = (torch.bool, torch.uint8)  # such an index reads no element twice, so nothing is summed


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

    def sources(node: Node) -> list[Node]:
        if not _is_followed(node):
            return []
        written = graph.written(facts.storages(node), -1)
        return [*node.all_input_nodes, *written, *(n for w in written for n in w.all_input_nodes)]

    followed = filter(_is_followed, facts.walk(biases, sources))
    calls = [n for n in followed if facts.name(n) in LOOKUPS and n in graph.order]
    return graph.in_order(calls)[::-1]


def bias_sources(gm: GraphModule) -> list[Node]:
    """The nodes that a graph passes to bodies, and from which biases are made there."""
    sources: dict[Node, None] = {}
    for call, body in facts.bodies(gm):
        inputs = _bias_inputs(body)
        sources |= dict.fromkeys(x for inner, x in facts.body_inputs(call, body) if inner in inputs)
    return list(sources)


def _bias_inputs(body: GraphModule) -> set[Node]:
    biases = bias_sources(body)
    for node in body.graph.nodes:
        if any(node.target is forward.op for forward in FORWARDS):
            biases += facts.flat_nodes(ATTENTION.bind(*node.args, **node.kwargs).operands.aux)
    behind = facts.walk(biases, lambda n: n.all_input_nodes if _is_followed(n) else ())
    return {node for node in behind if node.op == "placeholder"}


def _is_followed(node: Node) -> bool:
    """Whether a node is a plain call whose result may have a gradient."""
    return (
        facts.is_call(node)
        and (facts.is_einops(node) or not facts.is_opaque(node))
        and not products.is_product(node)
        and any(t.is_floating_point() for t in facts.tensors(node))
    )


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
    if not state.grad or state.transforms:
        return None
    (table,) = tables
    copies = not facts.storages(node) & facts.storages(table)
    if not facts.tensors(table)[0].requires_grad or not copies or not facts.is_plain(table):
        return None
    if table not in graph.order:
        return None  # it was changed before
    size, count = (shapes.size_hint(facts.tensors(n)[0].numel()) for n in (table, node))
    if size is None or count is None or not 0 < size <= count:
        return None  # a sum of few terms gains nothing
    places = LOOKUPS[facts.name(node)](node, facts.tensors(table)[0])
    if node in graph.mutators:
        raise refused("it writes into a tensor", node)
    if places is None or not all(map(_is_index, places.indices)):
        return None
    is_crowded = look_up.copies(size, count) > 1
    if not is_crowded and facts.tensors(node)[0].dtype not in look_up.NARROW:
        return None
    return Lookup(node, table, places, is_crowded)


def _is_index(argument: Any) -> bool:
    # Bools would choose elements instead.
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
    at = [i for i, entry in enumerate(entries) if isinstance(entry, Node) and facts.tensors(entry)]
    if not at or any(map(_chooses, entries)):
        return None
    indices = tuple(entries[i] for i in at)
    others = [entry for entry in entries if entry not in indices]
    if len(indices) > 1 or not all(_is_whole(entry, whole) for entry in others):
        return Places(indices)
    # An ellipsis before the index stands for all dims that no other entry reads.
    rest = table.dim() - len(entries) if Ellipsis in entries[: at[0]] else 0
    return Places(indices, at[0] + rest)


def _chooses(entry: Any) -> bool:
    """Whether an entry of a subscript chooses elements, as bools do."""
    if isinstance(entry, Node):
        return any(t.dtype in _CHOICES for t in facts.tensors(entry))
    if entry is None or entry is Ellipsis:
        return False
    return isinstance(entry, bool) or not isinstance(entry, (slice, int))


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
    "take": lambda node, table: Places((facts.argument(node, 1, "index"),), 0, flat=True),
    "take_along_dim": lambda node, table: (
        Places((facts.argument(node, 1, "indices"),)) if table.dim() else None
    ),
}
