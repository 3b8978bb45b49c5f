"""Find the look-ups that biases come from.

A changed look-up gives the same bits. So it may be changed whatever calls come after it, and the
walk needs no list of known functions. It follows all plain calls, and all calls that write into
their results. It ends at matrix products, as calls before these are another part of the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from ...ops import ATTENTION
from ..host import facts, products
from ..host.candidates import HostGraph
from .calls import LOOKUPS


def lookups(graph: HostGraph, biases: Iterable[Node]) -> list[Node]:
    """The calls before `biases` that may look up in a table, the last first."""
    stack, seen, found = list(biases), set[Node](), list[Node]()
    while stack:
        node = stack.pop()
        if node in seen or not _is_followed(node):
            continue
        seen.add(node)
        if facts.name(node) in LOOKUPS and node in graph.order:
            found.append(node)
        stack += node.all_input_nodes
        stack += (n for writer in _writers(graph, node) for n in writer.all_input_nodes)
        stack += _writers(graph, node)
    return latest_first(graph, found)


def latest_first(graph: HostGraph, nodes: Iterable[Node]) -> list[Node]:
    """The nodes in reverse program order. So a look-up in a looked-up table comes first."""
    return sorted(nodes, key=graph.order.__getitem__, reverse=True)


def handed_over(gm: GraphModule) -> list[Node]:
    """The nodes that a graph passes to bodies, and from which biases are made there."""
    found: dict[Node, None] = {}
    for call, body in facts.bodies(gm):
        asked = _asked(body)
        found |= dict.fromkeys(x for inner, x in facts.body_inputs(call, body) if inner in asked)
    return list(found)


def _asked(body: GraphModule) -> set[Node]:
    """The inputs of a body from which biases are made, in the body and in bodies that it calls."""
    stack, found = handed_over(body), set[Node]()
    for node in body.graph.nodes:
        if node.target is ATTENTION.op:
            stack += facts.flat_nodes(ATTENTION.bind(*node.args, **node.kwargs).operands.aux)
    while stack:
        node = stack.pop()
        if node not in found and (node.op == "placeholder" or _is_followed(node)):
            found.add(node)
            stack += node.all_input_nodes
    return {node for node in found if node.op == "placeholder"}


def _is_followed(node: Node) -> bool:
    """Whether a node is a plain call whose result may have a gradient."""
    return (
        node.op in ("call_function", "call_method")
        and (facts.is_einops(node) or not facts.is_opaque(node))
        and not products.is_product(node)
        and any(t.is_floating_point() for t in facts.tensors(node))
    )


def _writers(graph: HostGraph, node: Node) -> list[Node]:
    """The calls that write into a node's value."""
    held = facts.storages(node)
    return [m for m, changed in graph.mutators.items() if not held.isdisjoint(changed)]
