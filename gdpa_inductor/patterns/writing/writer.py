"""Put the calls of recipes into a graph.

Symbolic sizes become nodes that compute them from sizes in the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from ..._compat import fx, shapes, subclasses
from ..host import facts, functions
from ..host.candidates import HostGraph
from ..host.sizes import Size
from .recipe import Handle

aten = torch.ops.aten

# What `node.meta` has about the user's source.
_SOURCE = (
    "stack_trace", "nn_module_stack", "source_fn_stack", "custom", "fwd_source_fn_stack",
    "fwd_nn_module_stack",
)  # fmt: skip


class Writer:
    def __init__(self, graph: HostGraph) -> None:
        self.host = graph
        self.replaced: dict[Node, Node] = {}
        self.erased: set[Node] = set()

    def write(
        self,
        calls: Sequence[Handle],
        before: Node,
        like: Node,
        known: Mapping[Handle, Node] = MappingProxyType({}),
    ) -> dict[Handle, Node]:
        """Insert calls before a node. They get the source location of `like`.

        known: The nodes of earlier calls. Returns these and the new ones.
        """
        written, graph = dict(known), self.host.graph
        for call in calls:
            assert call.target is not None
            with graph.inserting_before(call.dropout or before):
                given = call.args, call.options
                args, kwargs = map_aggregate(given, lambda x: self._argument(x, written, like))
                op = "call_method" if isinstance(call.target, str) else "call_function"
                node = graph.create_node(op, call.target, args, kwargs)
                describe(node, like, call.value)
                written[call] = node
        return written

    def _argument(self, argument: Any, written: dict[Handle, Node], like: Node) -> Any:
        if isinstance(argument, Handle):
            node = argument.node
            return written[argument] if node is None else self.current(node)
        return self.size(argument, like) if isinstance(argument, torch.SymInt) else argument

    def current(self, node: Node) -> Node:
        """The current node for a node of the analysis, which may have been replaced since."""
        while node in self.replaced:
            node = self.replaced[node]
        return node

    def size(self, size: Size, like: Node) -> Any:
        """A node that computes a symbolic size, at the insertion point."""
        if _is_number(size):
            return int(size)
        expression = shapes.expression_of(size)
        needed = {symbol: self._symbol(symbol, like) for symbol in expression.free_symbols}
        if expression.is_Symbol:
            return needed[expression]
        node = fx.write_symbolic(expression, needed, self.host.graph)
        _evaluate(node, like)
        return node

    def replace_size(self, node: Node, removed: set[Node]) -> list[Node]:
        """Let users of a node that reads a shape use the sizes themselves. Returns unused nodes.

        removed: Users that are removed anyway.
        """
        value = facts.value(node)
        several = isinstance(value, (tuple, list))
        unused = [node]
        for user in [n for n in node.users if n not in removed]:
            with self.host.graph.inserting_before(node):
                size = self.size(value[user.args[1]] if several else value, node)
            if several:
                _replace_uses(user, list(user.users), size)
                unused.append(user)
            else:
                _replace_uses(node, [user], size)
        return unused

    def can_write(self, size: Size, before: Node | None = None) -> bool:
        """Whether `size` can be computed from the graph's inputs, or from nodes before another."""
        if _is_number(size):
            return True
        symbols, order = shapes.expression_of(size).free_symbols, self.host.order
        if not symbols <= self._symbols.keys():
            return False
        nodes = [self._symbols[symbol][0] for symbol in symbols]
        return before is None or all(order[node] < order[before] for node in nodes)

    def _symbol(self, symbol: Any, like: Node) -> Node:
        node, dim = self._symbols[symbol]
        if dim is None:
            return node
        if facts.tensors(node)[0].is_nested:
            nested, node = node, self.host.graph.call_method("values", (node,))
            # The sizes of a nested tensor are those of its values and offsets: its own are symbols
            # of no graph input.
            describe(node, like, subclasses.values_of(facts.tensors(nested)[0]))
        size = self.host.graph.call_function(aten.sym_size.int, (node, dim))
        describe(size, like, facts.tensors(node)[0].shape[dim])
        return size

    @functools.cached_property
    def _symbols(self) -> dict[Any, tuple[Node, int | None]]:
        """The place of each symbol: a node that holds it, or a dim of an input.

        The longest sequence of a nested tensor is found only as a dim of the padded tensor.
        """
        places: list[tuple[Any, Node, int | None]] = []
        for node in self.host.graph.nodes:
            if facts.name(node) not in functions.SHAPES:
                places.append((facts.value(node), node, None))
        # Nodes that hold a symbol come first: to read a size of an input would be one node more.
        for node in self.host.graph.nodes:
            padded = facts.name(node) in ("to_padded_tensor", "nested_to_padded_tensor")
            if node.op == "placeholder" or padded:
                for tensor in map(subclasses.values_of, facts.tensors(node)):
                    places += [(size, node, dim) for dim, size in enumerate(tensor.shape)]
        symbols: dict[Any, tuple[Node, int | None]] = {}
        for size, node, dim in places:
            if isinstance(size, torch.SymInt) and shapes.expression_of(size).is_Symbol:
                symbols.setdefault(shapes.expression_of(size), (node, dim))
        return symbols


def may_move(calls: Sequence[Handle], here: Node, there: Node, graph: HostGraph) -> bool:
    """Whether all that calls at one node read is known at an earlier one, and does not change."""
    start, end = graph.order[here], graph.order[there]
    arguments = (x for call in calls for x in fx.tree_leaves(list(call.args)))
    nodes = {x.node for x in arguments if isinstance(x, Handle) and x.node is not None}
    # The later call moves up to the earlier node. So a write on the way would come after it.
    between = (m for m in graph.mutators if start < graph.order[m] < end)
    changed = set[int]().union(*(graph.mutators[m] for m in between))
    own = set[int]().union(*map(facts.storages, nodes))
    nodes |= {call.dropout for call in calls if call.dropout is not None}
    return (
        graph.ambient[here] == graph.ambient[there]
        and all(graph.order[node] < start for node in nodes)
        and changed.isdisjoint(own)
    )


def _is_number(size: Size) -> bool:
    return isinstance(size, int) or bool(shapes.expression_of(size).is_number)


def _replace_uses(node: Node, users: Sequence[Node], new: Any) -> None:
    swap = lambda n: new if n is node else n
    for user in users:
        user.args, user.kwargs = torch.fx.map_arg((user.args, user.kwargs), swap)


def _evaluate(node: Node, like: Node) -> Any:
    if facts.value(node) is None:
        args = [_evaluate(a, like) if isinstance(a, Node) else a for a in node.args]
        describe(node, like, node.target(*args))  # type: ignore[operator]
    return facts.value(node)


def describe(node: Node, like: Node, value: Any) -> None:
    """Set the metadata of a new node: that of `like`, and its own value."""
    node.meta.update({key: like.meta[key] for key in _SOURCE if key in like.meta})
    # Graphs of export and AOTAutograd name the fake value otherwise than those of Dynamo.
    key = "val" if "val" in like.meta and "example_value" not in like.meta else "example_value"
    node.meta[key] = value
