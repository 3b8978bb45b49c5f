"""Replace look-ups in learned tables by `gdpa::look_up`, whose gradient is summed fast and exactly.

A bias `table[index]` has an element for each score, and its table has a few hundred or thousand. So
the gradient of each table element sums thousands or millions of gradients of the bias. The operator
keeps every bit of the bias, and gives compiled code the choice how to sum (`lowerings/tables.py`).

A call that reads at one index along one dim becomes `look_up(table, index, dim)`. Any other call is
run on a table of places instead, 0, 1, 2, ..., in the shape of the learned table. The result says
which elements of the flattened table it reads. Inductor computes it from the indices alone.

The backward computes the index again (`again`). A padding row is detached before it is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from ... import look_up
from ..._compat import fx, shapes, subclasses
from ...rejection import Rejection
from ..host import facts, places
from ..host.candidates import HostGraph
from ..host.sizes import Size, product, same
from ..reading.shadow import execute
from ..result import Refused
from ..writing.recipe import Handle, Recipe
from ..writing.writer import Writer, describe
from . import calls
from .again import again, is_given, mark
from .behind import latest_first, lookups
from .calls import Places

aten = torch.ops.aten


@dataclass(frozen=True)
class Lookup:
    """A call that looks up elements of `table`.

    crowded: So many elements are looked up that each one of the table is read many times.
    """

    node: Node
    table: Node
    places: Places
    crowded: bool


def relieve(
    graph: HostGraph, regions: Sequence[Sequence[Node]], writer: Writer
) -> list[list[Rejection]]:
    """Change the look-ups that biases come from.

    regions: The biases of each region. Returns for each region why tables with many look-ups stay
    as they are.
    """
    behind = [lookups(graph, biases) for biases in regions]
    every = {node for nodes in behind for node in nodes}
    notes = {node: _relieved(graph, node, writer) for node in latest_first(graph, every)}
    return [[x for node in nodes if (x := notes[node]) is not None] for nodes in behind]


def crowded(graph: HostGraph, biases: Sequence[Node]) -> int:
    """How many elements of the gradients of `biases` are added to tables with many look-ups.

    In the model as it is, additions to one address run one after the other.
    """
    found = 0
    for node in lookups(graph, biases):
        with contextlib.suppress(Refused):
            lookup = _lookup(graph, node)
            if lookup is not None and lookup.crowded:
                found += shapes.size_hint(facts.tensors(node)[0].numel()) or 0
    return found


def _relieved(graph: HostGraph, node: Node, writer: Writer) -> Rejection | None:
    """Change one call, or say why not."""
    try:
        found = _lookup(graph, node)
        if found is not None:
            _change(graph, found, writer)
    except Refused as refusal:
        reason = f"{places.describe(node)}: {refusal.reason}"
        return Rejection(refusal.code, reason, places.location(node), node.name)
    return None


def _change(graph: HostGraph, found: Lookup, writer: Writer) -> None:
    """Make a call one of `gdpa::look_up`. Raises Refused if its result would lie differently."""
    node, places = found.node, found.places
    _try(found, writer)
    indices = {index: again(graph, index) for index in places.indices}
    repeats = any(made is not old or is_given(old) for old, made in indices.items())
    if places.dim is None:
        index = _flat_places(graph, found, indices, writer, repeats)
    else:
        (index,) = indices.values()
        index = index if repeats else _narrow(found, index, writer)
    recipe = _recipe(found)
    read = recipe.leaf(index)
    made = recipe.call(torch.ops.gdpa.look_up.default, _table(recipe, found), read, places.dim or 0)
    new = writer.write(recipe, node, node)[made]
    node.replace_all_uses_with(new)
    writer.replaced[node] = new
    graph.graph.erase_node(node)


def _recipe(found: Lookup) -> Recipe:
    return Recipe(True, subclasses.fake_mode_of(facts.tensors(found.node)[0]))


def _table(recipe: Recipe, found: Lookup) -> Handle:
    """The table that `gdpa::look_up` gets."""
    table, places = recipe.leaf(found.table), found.places
    if places.pads is not None:
        table = _padded(recipe, table, places.pads)
    flat = places.flat or places.dim is None
    return recipe.call(aten.reshape.default, table, [-1]) if flat else table


def _padded(recipe: Recipe, table: Handle, pads: Size) -> Handle:
    """The table [T, ...], with the row at `pads` detached."""
    size = table.value.shape[0]
    row = recipe.call(aten.arange.default, size, device=table.value.device)
    pad = recipe.call(aten.eq.Scalar, row, pads)
    pad = recipe.call(aten.view.default, pad, [size, *[1] * (table.value.dim() - 1)])
    held = recipe.call(aten.detach.default, table)
    return recipe.call(aten.where.self, pad, held, table)


def _try(found: Lookup, writer: Writer) -> None:
    """Run the changed call on fakes.

    Raises Refused if sizes or strides of its result differ, or if a size cannot be computed.
    """
    recipe, node = _recipe(found), found.node
    table = _table(recipe, found)
    if found.places.dim is None:
        with recipe.fake_mode, fx.without_guards(recipe.fake_mode):
            index = Handle(_executed(found, _numbers(recipe, found).value))
    else:
        index = recipe.leaf(found.places.indices[0])
    made = recipe.call(torch.ops.gdpa.look_up.default, table, index, found.places.dim or 0)
    if not all(map(writer.can_write, recipe.sizes())):
        raise calls.refused("a size cannot be computed from the graph's inputs", node)
    old, new = facts.tensors(node)[0], made.value
    lies = [(*x.shape, *x.stride()) for x in (old, new)]
    if old.dim() != new.dim() or not all(map(same, *lies)):
        raise calls.refused("looked up on its own, its result would lie in another order", node)


def _numbers(recipe: Recipe, found: Lookup) -> Handle:
    """The place of each element of the table, in the table's shape."""
    table = facts.tensors(found.table)[0]
    numbers = recipe.call(aten.arange.default, product(table.shape), device=table.device)
    return recipe.call(aten.view.default, numbers, list(table.shape))


def _executed(found: Lookup, numbers: torch.Tensor) -> torch.Tensor:
    """The result of the call, on fakes, with `numbers` in place of the table."""
    given = {n: facts.value(n) for n in found.node.all_input_nodes}
    made: torch.Tensor = execute(found.node, given | {found.table: numbers})
    return made


def _flat_places(
    graph: HostGraph, found: Lookup, indices: dict[Node, Node], writer: Writer, repeats: bool
) -> Node:
    """The places in the flattened table that the call reads, in int32.

    indices: What to read for each index. repeats: The backward is to compute the places again.
    """
    recipe, node = _recipe(found), found.node
    numbers = _numbers(recipe, found)
    written = writer.write(recipe, node, node)
    swap = {**indices, found.table: written[numbers]}
    with graph.graph.inserting_before(node):
        read: Node = graph.graph.node_copy(node, lambda n: swap.get(n, n))
    with recipe.fake_mode, fx.without_guards(recipe.fake_mode):
        describe(read, node, _executed(found, numbers.value))
    narrow = _recipe(found)
    places = narrow.cast(narrow.leaf(read), torch.int32)
    cast = writer.write(narrow, node, node)
    if repeats:
        mark([*written.values(), read, *cast.values()])
    return cast[places]


def _narrow(found: Lookup, index: Node, writer: Writer) -> Node:
    """The index in int32, since it is stored for the backward. A wrong place stays wrong."""
    recipe = _recipe(found)
    size = _size(found)
    places = recipe.call(aten.clamp.default, recipe.leaf(index), -size - 1, size)
    places = recipe.cast(places, torch.int32)
    return writer.write(recipe, found.node, found.node)[places]


def _size(found: Lookup) -> Size:
    """How many places the index of a direct call counts."""
    table, places = facts.tensors(found.table)[0], found.places
    return product(table.shape) if places.flat else table.shape[places.dim or 0]


def _lookup(graph: HostGraph, node: Node) -> Lookup | None:
    """A node read as a look-up in a learned table, or None if torch sums its gradient as well.

    Raises Refused if a look-up must stay as it is.
    """
    given = [n for n in node.all_input_nodes if facts.tensors(n)]
    tables = [n for n in given if facts.tensors(n)[0].is_floating_point()]
    state = graph.ambient[node]
    if len(facts.tensors(node)) != 1 or len(tables) != 1 or len(given) < 2:
        return None
    if not state.grad or state.transforms or not _learns(node, tables[0]):
        return None
    if tables[0] not in graph.order:
        return None  # it was changed before
    size, count = (shapes.size_hint(facts.tensors(n)[0].numel()) for n in (tables[0], node))
    if size is None or count is None or not 0 < size <= count:
        return None  # a sum of few terms gains nothing
    places = calls.of(node, tables[0])
    if node in graph.mutators:
        raise calls.refused("it writes into a tensor", node)
    crowded = look_up.copies(size, count) > 1
    if places is None or not (crowded or facts.tensors(node)[0].dtype in look_up.NARROW):
        return None
    return Lookup(node, tables[0], places, crowded)


def _learns(node: Node, table: Node) -> bool:
    """True if a table has a gradient, and a node copies elements of it."""
    copied = not facts.storages(node) & facts.storages(table)
    return facts.tensors(table)[0].requires_grad and copied and facts.is_plain(table)
