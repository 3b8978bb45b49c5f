"""Change a look-up in a learned table, so that the gradient of the table is summed fast and
exactly.

A bias `table[index]` has an element for each score, and its table has a few hundred or thousand. So
the gradient of each table element sums thousands or millions of gradients of the bias. Two changes
of the look-up help. Both keep every bit of the bias:

- A table in 16 bits is looked up through fp32, so that its gradient is summed in fp32. Inductor
  would sum in 16 bits. There, after a few hundred similar terms, the next one is rounded away. On a
  GPU each addition would also be a loop of compare and swap.
- A table with many look-ups is replaced by copies of it, and neighbours read different copies.
  Additions to one address run one after the other, so they spread over the copies. The copies are
  summed at the end. For 67 million elements in 129 buckets that takes 0.2 ms on an H200; it was 77.

With copies, the backward computes the index again (`again`). A padding row is detached before it is
copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from ..._compat import fx, shapes, subclasses
from ...rejection import Rejection
from ..host import facts, places
from ..host.candidates import HostGraph
from ..host.sizes import Size, same
from ..reading.shadow import execute
from ..result import Refused
from ..writing.recipe import Handle, Recipe
from ..writing.writer import Writer, describe
from . import calls
from .again import again, is_given, mark
from .behind import latest_first, lookups
from .calls import Places

aten = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)
# Measured on an H200: more copies gain nothing, and fewer are not worth their index.
_MOST_COPIES, _FEWEST_COPIES = 2048, 16
_MOST_ELEMENTS = 1 << 20  # of all copies together, so that they stay in the cache
_LEAST_SHARE = 4  # at least so many times as many elements are looked up as all copies have


@dataclass(frozen=True)
class Lookup:
    """A call that looks up elements of `table`.

    copies: How many copies of the table to make. places: What is read, if copies are worth it.
    """

    node: Node
    table: Node
    places: Places | None
    copies: int

    @property
    def is_narrow(self) -> bool:
        return facts.tensors(self.node)[0].dtype in _NARROW


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
            if lookup is not None and lookup.places is not None:
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
    """Change a look-up. Raises Refused if the call on the changed table would differ."""
    recipe = Recipe(True, subclasses.fake_mode_of(facts.tensors(found.node)[0]))
    changed = _changed(recipe, found)
    if not all(map(writer.can_write, recipe.sizes())):
        raise calls.refused("a size cannot be computed from the graph's inputs", found.node)
    value = _tried(recipe, found, changed)
    written = writer.write(recipe, found.node, found.node)
    for old, new in changed.items():
        if new in written:
            found.node.replace_input_with(old, written[new])
    if found.places is not None:
        _make_again(graph, found, [written[made] for made in recipe.calls])
        if found.places.pads is not None:
            calls.without_padding(found.node)
    if found.is_narrow:
        _narrowed(graph, found.node, value)


def _changed(recipe: Recipe, found: Lookup) -> dict[Node, Handle]:
    """The new arguments of the call: for its table, and for its index."""
    table = recipe.leaf(found.table)
    table = recipe.cast(table, torch.float32) if found.is_narrow else table
    if found.places is None:
        return {found.table: table}
    size = found.places.size(table.value)
    if found.places.pads is not None:
        table = _padded(recipe, table, size, found.places.pads)
    index = _places(recipe, found.places, size, found.copies)
    return {found.table: _many(recipe, table, found), found.places.index: index}


def _padded(recipe: Recipe, table: Handle, size: Size, pads: Size) -> Handle:
    """The table [T, ...], with the row at `pads` detached."""
    row = recipe.call(aten.arange.default, size, device=table.value.device)
    pad = recipe.call(aten.eq.Scalar, row, pads)
    pad = recipe.call(aten.view.default, pad, [size, *[1] * (table.value.dim() - 1)])
    held = recipe.call(aten.detach.default, table)
    return recipe.call(aten.where.self, pad, held, table)


def _many(recipe: Recipe, table: Handle, found: Lookup) -> Handle:
    """The table [..., T, ...] as [..., T · copies, ...].

    Copies of an element are neighbours, so that negative places keep their meaning.
    """
    assert found.places is not None
    dim = found.places.dim
    if dim is None:
        table, dim = recipe.call(aten.reshape.default, table, [-1]), 0
    before, after = table.value.shape[: dim + 1], table.value.shape[dim + 1 :]
    many = recipe.call(aten.unsqueeze.default, table, dim + 1)
    many = recipe.call(aten.expand.default, many, [*before, found.copies, *after])
    rows = [*before[:-1], before[-1] * found.copies, *after]
    return recipe.call(aten.reshape.default, many, rows)


def _places(recipe: Recipe, given: Places, size: Size, copies: int) -> Handle:
    """The index into the copies: int32 if the call takes it, else int64."""
    index = recipe.leaf(given.index)
    if given.others:
        shapes_of = [facts.tensors(n)[0].shape for n in given.indices]
        index = recipe.call(aten.expand.default, index, list(torch.broadcast_shapes(*shapes_of)))
    count = recipe.call(aten.arange.default, index.value.numel(), device=index.value.device)
    count = recipe.call(aten.view.default, count, list(index.value.shape))
    copy = recipe.call(aten.remainder.Scalar, count, copies)
    if given.wraps:
        index = recipe.call(aten.remainder.Scalar, index, size)
    else:  # a wrong place has to stay wrong
        index = recipe.call(aten.clamp.default, index, -size - 1, size)
    index = recipe.call(aten.add.Tensor, recipe.call(aten.mul.Scalar, index, copies), copy)
    return recipe.cast(index, torch.int64 if given.long else torch.int32)


def _tried(recipe: Recipe, found: Lookup, changed: dict[Node, Handle]) -> torch.Tensor:
    """The value of the changed call, on fakes.

    Raises Refused if its sizes or strides differ from the original.
    """
    old, node = facts.tensors(found.node)[0], found.node
    given = {n: facts.value(n) for n in node.all_input_nodes}
    given |= {n: handle.value for n, handle in changed.items()}
    with recipe.fake_mode, fx.without_guards(recipe.fake_mode), torch.enable_grad():
        new: torch.Tensor = execute(node, given)
    pairs = zip((*new.shape, *new.stride()), (*old.shape, *old.stride()), strict=True)
    if not all(same(one, other) for one, other in pairs):
        raise calls.refused(
            "looked up in copies, its result would be laid out in another order", node
        )
    return new


def _make_again(graph: HostGraph, found: Lookup, written: list[Node]) -> None:
    """Have the backward compute the index again."""
    assert found.places is not None
    remade = {index: again(graph, index) for index in found.places.indices}
    for index, made in remade.items():
        for node in (*written, found.node):
            node.replace_input_with(index, made)
    if remade[found.places.index] is not found.places.index or is_given(found.places.index):
        mark(n for n in written if not facts.tensors(n)[0].is_floating_point())


def _narrowed(graph: HostGraph, node: Node, wide: torch.Tensor) -> None:
    """Cast a look-up in fp32 back to the dtype that it had."""
    (narrow,) = facts.tensors(node)
    users = list(node.users)
    with graph.graph.inserting_after(node):
        result: Node = graph.graph.call_function(
            aten._to_copy.default, (node,), {"dtype": narrow.dtype}
        )
    for user in users:
        user.replace_input_with(node, result)
    describe(result, node, narrow)
    describe(node, node, wide)


def _lookup(graph: HostGraph, node: Node) -> Lookup | None:
    """A node read as a look-up in a learned table with many look-ups, or None.

    Raises Refused if such a look-up must stay as it is.
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
        return None  # a copy of the whole table pays only for many look-ups
    found, copies = calls.of(node, tables[0]), _copies(size, count)
    if node in graph.mutators:
        raise calls.refused("it writes into a tensor", node)
    many = Lookup(node, tables[0], found if copies > 1 else None, copies)
    return many if many.places is not None or many.is_narrow else None


def _learns(node: Node, table: Node) -> bool:
    """Whether a table has a gradient, and a node copies elements of it."""
    copied = not facts.storages(node) & facts.storages(table)
    return facts.tensors(table)[0].requires_grad and copied and facts.is_plain(table)


def _copies(size: int, count: int) -> int:
    """How many copies a table of `size` elements gets, if `count` elements are looked up."""
    most = min(_MOST_COPIES, _MOST_ELEMENTS // size, count // (_LEAST_SHARE * size))
    return 1 if most < _FEWEST_COPIES else 1 << (most.bit_length() - 1)
