"""Put the calls of recipes into a graph.

Symbolic sizes become nodes that compute them from sizes in the graph.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx import Node

from ..._compat import fx, shapes, subclasses
from ..host import facts, functions
from ..host.candidates import HostGraph
from ..host.sizes import Size
from .recipe import Handle, Recipe

aten = torch.ops.aten


class Writer:
    """Puts the calls of recipes into one graph."""

    def __init__(self, graph: HostGraph) -> None:
        self.host = graph
        self.replaced: dict[Node, Node] = {}
        self.erased: set[Node] = set()

    def write(self, recipe: Recipe, before: Node, like: Node) -> dict[Handle, Node]:
        """Insert all calls before a node. They get the source location of `like`."""
        written: dict[Handle, Node] = {}
        graph = self.host.graph
        with graph.inserting_before(before):
            for call in recipe.calls:
                assert call.target is not None
                args = self._arguments(call.args, written, like)
                op = "call_method" if isinstance(call.target, str) else "call_function"
                node = graph.create_node(op, call.target, args, dict(call.options))
                describe(node, like, call.value)
                written[call] = node
        return written

    def _arguments(self, args: Any, written: dict[Handle, Node], like: Node) -> Any:
        if isinstance(args, (tuple, list)):
            return type(args)(self._arguments(a, written, like) for a in args)
        if isinstance(args, Handle):
            return written[args] if args.node is None else self.current(args.node)
        if isinstance(args, torch.SymInt):
            return self.size(args, like)
        return args

    def current(self, node: Node) -> Node:
        """The current node for a node of the analysis, which may have been replaced since."""
        while node in self.replaced:
            node = self.replaced[node]
        return node

    def size(self, size: Size, like: Node) -> Any:
        """A node that computes a symbolic size, at the insertion point."""
        if isinstance(size, int) or shapes.expression_of(size).is_number:
            return int(size)
        expression = shapes.expression_of(size)
        needed = {symbol: self._symbol(symbol, like) for symbol in expression.free_symbols}
        if expression.is_Symbol:
            return needed[expression]
        node = fx.write_symbolic(expression, needed, self.host.graph)
        _evaluate(node, like)
        return node

    def replace_size(self, node: Node, gone: set[Node]) -> list[Node]:
        """Let users of a node that reads a shape use the sizes themselves. Returns unused nodes.

        gone: Users that are removed anyway.
        """
        value = facts.value(node)
        several = isinstance(value, (tuple, list))
        unused = [node]
        for user in [n for n in node.users if n not in gone]:
            with self.host.graph.inserting_before(node):
                size = self.size(value[user.args[1]] if several else value, node)
            if several:
                _replace_uses(user, user, size)
                unused.append(user)
            else:
                _replace_uses(node, user, size)
        return unused

    def can_write(self, size: Size, before: Node | None = None) -> bool:
        """Whether `size` can be computed from the graph's inputs, or from nodes before another."""
        if isinstance(size, int) or shapes.expression_of(size).is_number:
            return True
        symbols, order = shapes.expression_of(size).free_symbols, self.host.order
        known = {symbol: self._symbols[symbol][0] for symbol in symbols if symbol in self._symbols}
        early = before is None or all(order[node] < order[before] for node in known.values())
        return len(known) == len(symbols) and early

    def _symbol(self, symbol: Any, like: Node) -> Node:
        node, dim = self._symbols[symbol]
        if dim is None:
            return node
        if facts.tensors(node)[0].is_nested:
            nested, node = node, self.host.graph.call_method("values", (node,))
            describe(node, like, subclasses.values_of(facts.tensors(nested)[0]))
        size = self.host.graph.call_function(aten.sym_size.int, (node, dim))
        describe(size, like, facts.tensors(node)[0].shape[dim])
        return size

    @functools.cached_property
    def _symbols(self) -> dict[Any, tuple[Node, int | None]]:
        """The place of each symbol: a node that holds it, or a dim of an input.

        The longest sequence of a nested tensor is found only as a dim of the padded tensor.
        """
        places: dict[Any, tuple[Node, int | None]] = {}
        for node in self.host.graph.nodes:
            value = facts.value(node)
            if (
                isinstance(value, torch.SymInt)
                and shapes.expression_of(value).is_Symbol
                and facts.name(node) not in functions.SHAPES
            ):
                places.setdefault(shapes.expression_of(value), (node, None))
        for node in self.host.graph.nodes:
            padded = facts.name(node) in ("to_padded_tensor", "nested_to_padded_tensor")
            if node.op == "placeholder" or padded:
                for tensor in map(subclasses.values_of, facts.tensors(node)):
                    for dim, size in enumerate(tensor.shape):
                        if isinstance(size, torch.SymInt) and shapes.expression_of(size).is_Symbol:
                            places.setdefault(shapes.expression_of(size), (node, dim))
        return places


def _replace_uses(node: Node, user: Node, new: Any) -> None:
    """Replace `node` in the arguments of `user`.

    If `user` is `node`, replace it in all its users.
    """
    swap = lambda n: new if n is node else n
    for one in list(node.users) if user is node else [user]:
        one.args, one.kwargs = torch.fx.map_arg(one.args, swap), torch.fx.map_arg(one.kwargs, swap)


def _evaluate(node: Node, like: Node) -> Any:
    """Compute the values of a chain of new nodes over sizes."""
    if facts.value(node) is None:
        args = [_evaluate(a, like) if isinstance(a, Node) else a for a in node.args]
        describe(node, like, node.target(*args))  # type: ignore[operator]
    return facts.value(node)


def describe(node: Node, like: Node, value: Any) -> None:
    """Set the metadata of a new node: that of `like`, and its own value."""
    for key in (
        "stack_trace",
        "nn_module_stack",
        "source_fn_stack",
        "custom",
        "fwd_source_fn_stack",
        "fwd_nn_module_stack",
    ):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    key = "val" if "val" in like.meta and "example_value" not in like.meta else "example_value"
    node.meta[key] = value
