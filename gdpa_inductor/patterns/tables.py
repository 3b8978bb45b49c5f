"""Learned tables that a bias is looked up in: how its gradient is added up there.

A bias `table[index]` has an element for each score and its table a few hundred or thousand. So the
gradient of each element of a table sums thousands, or millions, of those of the bias. Two changes
of such a lookup keep every bit of the bias:

    a table in 16 bits is looked up through fp32, so that its gradient is added in fp32. Inductor
        adds in the table's own 16 bits, where of a few hundred like terms the next one rounds away,
        and on a GPU each addition is a loop of compare and swap;
    a table that is much looked at is looked up in copies of it, neighbours in different ones. All
        that is added to one address is added one after the other, and the copies are summed after:
        of 67 million elements in 129 buckets that is 0.2 ms on an H200 where it was 77.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from .._compat import fx, operators, shapes, subclasses
from .host import facts, functions
from .host.candidates import HostGraph
from .writing.recipe import Handle, Recipe
from .writing.writer import Writer, describe

aten = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)
# Measured on an H200: more copies gain nothing, fewer than these are not worth their index.
_MOST_COPIES, _FEWEST_COPIES = 2048, 16
_MOST_ELEMENTS = 1 << 20  # of all copies: they stay in the cache
_LEAST_SHARE = 4  # how much more elements are looked up than all copies have
# What a bias may have gone through since: nothing here depends on what these compute.
_PASSED = functions.POINTWISE | functions.CASTS | {f"{name}_" for name in functions.POINTWISE} | {
    "contiguous", "clone", "reshape", "flatten", "repeat", "iadd", "isub", "imul", "itruediv",
}  # fmt: skip

Place = tuple[Any, int] | None  # an index, and the dim of the table that it reads


def _among(entries: Any, whole: Callable[[Any], bool], new: Callable[[Any], bool]) -> Place:
    """The one index among entries that are whole dims, and new ones of size 1."""
    listed = list(entries) if isinstance(entries, (tuple, list)) else [entries]
    places = [i for i, entry in enumerate(listed) if isinstance(entry, Node)]
    if len(places) != 1 or not all(
        whole(entry) or new(entry) for i, entry in enumerate(listed) if i != places[0]
    ):
        return None
    return listed[places[0]], sum(map(whole, listed[: places[0]]))


def _subscripted(node: Node) -> Place:
    return _among(node.args[1], lambda x: x == slice(None), lambda x: x is None)


def _indexed(node: Node) -> Place:
    return _among(node.args[1], lambda x: x is None, lambda x: False)


def _selected(node: Node) -> Place:
    return facts.argument(node, 2, "index"), facts.argument(node, 1, "dim")


def _embedded(node: Node) -> Place:
    """The call by its name, or ATen's, which has the table first. Padding has no gradient."""
    weight_first = node.args and facts.tensors(node.args[0])[0].is_floating_point()  # type: ignore[arg-type]
    index = facts.argument(node, 1, "indices") if weight_first else facts.argument(node, 0, "input")
    pads = facts.argument(node, 2, "padding_idx") not in ((None, -1) if weight_first else (None,))
    scales = facts.argument(node, 3 if weight_first else 5, "scale_grad_by_freq")
    return None if pads or scales else (index, 0)


# Where a function looks up, None if it does what copies would change.
_LOOKUPS: Mapping[str, Callable[[Node], Place]] = {
    "getitem": _subscripted,
    "index": _indexed,
    "index_select": _selected,
    "gather": _selected,
    "embedding": _embedded,
    "take": lambda node: None,
    "take_along_dim": lambda node: None,
}


@dataclass(frozen=True)
class Lookup:
    """A call that looks elements of `table` up. index: the places along `dim` of the table, where
    it is worth `copies` of the table; else None.
    """

    node: Node
    table: Node
    index: Node | None = None
    dim: int = 0
    copies: int = 1


def relieve(graph: HostGraph, biases: Iterable[Node], writer: Writer) -> None:
    """Let the learned tables that `biases` come from be looked up so that gradients add up well."""
    for node in list(_lookups(graph, biases)):
        found = _lookup(graph, node)
        if found is None:  # it looks up in what was looked up, and went through fp32 with that
            continue
        (narrow,) = facts.tensors(node)
        recipe = Recipe(True, subclasses.fake_mode_of(narrow))
        changed = {found.table: recipe.leaf(found.table)}
        if narrow.dtype in _NARROW:
            changed[found.table] = recipe.cast(changed[found.table], torch.float32)
        if found.index is not None and _known(found.index, writer):
            changed[found.table] = _many(recipe, changed[found.table], found)
            changed[found.index] = _places(recipe, recipe.leaf(found.index), found)
        written = writer.write(recipe, node, node)
        for old, new in changed.items():
            if new in written:
                node.replace_input_with(old, written[new])
        if narrow.dtype in _NARROW:
            _narrowed(graph, node, narrow, recipe)


def _known(index: Node, writer: Writer) -> bool:
    """Whether its sizes can be written into the graph."""
    return all(writer.can_write(size) for size in facts.tensors(index)[0].shape)


def _many(recipe: Recipe, table: Handle, found: Lookup) -> Handle:
    """[..., T, ...] as [..., T · copies, ...]: copies of one element are neighbours, so that
    negative places keep their meaning.
    """
    before, after = table.value.shape[: found.dim + 1], table.value.shape[found.dim + 1 :]
    many = recipe.call(aten.unsqueeze.default, table, found.dim + 1)
    many = recipe.call(aten.expand.default, many, [*before, found.copies, *after])
    rows = [*before[:-1], before[-1] * found.copies, *after]
    return recipe.call(aten.reshape.default, many, rows)


def _places(recipe: Recipe, index: Handle, found: Lookup) -> Handle:
    """Where each place is in the copies. The backward keeps them, one for each element of the bias:
    in 32 bits, but for `gather`, which takes no such index.
    """
    size = facts.tensors(found.table)[0].shape[found.dim]
    count = recipe.call(aten.arange.default, index.value.numel(), device=index.value.device)
    count = recipe.call(aten.view.default, count, list(index.value.shape))
    copy = recipe.call(aten.remainder.Scalar, count, found.copies)
    index = recipe.call(aten.clamp.default, index, -size - 1, size)  # no wrong place gets right
    index = recipe.call(aten.add.Tensor, recipe.call(aten.mul.Scalar, index, found.copies), copy)
    return index if facts.name(found.node) == "gather" else recipe.cast(index, torch.int32)


def _narrowed(graph: HostGraph, node: Node, narrow: torch.Tensor, recipe: Recipe) -> None:
    """Give what is looked up in fp32 back in the dtype that it had."""
    with recipe.fake_mode, fx.without_guards(recipe.fake_mode), torch.enable_grad():
        wide = narrow.to(torch.float32)
    users = list(node.users)
    with graph.graph.inserting_after(node):
        result: Node = graph.graph.call_function(
            aten._to_copy.default, (node,), {"dtype": narrow.dtype}
        )
    for user in users:
        user.replace_input_with(node, result)
    describe(result, node, narrow)
    describe(node, node, wide)


def _lookups(graph: HostGraph, biases: Iterable[Node]) -> Iterator[Node]:
    """The lookups that biases come from by views, casts and point-wise functions."""
    stack, seen = list(biases), set()
    while stack:
        node = stack.pop()
        if node in seen or not node.op.startswith("call") or facts.is_opaque(node):
            continue
        seen.add(node)
        if _lookup(graph, node) is not None:
            yield node
        elif facts.is_view(node) or facts.name(node) in _PASSED:
            stack.extend(node.all_input_nodes)


def _lookup(graph: HostGraph, node: Node) -> Lookup | None:
    """A node as a lookup in a table that learns."""
    if facts.name(node) not in _LOOKUPS or len(facts.tensors(node)) != 1 or node in graph.mutators:
        return None
    if _is_sparse(node):
        return None
    given = [n for n in node.all_input_nodes if facts.tensors(n)]
    tables = [n for n in given if facts.tensors(n)[0].is_floating_point()]
    state = graph.ambient[node]
    if len(tables) != 1 or len(given) < 2 or not state.grad or state.transforms:
        return None
    held = facts.tensors(tables[0])[0]
    copied = not facts.storages(node) & facts.storages(tables[0])
    if not (held.requires_grad and copied and facts.is_plain(tables[0])):
        return None
    size, count = (shapes.size_hint(facts.tensors(n)[0].numel()) for n in (tables[0], node))
    if size is None or count is None or not 0 < size <= count:
        return None  # a copy of the whole table is for those that are much looked at
    return _in_copies(node, tables[0], _copies(size, count)) or Lookup(node, tables[0])


def _is_sparse(node: Node) -> bool:
    """Whether it asks for a sparse gradient, which no copy of the table may have."""
    if facts.name(node) == "gather":
        return bool(facts.argument(node, 3, "sparse_grad"))
    position = 4 if isinstance(node.target, operators.OpOverload) else 6
    return facts.name(node) == "embedding" and bool(facts.argument(node, position, "sparse"))


def _in_copies(node: Node, table: Node, copies: int) -> Lookup | None:
    """The lookup in so many copies, where it is known in which dim it is."""
    index, dim = _LOOKUPS[facts.name(node)](node) or (None, None)
    shape = facts.tensors(table)[0].shape
    if copies == 1 or not isinstance(index, Node) or not isinstance(dim, int) or not shape:
        return None
    if not isinstance(shape[dim], int) or not _counts(index) or not facts.is_plain(index):
        return None
    return Lookup(node, table, index, dim % len(shape), copies)


def _counts(index: Node) -> bool:
    """Its elements are places: truth values would be a choice."""
    return any(t.dtype in (torch.int32, torch.int64) for t in facts.tensors(index))


def _copies(size: int, count: int) -> int:
    """How many copies a table of `size` elements gets in which `count` are looked up."""
    most = min(_MOST_COPIES, _MOST_ELEMENTS // size, count // (_LEAST_SHARE * size))
    return 1 if most < _FEWEST_COPIES else 1 << (most.bit_length() - 1)
