"""Have the backward compute the index of a look-up again, instead of storing it.

The gradient of a table needs the index, which has 8 bytes for each score. The time stamps that it
is computed from are far smaller. torch's partitioner would store the index, because a scatter of
the backward reads it. So the calls that compute the index are written a second time, with the mark
that activation checkpoints use for recomputed nodes. They read copies of their inputs, since the
caller may change an input before the backward.

Both computations must give the same index, or a gradient goes to a neighbour. So an index is not
computed again if another kernel might round it differently:

- It has values in 16 bits, which are not rounded between the calls of one kernel.
- It has a sum of a product, which one kernel may compute as one instruction. A call such as
  `addcmul` counts too.
- On CPUs, it has an operation that is not an IEEE one. It differs between vectors and elements.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch.fx import Node

from ..._compat import fx, operators, shapes
from ..host import facts, functions
from ..host.candidates import HostGraph
from ..writing.writer import describe
from .lookups import writers

_LEAST_SHARE = 4  # the index has at least so many times the bytes of its sources
_SUMS = frozenset(["add", "sub", "rsub"])
_PRODUCTS = frozenset(["mul", "div", "truediv"])
# Calls that cost a backward little, and have the same result on every device. Calls that ATen tags
# as pointwise cost little too.
_EXACT = functions.MAY_ALIAS | functions.VIEWS | functions.CREATIONS | _SUMS | _PRODUCTS | {
    "detach", "getitem", "cat", "concat", "stack", "pad", "constant_pad_nd", "slice", "select",
    "narrow", "repeat", "bucketize", "searchsorted", "abs", "neg", "clamp", "clamp_min",
    "clamp_max", "minimum", "maximum", "min", "max", "where", "masked_fill", "floor", "ceil",
    "trunc", "round", "sqrt", "lt", "le", "gt", "ge", "eq", "ne",
}  # fmt: skip
# Functions of floats from a GPU's library. The compiler cannot fuse into their sums of products.
_FUNCTIONS = frozenset([
    "log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "sin", "cos", "tanh", "sigmoid", "pow",
    "square", "rsqrt", "reciprocal", "sign", "floordiv", "floor_divide", "remainder", "fmod", "mod",
])  # fmt: skip
_ROUNDED = (torch.float16, torch.bfloat16)


def recomputed(graph: HostGraph, index: Node) -> Node:
    """A node with the value of `index` that the backward computes again.

    It is `index` itself if that would not pay, or is not known to be right.
    """
    nodes = _cheap_producers(graph, index)
    roots = {n for node in nodes for n in node.all_input_nodes if n not in nodes}
    tensors = [n for n in roots if facts.tensors(n)]
    if not nodes or not _pays(index, tensors) or not is_reproducible(nodes):
        return index
    if any(_changes(graph, n) for n in tensors):
        return index
    copies = {root: _copy(graph, root, nodes[0]) for root in tensors}
    for node in nodes:
        with graph.graph.inserting_after(node):
            copies[node] = graph.graph.node_copy(node, lambda n: copies.get(n, n))
    mark_recomputed(copies[node] for node in nodes)
    return copies[index]


def mark_recomputed(nodes: Iterable[Node]) -> None:
    for node in nodes:
        fx.prefer_recompute(node)


def is_input(index: Node) -> bool:
    """Whether an index is an input of the graph, which autograd saves as it is."""
    inputs = (n for n in index.graph.nodes if n.op in ("placeholder", "get_attr"))
    storages = facts.storages(index)
    return any(not storages.isdisjoint(facts.storages(n)) for n in inputs)


def _copy(graph: HostGraph, root: Node, first: Node) -> Node:
    before = root.op == "placeholder"
    with graph.graph.inserting_before(first) if before else graph.graph.inserting_after(root):
        copy: Node = graph.graph.call_function(torch.ops.gdpa.kept.default, (root,))
    describe(copy, first, facts.tensors(root)[0])
    return copy


def _cheap_producers(graph: HostGraph, index: Node) -> list[Node]:
    is_cheap = functools.cache(lambda node: _is_cheap(graph, node))
    behind = facts.walk([index], lambda n: n.all_input_nodes if is_cheap(n) else ())
    return graph.in_order(filter(is_cheap, behind))


def _is_cheap(graph: HostGraph, node: Node) -> bool:
    """Whether a call is cheap, has no gradient, and gives the same result whenever it runs."""
    called = facts.name(node)
    reduces = called in ("max", "min") and len(node.all_input_nodes) < 2
    return (
        node in graph.order
        and facts.is_call(node)
        and not facts.is_opaque(node)
        and (called in _EXACT | functions.POINTWISE or operators.is_pointwise(called))
        and not reduces
        and isinstance(facts.value(node), torch.Tensor)
        and facts.is_plain(node)
        and not facts.may_want_gradients(node)
        and not facts.is_random(node)
        and all(len(facts.tensors(n)) == 1 or not facts.tensors(n) for n in node.all_input_nodes)
        and not _changes(graph, node)
    )


def is_reproducible(nodes: Iterable[Node]) -> bool:
    """Whether calls, in program order, give the same index in any kernel."""
    multiplied = set[Node]()
    for node in nodes:
        (value,) = facts.tensors(node)
        operands = [t for n in node.all_input_nodes for t in facts.tensors(n)]
        if not any(t.is_floating_point() for t in (value, *operands)):
            continue
        called, scaled = facts.name(node), not multiplied.isdisjoint(node.all_input_nodes)
        has_factor = len(node.args) > 2 or node.kwargs.get("alpha", 1) != 1  # scales a term
        if value.dtype in _ROUNDED or (called in _SUMS and (scaled or has_factor)):
            return False
        if called not in (_EXACT if value.device.type == "cpu" else _EXACT | _FUNCTIONS):
            return False
        if called in _PRODUCTS or scaled or called not in _EXACT:
            multiplied.add(node)
    return True


def _changes(graph: HostGraph, node: Node) -> bool:
    if node in graph.mutators or facts.storages(node) & graph.later:
        return True
    return bool(writers(graph, node))


def _pays(index: Node, roots: Iterable[Node]) -> bool:
    sizes = []
    for node in (index, *roots):
        (tensor,) = facts.tensors(node)
        count = shapes.size_hint(tensor.numel())
        if count is None:
            return False
        sizes.append(count * tensor.itemsize)
    return _LEAST_SHARE * sum(sizes[1:]) <= sizes[0]
