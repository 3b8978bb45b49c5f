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

from collections.abc import Iterable

import torch
from torch.fx import Node

from ..._compat import fx, operators, shapes
from ..host import facts, functions
from ..host.candidates import HostGraph
from ..writing.writer import describe

_LEAST_SHARE = 4  # the index has at least so many times the bytes of all that it is made from
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


def again(graph: HostGraph, index: Node) -> Node:
    """A node with the value of `index` that the backward computes again.

    It is `index` itself if that would not pay, or is not known to be right.
    """
    made = _makers(graph, index)
    roots = {n for node in made for n in node.all_input_nodes if n not in made}
    tensors = [n for n in roots if facts.tensors(n)]
    if not made or not _pays(index, tensors) or not repeats(made):
        return index
    if any(_changes(graph, n) for n in tensors):
        return index
    copies = {root: _kept(graph, root, made[0]) for root in tensors}
    for node in made:
        with graph.graph.inserting_after(node):
            copies[node] = graph.graph.node_copy(node, lambda n: copies.get(n, n))
    mark(copies[node] for node in made)
    return copies[index]


def mark(nodes: Iterable[Node]) -> None:
    """Mark nodes, so that the backward computes them again."""
    for node in nodes:
        fx.prefer_recompute(node)


def is_given(index: Node) -> bool:
    """Whether an index is an input of the graph, which autograd saves as it is."""
    inputs = (n for n in index.graph.nodes if n.op in ("placeholder", "get_attr"))
    held = facts.storages(index)
    return any(not held.isdisjoint(facts.storages(n)) for n in inputs)


def _kept(graph: HostGraph, root: Node, first: Node) -> Node:
    """A copy that nobody changes. first: The first call that is computed again."""
    given = root.op == "placeholder"
    with graph.graph.inserting_before(first) if given else graph.graph.inserting_after(root):
        found: Node = graph.graph.call_function(torch.ops.gdpa.kept.default, (root,))
    describe(found, first, facts.tensors(root)[0])
    return found


def _makers(graph: HostGraph, index: Node) -> list[Node]:
    """The cheap calls that make an index, in program order."""
    found, stack = set[Node](), [index]
    while stack:
        node = stack.pop()
        if node not in found and _is_cheap(graph, node):
            found.add(node)
            stack += node.all_input_nodes
    return sorted(found, key=graph.order.__getitem__)


def _is_cheap(graph: HostGraph, node: Node) -> bool:
    """Whether a call is cheap, has no gradient, and gives the same result whenever it runs."""
    called = facts.name(node)
    return (
        node in graph.order
        and node.op in ("call_function", "call_method")
        and not facts.is_opaque(node)
        and (called in _EXACT | functions.POINTWISE or operators.is_pointwise(called))
        and not _reduces(node)
        and isinstance(facts.value(node), torch.Tensor)
        and facts.is_plain(node)
        and not facts.may_want_gradients(node)
        and not facts.is_random(node)
        and all(len(facts.tensors(n)) == 1 or not facts.tensors(n) for n in node.all_input_nodes)
        and not _changes(graph, node)
    )


def _reduces(node: Node) -> bool:
    """Whether a call is a reduction: `max` or `min` of one tensor."""
    return facts.name(node) in ("max", "min") and len(node.all_input_nodes) < 2


def repeats(made: Iterable[Node]) -> bool:
    """Whether calls, in program order, give the same index in any kernel."""
    multiplied = set[Node]()
    for node in made:
        (value,) = facts.tensors(node)
        called, scaled = facts.name(node), not multiplied.isdisjoint(node.all_input_nodes)
        if not value.is_floating_point() and not _reads_reals(node):
            continue
        if value.dtype in _ROUNDED or (called in _SUMS and (scaled or _has_factor(node))):
            return False
        if called not in (_EXACT if value.device.type == "cpu" else _EXACT | _FUNCTIONS):
            return False
        if called in _PRODUCTS or scaled or called not in _EXACT:
            multiplied.add(node)
    return True


def _has_factor(node: Node) -> bool:
    """Whether a sum scales one of its terms (`alpha`)."""
    return len(node.args) > 2 or bool(node.kwargs.get("alpha", 1) != 1)


def _reads_reals(node: Node) -> bool:
    return any(t.is_floating_point() for n in node.all_input_nodes for t in facts.tensors(n))


def _changes(graph: HostGraph, node: Node) -> bool:
    """Whether the graph or its caller writes into a node's value."""
    held = facts.storages(node)
    return bool(held & graph.later) or any(
        node is mutator or not held.isdisjoint(changed)
        for mutator, changed in graph.mutators.items()
    )


def _pays(index: Node, roots: Iterable[Node]) -> bool:
    sizes = [_bytes(n) for n in (index, *roots)]
    if None in sizes:
        return False
    whole, *parts = (size or 0 for size in sizes)
    return _LEAST_SHARE * sum(parts) <= whole


def _bytes(node: Node) -> int | None:
    (tensor,) = facts.tensors(node)
    count = shapes.size_hint(tensor.numel())
    return None if count is None else count * tensor.itemsize
