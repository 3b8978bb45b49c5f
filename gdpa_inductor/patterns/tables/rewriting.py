"""Replace look-ups in learned tables by `gdpa::look_up`, whose gradient is summed fast and exactly.

A bias `table[index]` has an element for each score, and its table has a few hundred or thousand. So
the gradient of each table element sums thousands or millions of gradients of the bias. The operator
keeps every bit of the bias, and gives compiled code the choice how to sum (`lowerings/tables.py`).

A call that reads at one index along one dim becomes `look_up(table, index, dim)`. Any other call is
run on a table of places instead, 0, 1, 2, ..., in the shape of the learned table. The result says
which elements of the flattened table it reads. Inductor computes it from the indices alone.

The backward keeps the index in 32 bits. A padding row is detached before it is read.

Most biases are not made so: the score program looks them up (`reading/lookups.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Node

from ..._compat import fx, subclasses
from ...rejection import Rejection
from ..host import facts, places
from ..host.candidates import HostGraph
from ..host.sizes import Size, same
from ..reading.shadow import execute
from ..result import Refused
from ..writing.recipe import Handle, Recipe
from ..writing.writer import Writer, describe
from .lookups import Lookup, lookup_calls, read_lookup, refused

aten = torch.ops.aten


def replace_lookups(
    graph: HostGraph, regions: Sequence[Sequence[Node]], writer: Writer
) -> list[list[Rejection]]:
    """Change the look-ups that biases come from.

    regions: The biases of each region. Returns for each region why tables with many look-ups stay
    as they are.
    """
    calls = [lookup_calls(graph, biases) for biases in regions]
    distinct = graph.in_order({node for nodes in calls for node in nodes})
    # The latest first: a look-up in a looked-up table comes before that of the table.
    notes = {node: _rewrite_lookup(graph, node, writer) for node in reversed(distinct)}
    return [[x for node in nodes if (x := notes[node]) is not None] for nodes in calls]


def _rewrite_lookup(graph: HostGraph, node: Node, writer: Writer) -> Rejection | None:
    try:
        lookup = read_lookup(graph, node)
        if lookup is not None:
            _write(graph, lookup, writer)
    except Refused as refusal:
        reason = f"{places.describe(node)}: {refusal.reason}"
        return Rejection(refusal.code, reason, places.location(node), node.name)
    return None


def _write(graph: HostGraph, lookup: Lookup, writer: Writer) -> None:
    node, places = lookup.node, lookup.places
    _check_result(lookup, writer)
    if places.dim is None:
        index = _flat_places(graph, lookup, writer)
    else:
        index = _narrow(lookup, places.indices[0], writer)
    recipe = _recipe(lookup)
    result = _look_up(recipe, lookup, recipe.leaf(index))
    new = writer.write(recipe, node, node)[result]
    node.replace_all_uses_with(new)
    writer.replaced[node] = new
    graph.graph.erase_node(node)


def _recipe(lookup: Lookup) -> Recipe:
    return Recipe(True, subclasses.fake_mode_of(facts.tensors(lookup.node)[0]))


def _look_up(recipe: Recipe, lookup: Lookup, index: Handle) -> Handle:
    table, places = recipe.leaf(lookup.table), lookup.places
    if places.pads is not None:
        table = _without_row(recipe, table, places.pads)
    if places.flat or places.dim is None:
        table = recipe.call(aten.reshape.default, table, [-1])
    return recipe.call(torch.ops.gdpa.look_up.default, table, index, places.dim or 0)


def _without_row(recipe: Recipe, table: Handle, pads: Size) -> Handle:
    size = table.value.shape[0]
    row = recipe.call(aten.arange.default, size, device=table.value.device)
    pad = recipe.call(aten.eq.Scalar, row, pads)
    pad = recipe.call(aten.view.default, pad, [size, *[1] * (table.value.dim() - 1)])
    constant = recipe.call(aten.detach.default, table)
    return recipe.call(aten.where.self, pad, constant, table)


def _check_result(lookup: Lookup, writer: Writer) -> None:
    """Run the changed call on fakes.

    Raises Refused if sizes or strides of its result differ, or if a size cannot be computed.
    """
    recipe, node = _recipe(lookup), lookup.node
    if lookup.places.dim is None:
        index = Handle(_executed(recipe, lookup, _numbers(recipe, lookup)))
    else:
        index = recipe.leaf(lookup.places.indices[0])
    old, new = facts.tensors(node)[0], _look_up(recipe, lookup, index).value
    if not all(map(writer.can_write, recipe.sizes())):
        raise refused("a size cannot be computed from the graph's inputs", node)
    layouts = [(*x.shape, *x.stride()) for x in (old, new)]
    if old.dim() != new.dim() or not all(map(same, *layouts)):
        raise refused("looked up on its own, its result would lie in another order", node)


def _numbers(recipe: Recipe, lookup: Lookup) -> Handle:
    table = facts.tensors(lookup.table)[0]
    numbers = recipe.call(aten.arange.default, math.prod(table.shape), device=table.device)
    return recipe.call(aten.view.default, numbers, list(table.shape))


def _executed(recipe: Recipe, lookup: Lookup, numbers: Handle) -> torch.Tensor:
    values = {n: facts.value(n) for n in lookup.node.all_input_nodes}
    with recipe.fake_mode, fx.without_guards(recipe.fake_mode):
        result: torch.Tensor = execute(lookup.node, values | {lookup.table: numbers.value})
    return result


def _flat_places(graph: HostGraph, lookup: Lookup, writer: Writer) -> Node:
    """The places in the flattened table that the call reads, in int32."""
    recipe, node = _recipe(lookup), lookup.node
    numbers = _numbers(recipe, lookup)
    written = writer.write(recipe, node, node)
    swap = {lookup.table: written[numbers]}
    with graph.graph.inserting_before(node):
        read: Node = graph.graph.node_copy(node, lambda n: swap.get(n, n))
    describe(read, node, _executed(recipe, lookup, numbers))
    narrow = _recipe(lookup)
    places = narrow.cast(narrow.leaf(read), torch.int32)
    return writer.write(narrow, node, node)[places]


def _narrow(lookup: Lookup, index: Node, writer: Writer) -> Node:
    """The index in int32, since it is stored for the backward. A wrong place stays wrong."""
    recipe, table, places = _recipe(lookup), facts.tensors(lookup.table)[0], lookup.places
    size = math.prod(table.shape) if places.flat else table.shape[places.dim or 0]
    narrowed = recipe.call(aten.clamp.default, recipe.leaf(index), -size - 1, size)
    narrowed = recipe.cast(narrowed, torch.int32)
    return writer.write(recipe, lookup.node, lookup.node)[narrowed]
