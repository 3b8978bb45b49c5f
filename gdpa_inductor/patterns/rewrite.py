"""One pass over a user's graph: replace each region by one call of `gdpa::attention`.

All candidates are analysed before anything is changed. If regions overlap, the one with an
activation wins. Then each replacement is written in the place of the second product. Nodes outside
the regions are neither run nor changed. `validation` decides whether the result stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from torch.fx import Graph, GraphModule, Node

from .._compat import fx
from ..options import Options
from ..rejection import Code, Rejection
from . import tables
from .host import facts, places, products
from .host.ambient import Ambient, State
from .host.candidates import Candidate, HostGraph
from .jagged.padding import GraphPadding
from .plan import Analyst, RegionPlan, Supports, rejection
from .result import Match, Result, internal_error
from .selection import Replacement, compatible, replacements
from .writing.recipe import Handle
from .writing.writer import Writer

log = logging.getLogger("gdpa_inductor")


@dataclass
class PassConfig:
    """The options of one pass.

    snapshot:  Called before the first change of any graph.
    banned:    Plans that must not be written, by the names of the nodes that each replaces.
    """

    options: Options
    supports: Supports | None
    snapshot: Callable[[], None]
    banned: Collection[tuple[str, ...]] = ()


Ban = tuple[tuple[str, ...], Rejection]  # the names of the nodes that a plan replaces, and why not


class RewriteError(Exception):
    """Plans could not be written, and the graph is half changed."""

    def __init__(self, bans: list[Ban]) -> None:
        super().__init__("regions could not be written")
        self.bans = bans


@dataclass(frozen=True)
class Caller:
    """Facts about the graph that calls a body.

    start:   The modes in which the body begins.
    later:   The storages that are changed after the body has run.
    learns:  The inputs of the body that want gradients.
    path:    The path of the body, from the graph that is rewritten.
    """

    start: State | None = None
    later: frozenset[int] = frozenset()
    learns: frozenset[Node] = frozenset()
    path: str = ""


def rewrite_once(gm: GraphModule, config: PassConfig) -> Result:
    """Rewrite a Dynamo or ATen graph in place, and the bodies that it calls.

    Raises RewriteError if that fails half-way.
    """
    return _rewrite(gm, config, set(), Caller())


def _rewrite(gm: GraphModule, config: PassConfig, visited: set[int], caller: Caller) -> Result:
    if id(gm) in visited:
        return Result()
    visited.add(id(gm))
    calls, worthwhile = list(facts.bodies(gm)), _worthwhile(gm.graph)
    if not worthwhile and not calls:
        return Result()
    try:
        ambient = Ambient.of(gm.graph, caller.start)
        graph = HostGraph.of(gm.graph, ambient, caller.later, caller.learns)
        callers: dict[GraphModule, list[Caller]] = {}
        for call, body in calls:
            callers.setdefault(body, []).append(_caller(graph, call, body))
        paths = {body: name for name, body in gm.named_modules()}
    except Exception as error:
        return _failed(error)
    result = Result()
    for body, sites in callers.items():
        start = sites[0].start
        if any(site.start != start for site in sites):
            first = next(call for call, called in calls if called is body)
            result += _of_several_modes(first, body, visited)
            continue
        later = frozenset[int]().union(*(site.later for site in sites))
        learns = frozenset[Node]().union(*(site.learns for site in sites))
        path = f"{caller.path}.{paths[body]}".removeprefix(".")
        result += _rewrite(body, config, visited, Caller(start, later, learns, path))
    if worthwhile:
        own = _rewrite_one(gm, graph, config)
        matches = tuple(replace(m, body=caller.path) for m in own.matches)
        result += Result(matches, own.rejections)
    return _relieved(gm, graph, result) if calls and result.matches else result


def _of_several_modes(call: Node, body: GraphModule, visited: set[int]) -> Result:
    """A body that is called in several modes stays as it is: what it computes depends on them."""
    if id(body) in visited or not _worthwhile(body.graph):
        return Result()
    visited.add(id(body))
    reason = f"{places.describe(call)} runs a body that is called in other modes too"
    place = places.location(call), call.name, places.module(call)
    return Result((), (Rejection(Code.OPAQUE_CALL, reason, *place),))


def _relieved(gm: GraphModule, graph: HostGraph, result: Result) -> Result:
    """Change look-ups of tables also for biases that are passed to bodies."""
    try:
        (notes,) = tables.replace_lookups(graph, [tables.bias_sources(gm)], Writer(graph))
        gm.recompile()
    except Exception as error:
        log.warning("tables could not be looked up in another way", exc_info=True)
        refusal = internal_error(error)
        about = refusal.code, refusal.reason
        bans = [(m.replaced, Rejection(*about, m.location, m.node)) for m in result.matches]
        raise RewriteError(bans) from error
    matches = tuple(replace(m, notes=(*m.notes, *notes)) for m in result.matches)
    return Result(matches, result.rejections)


def _failed(error: Exception) -> Result:
    log.warning("a graph could not be analysed", exc_info=True)
    refusal = internal_error(error)
    return Result((), (Rejection(refusal.code, refusal.reason),))


def _caller(graph: HostGraph, call: Node, body: GraphModule) -> Caller:
    pairs = facts.body_inputs(call, body)
    later, learns = _changed_after(graph, call, pairs), _learning(graph, pairs)
    return Caller(graph.ambient.inside(call), later, learns)


def _changed_after(
    graph: HostGraph, call: Node, pairs: Sequence[tuple[Node, Node]]
) -> frozenset[int]:
    place = graph.order[call]
    inputs = [x for x, outer in pairs if graph.changes_after(facts.storages(outer), place)]
    return frozenset[int]().union(*map(facts.storages, inputs))


def _learning(graph: HostGraph, pairs: Sequence[tuple[Node, Node]]) -> frozenset[Node]:
    return frozenset(inner for inner, outer in pairs if graph.wants(outer))


def _worthwhile(graph: Graph) -> bool:
    matmuls = [n for n in graph.nodes if products.is_product(n)]
    return len(matmuls) > 1 or any(len(products.operands(n)) > 3 for n in matmuls)


def _rewrite_one(gm: GraphModule, graph: HostGraph, config: PassConfig) -> Result:
    writer = Writer(graph)
    try:
        analyst = Analyst(graph, GraphPadding.of(graph), writer, config.options, config.supports)
        outcomes = [(candidate, analyst.outcome(candidate)) for candidate in graph.candidates]
    except Exception as error:
        return _failed(error)
    refused = [(c, outcome) for c, outcome in outcomes if isinstance(outcome, Rejection)]
    plans = [plan for _, plan in outcomes if isinstance(plan, RegionPlan)]
    allowed = [p for p in plans if Replacement.of(p).replaced not in config.banned]
    chosen, incompatible = compatible(allowed, graph, config.options.profit)
    refused += [(plan.candidate, rejection(plan.candidate, why)) for plan, why in incompatible]
    reported = _reported(refused, chosen, graph) + tuple(map(_flat, graph.flat()))
    if not chosen:
        return Result((), reported)
    config.snapshot()
    try:
        matches = _write(replacements(chosen, writer, config.supports, config.banned), writer)
        gm.recompile()
    except Exception as error:
        log.warning("regions could not be written", exc_info=True)
        refusal = internal_error(error)
        bans = [(Replacement.of(p).replaced, rejection(p.candidate, refusal)) for p in chosen]
        raise RewriteError(bans) from error
    return Result(tuple(matches), reported)


def _reported(
    refused: Sequence[tuple[Candidate, Rejection]], chosen: Sequence[RegionPlan], graph: HostGraph
) -> tuple[Rejection, ...]:
    """The refusals to report: one for each second product.

    Products that are part of a match have none. There is none either for a pair of products that
    belong to two layers, where the second one reads the result of the first layer: a weight stands
    between them, and the second product has a refusal of its own, or the result is used elsewhere.
    """
    matched = {node for plan in chosen for node in plan.region.all_nodes}
    layers = [candidate for candidate, _ in refused if graph.projection(candidate) is None]
    own = {node for layer in layers for node in (*layer.firsts, layer.second)}
    rejections: dict[Node, Rejection] = {}
    for candidate, refusal in refused:
        second, firsts = candidate.second, candidate.firsts
        used = second in own or refusal.code is Code.SCORES_ESCAPE
        between = used and candidate not in layers
        if not between and second not in firsts and matched.isdisjoint((second, *firsts)):
            rejections.setdefault(second, refusal)
    return tuple(rejections.values())


def _flat(second: Node) -> Rejection:
    reason = "the products multiply 2-D inputs, which are taken for weights"
    return Rejection(Code.FLAT, reason, places.location(second), second.name, places.module(second))


# Writing


def _write(rewrites: Sequence[Replacement], writer: Writer) -> list[Match]:
    """Write all of it into the graph. Bodies go last: until then the graph can be restored."""
    left = [plan for rewrite in rewrites for plan in rewrite.plans]
    removed = [n for p in left for n in (*p.region.all_nodes, *p.region.dead, *p.pads)]
    bodies = dict.fromkeys(x for n in removed for x in n.all_input_nodes if x.op == "get_attr")
    matches = [_commit(rewrite, writer, left) for rewrite in rewrites]
    biases = [[writer.current(bias) for bias in rewrite.plans[0].biases] for rewrite in rewrites]
    notes = tables.replace_lookups(writer.host, biases, writer)
    graph = writer.host.graph
    for node in [node for node in bodies if not node.users]:
        is_body = fx.body_of(node) is not None
        graph.erase_node(node)
        if is_body:
            delattr(graph.owning_module, str(node.target))
    return [replace(m, notes=(*m.notes, *more)) for m, more in zip(matches, notes, strict=True)]


def _commit(rewrite: Replacement, writer: Writer, left: list[RegionPlan]) -> Match:
    """Write the replacement of the first plans that are `left`, and drop these from the list."""
    first = rewrite.plans[0]
    nodes, sums = _written(rewrite, writer)
    pairs: list[tuple[str, str]] = []
    for plan, handle in zip(rewrite.plans, rewrite.results, strict=True):
        end, result = plan.region.end, nodes[handle]
        end.replace_all_uses_with(result)
        writer.replaced[end] = result
        if plan.region.sink is not None:
            for node in plan.region.sink.again:
                node.replace_all_uses_with(plan.region.sink.offsets)
        pairs.append((result.name, end.name))
        left.pop(0)
        _erase(plan, writer, left)
    seconds = [plan.candidate.second for plan in rewrite.plans]
    return Match(
        problem=rewrite.problem,
        location=places.location(nodes[rewrite.results[0]]),
        node=nodes[rewrite.recipe.attention].name,
        choice=rewrite.choice,
        replaced=rewrite.replaced,
        notes=tuple(dict.fromkeys(note for plan in rewrite.plans for note in plan.notes)),
        stands_for=pairs[0],
        module=places.module(*first.candidate.firsts, *seconds),
        origins=first.origins,
        also=tuple(pairs[1:]),
        sums=sums,
        draws=first.draws,
    )


def _written(
    rewrite: Replacement, writer: Writer
) -> tuple[dict[Handle, Node], tuple[tuple[str, str], ...]]:
    """Write the calls: their nodes, and what row sums stand for."""
    plan, calls = rewrite.plans[0], rewrite.recipe.calls
    region, like, early = plan.region, plan.candidate.second, rewrite.recipe.until(plan.sums)
    nodes = writer.write(early, writer.host.in_order(region.ends)[0], like)
    stands_for: tuple[tuple[str, str], ...] = ()
    # Of several products of the same weights, the first one's call gives their row sums.
    if plan.sums is not None and region.sums and region.sums.node not in writer.replaced:
        old, new = region.sums.node, nodes[plan.sums]
        old.replace_all_uses_with(new)
        writer.replaced[old] = new
        stands_for = ((new.name, old.name),)
    return writer.write(calls[len(early) :], region.end, like, nodes), stands_for


def _erase(plan: RegionPlan, writer: Writer, left: Sequence[RegionPlan]) -> None:
    """Remove a region, but for what plans that are `left` share with it, and its unused inputs."""
    region, graph = plan.region, writer.host.graph
    removed = {*region.all_nodes, *region.dead}.difference(region.factories)
    operand = products.operands(plan.candidate.firsts[0])[0]
    for node in region.factories:  # an operand is on the same device, maybe of another dtype
        node.args = (operand, *node.args[1:])
        node.kwargs = {**node.kwargs, "dtype": facts.tensors(node)[0].dtype}
    for node in [n for n in region.sizes if n not in writer.erased]:
        removed.update(writer.replace_size(node, removed))
    removed -= {node for other in left for node in other.region.all_nodes} | writer.erased
    for node in reversed(writer.host.in_order(removed)):
        graph.erase_node(node)
    writer.erased |= removed
    for node in reversed(writer.host.in_order({*region.makers, *plan.pads})):
        if node not in writer.erased and not node.users:
            graph.erase_node(node)
            writer.erased.add(node)
