"""From a user's graph to the same graph with every region replaced by one call of
`gdpa::attention`.

Each candidate is analysed in full before anything is changed; regions that overlap are decided in
favour of the one with an activation. Then the replacements are written where the second products
stood. Nodes outside the regions are neither run nor touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, GraphModule, Node

from .. import _compat
from ..options import Options
from ..rejection import Rejection
from . import host, tables
from .ambient import Ambient, State
from .candidates import Candidate, HostGraph
from .padding import Padding
from .plan import Analyst, Plan, Supports
from .recipe import Writer
from .result import Match, Result


def rewrite_graph(
    gm: GraphModule, *, options: Options | None = None, supports: Supports | None = None
) -> Result:
    """Rewrite a Dynamo or ATen graph in place, and the bodies that it calls.

    Args:
        supports: asked for every region; what it answers is kept as the match's `choice`, and a
        falsy answer (a
            Rejection) leaves the region as it is. None supports everything.
    """
    return _rewrite(gm, None, options or Options(), supports, set())


def _rewrite(
    gm: GraphModule,
    start: State | None,
    options: Options,
    supports: Supports | None,
    seen: set[int],
) -> Result:
    if id(gm) in seen:
        return Result()
    seen.add(id(gm))
    found = Result()
    calls = list(host.bodies(gm))
    worthwhile = _worthwhile(gm.graph)
    if not worthwhile and not calls:
        return found
    ambient = Ambient.of(gm.graph, start)
    for node, body in calls:
        found += _rewrite(body, ambient.inside(node), options, supports, seen)
    if worthwhile:
        found += _rewrite_one(gm, HostGraph.of(gm.graph, ambient), options, supports)
    return found


def _worthwhile(graph: Graph) -> bool:
    """Whether there are two products in the graph."""
    products = [n for n in graph.nodes if host.is_product(n)]
    return len(products) > 1 or any(len(host.operands(n)) > 3 for n in products)


def _rewrite_one(
    gm: GraphModule, graph: HostGraph, options: Options, supports: Supports | None
) -> Result:
    plans: list[Plan] = []
    refused: list[tuple[Candidate, Rejection]] = []
    writer = Writer(graph)
    analyst = Analyst(graph, Padding.of(graph), writer, options, supports)
    for candidate in graph.candidates():
        outcome = analyst.outcome(candidate)
        if isinstance(outcome, Plan):
            plans.append(outcome)
        else:
            refused.append((candidate, outcome))
    chosen = _compatible(plans, graph)
    matches = [_commit(plan, writer) for plan in chosen]
    biases = [writer.current(bias) for plan in chosen for bias in plan.biases]
    tables.relieve(graph, biases, writer)
    if matches:
        gm.recompile()
    return Result(tuple(matches), _reported(refused, chosen))


def _compatible(plans: Sequence[Plan], graph: HostGraph) -> list[Plan]:
    """Plans that share no node: an activation before a mask before none, then as they come. In
    program order.
    """
    chosen: list[Plan] = []
    taken: set[Node] = set()
    for plan in sorted(plans, key=lambda p: -p.rank):
        if not taken & set(plan.region.all_nodes):
            chosen.append(plan)
            taken |= set(plan.region.all_nodes)
    return sorted(chosen, key=lambda p: graph.order[p.region.end])


def _reported(
    refused: Sequence[tuple[Candidate, Rejection]], chosen: Sequence[Plan]
) -> tuple[Rejection, ...]:
    """One refusal for each second product; none for products that are part of a match."""
    taken = {node for plan in chosen for node in plan.region.all_nodes}
    found: dict[Node, Rejection] = {}
    for candidate, rejection in refused:
        inside_one_call = candidate.second in candidate.firsts
        if (
            not inside_one_call
            and candidate.second not in taken
            and not taken & set(candidate.firsts)
        ):
            found.setdefault(candidate.second, rejection)
    return tuple(found.values())


# Writing


def _commit(plan: Plan, writer: Writer) -> Match:
    """Write a plan into its graph and take the region out."""
    end, region = plan.region.end, plan.region
    written = writer.write(plan.recipe, end, plan.candidate.second)
    result = written[plan.result]
    end.replace_all_uses_with(result)
    writer.replaced[end] = result
    if region.sink is not None:
        for node in region.sink.again:
            node.replace_all_uses_with(region.sink.offsets)
    _erase(plan, writer)
    name = next(
        written[c].name for c in plan.recipe.calls if c.target is torch.ops.gdpa.attention.default
    )
    replaced = tuple(node.name for node in (*region.all_nodes, *region.dead))
    return Match(plan.problem, host.location(result), name, plan.choice, replaced, plan.notes)


def _erase(plan: Plan, writer: Writer) -> None:
    """Take out a region, and what led to it and has no other use."""
    region, order, graph = plan.region, writer.host.order, writer.host.graph
    gone = {*region.all_nodes, *region.dead}.difference(region.factories)
    operand = host.operands(plan.candidate.firsts[0])[0]
    for node in region.factories:  # an operand is on the same device, maybe of another dtype
        node.args = (operand, *node.args[1:])
        node.kwargs = {**node.kwargs, "dtype": host.tensors(node)[0].dtype}
    for node in region.sizes:
        gone.update(writer.replace_size(node, gone))
    bodies = {n for call in (*gone, *plan.pads) for n in call.all_input_nodes if n.op == "get_attr"}
    for node in sorted(gone, key=order.__getitem__, reverse=True):
        graph.erase_node(node)
    for node in sorted({*region.makers, *plan.pads}, key=order.__getitem__, reverse=True):
        if node not in gone and not node.users:
            graph.erase_node(node)
    for node in bodies:
        if not node.users:
            graph.erase_node(node)
            if _compat.body_of(node) is not None:
                delattr(graph.owning_module, str(node.target))
