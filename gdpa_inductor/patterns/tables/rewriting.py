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
from typing import Any

import torch
from torch.fx import Node

from ..._compat import subclasses
from ...rejection import Rejection
from ..host import facts, places
from ..host.candidates import HostGraph
from ..host.sizes import Size, same
from ..result import Refused
from ..writing.recipe import Handle, Recipe
from ..writing.writer import Writer
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
    """Raises Refused if sizes or strides of the result would differ, or if a size cannot be
    computed.
    """
    node = lookup.node
    old = facts.tensors(node)[0]
    recipe = Recipe(True, subclasses.fake_mode_of(old))
    result = _look_up(recipe, lookup)
    if not all(map(writer.can_write, recipe.sizes())):
        raise refused("a size cannot be computed from the graph's inputs", node)
    layouts = [(*x.shape, *x.stride()) for x in (old, result.value)]
    if old.dim() != result.value.dim() or not all(map(same, *layouts)):
        raise refused("looked up on its own, its result would lie in another order", node)
    new = writer.write(recipe.calls, node, node)[result]
    node.replace_all_uses_with(new)
    writer.replaced[node] = new
    graph.graph.erase_node(node)


def _look_up(recipe: Recipe, lookup: Lookup) -> Handle:
    table, places = recipe.leaf(lookup.table), lookup.places
    index = _flat_places(recipe, lookup) if places.dim is None else _narrow(recipe, lookup)
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


def _flat_places(recipe: Recipe, lookup: Lookup) -> Handle:
    """The places in the flattened table that the call reads, in int32."""
    node, table = lookup.node, facts.tensors(lookup.table)[0]
    numbers = recipe.call(aten.arange.default, math.prod(table.shape), device=table.device)
    numbers = recipe.call(aten.view.default, numbers, list(table.shape))
    given: Any = lambda n: numbers if n is lookup.table else Handle(facts.value(n), n)
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), given)
    target: Any = node.target
    return recipe.cast(recipe.call(target, *args, **kwargs), torch.int32)


def _narrow(recipe: Recipe, lookup: Lookup) -> Handle:
    """The index in int32, since it is stored for the backward. A wrong place stays wrong."""
    table, places = facts.tensors(lookup.table)[0], lookup.places
    size = math.prod(table.shape) if places.flat else table.shape[places.dim or 0]
    index = recipe.leaf(places.indices[0])
    return recipe.cast(recipe.call(aten.clamp.default, index, -size - 1, size), torch.int32)
