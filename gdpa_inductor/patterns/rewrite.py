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
from .result import Match, Refused, Result, internal_error
from .selection import Replacement, compatible, replacements
from .writing.writer import Writer

log = logging.getLogger("gdpa_inductor")


@dataclass
class PassConfig:
    """The orders for one pass.

    snapshot: Called before the first change of any graph.
    banned:  Plans that must not be written, by the names of the nodes that each replaces.
    """

    options: Options
    supports: Supports | None
    snapshot: Callable[[], None]
    banned: Collection[tuple[str, ...]] = ()


class RewriteError(Exception):
    """Plans could not be written, and the graph is half changed.

    plans: For each, the names of the nodes that it replaces, and its refusal.
    """

    def __init__(self, plans: Sequence[tuple[tuple[str, ...], Rejection]]) -> None:
        super().__init__("regions could not be written")
        self.plans = plans


def rewrite_once(gm: GraphModule, config: PassConfig) -> Result:
    """Rewrite a Dynamo or ATen graph in place, and the bodies that it calls.

    Raises RewriteError if that fails half-way.
    """
    return _rewrite(gm, config, set(), Caller())


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


def _rewrite(gm: GraphModule, config: PassConfig, seen: set[int], caller: Caller) -> Result:
    if id(gm) in seen:
        return Result()
    seen.add(id(gm))
    result = Result()
    calls = list(facts.bodies(gm))
    worthwhile = _worthwhile(gm.graph)
    if not worthwhile and not calls:
        return result
    try:
        ambient = Ambient.of(gm.graph, caller.start)
        graph = HostGraph.of(gm.graph, ambient, caller.later, caller.learns)
        callers = [(body, _called_from(graph, node, body)) for node, body in calls]
        paths = {body: name for name, body in gm.named_modules()}
    except Exception as error:
        return _failed(error)
    for (node, _), (body, call) in zip(calls, callers, strict=True):
        same = [other for called, other in callers if called is body]
        if any(other.start != call.start for other in same):
            result += _of_several_modes(node, body, seen)
            continue
        later = frozenset[int]().union(*(x.later for x in same))
        learns = frozenset[Node]().union(*(x.learns for x in same))
        path = f"{caller.path}.{paths[body]}".removeprefix(".")
        result += _rewrite(body, config, seen, Caller(call.start, later, learns, path))
    if worthwhile:
        own = _rewrite_one(gm, graph, config)
        matches = tuple(replace(m, body=caller.path) for m in own.matches)
        result += Result(matches, own.rejections)
    return _relieved(gm, graph, result) if calls and result.matches else result


def _of_several_modes(call: Node, body: GraphModule, seen: set[int]) -> Result:
    """A body that is called in several modes stays as it is: what it computes depends on them."""
    if id(body) in seen or not _worthwhile(body.graph):
        return Result()
    seen.add(id(body))
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
        raise RewriteError([(m.replaced, _blamed(m, refusal)) for m in result.matches]) from error
    matches = tuple(replace(m, notes=(*m.notes, *notes)) for m in result.matches)
    return Result(matches, result.rejections)


def _blamed(match: Match, refusal: Refused) -> Rejection:
    return Rejection(refusal.code, refusal.reason, match.location, match.node)


def _failed(error: Exception) -> Result:
    """A graph that could not be analysed at all."""
    log.warning("a graph could not be analysed", exc_info=True)
    refusal = internal_error(error)
    return Result((), (Rejection(refusal.code, refusal.reason),))


def _called_from(graph: HostGraph, call: Node, body: GraphModule) -> Caller:
    """The facts that one call site gives about a body."""
    pairs = facts.body_inputs(call, body)
    return Caller(
        graph.ambient.inside(call), _changed_after(graph, call, pairs), _learning(graph, pairs)
    )


def _changed_after(
    graph: HostGraph, call: Node, pairs: Sequence[tuple[Node, Node]]
) -> frozenset[int]:
    """The storages of a body's inputs that are changed after it was called."""
    changed = set[int]()
    for inner, outer in pairs:
        own = facts.storages(outer)
        if own & graph.later or graph.written(own, graph.order[call]):
            changed |= facts.storages(inner)
    return frozenset(changed)


def _learning(graph: HostGraph, pairs: Sequence[tuple[Node, Node]]) -> frozenset[Node]:
    """The inputs of a body that want gradients."""
    return frozenset(inner for inner, outer in pairs if graph.wants(outer))


def _worthwhile(graph: Graph) -> bool:
    """Whether there are two products in the graph."""
    matmuls = [n for n in graph.nodes if products.is_product(n)]
    return len(matmuls) > 1 or any(len(products.operands(n)) > 3 for n in matmuls)


def _rewrite_one(gm: GraphModule, graph: HostGraph, config: PassConfig) -> Result:
    writer = Writer(graph)
    try:
        analyst = Analyst(graph, GraphPadding.of(graph), writer, config.options, config.supports)
        outcomes = [(candidate, analyst.guarded(candidate)) for candidate in graph.candidates()]
    except Exception as error:
        return _failed(error)
    refused = [(c, outcome) for c, outcome in outcomes if isinstance(outcome, Rejection)]
    plans = [plan for _, plan in outcomes if isinstance(plan, RegionPlan)]
    allowed = [p for p in plans if Replacement.of(p).replaced not in config.banned]
    chosen, torn = compatible(allowed, graph, config.options.profit)
    refused += [(plan.candidate, rejection(plan.candidate, why)) for plan, why in torn]
    reported = _reported(refused, chosen, graph) + tuple(map(_flat, graph.flat()))
    if not chosen:
        return Result((), reported)
    config.snapshot()
    banned = [Replacement.of(plan).replaced for plan in chosen]
    try:
        written = replacements(chosen, writer, config.supports, config.banned)
        matches = _written(written, writer)
        gm.recompile()
    except Exception as error:
        log.warning("regions could not be written", exc_info=True)
        blame = internal_error(error)
        rejections = [rejection(plan.candidate, blame) for plan in chosen]
        raise RewriteError(list(zip(banned, rejections, strict=True))) from error
    return Result(tuple(matches), reported)


def _written(rewrites: Sequence[Replacement], writer: Writer) -> list[Match]:
    """Write all of it into the graph. Bodies go last: until then the graph can be put back."""
    bodies: dict[Node, None] = {}
    left, matches = [plan for one in rewrites for plan in one.plans], list[Match]()
    for one in rewrites:
        left = left[len(one.plans) :]
        matches.append(_commit(one, writer, bodies, left))
    biases = [[writer.current(bias) for bias in one.plans[0].biases] for one in rewrites]
    notes = tables.replace_lookups(writer.host, biases, writer)
    matches = [replace(m, notes=(*m.notes, *more)) for m, more in zip(matches, notes, strict=True)]
    for node in bodies:
        if not node.users:
            _erase_body(node, writer.host.graph)
    return matches


def _reported(
    refused: Sequence[tuple[Candidate, Rejection]], chosen: Sequence[RegionPlan], graph: HostGraph
) -> tuple[Rejection, ...]:
    """The refusals to report: one for each second product.

    Products that are part of a match have none. There is none either for a pair of products that
    belong to two layers, where the second one reads the result of the first layer: a weight stands
    between them, and the second product has a refusal of its own, or the result is used elsewhere.
    """
    matched = {node for plan in chosen for node in plan.region.all_nodes}
    layers = [candidate for candidate, _ in refused if not graph.projects(candidate)]
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


def _commit(
    rewrite: Replacement, writer: Writer, bodies: dict[Node, None], later: Sequence[RegionPlan]
) -> Match:
    """Write a replacement into its graph, and remove what it replaces, but not the bodies that it
    called. later: The plans that are still to be written.
    """
    plan, pairs = rewrite.plans[0], []
    written = writer.write(rewrite.recipe, plan.region.end, plan.candidate.second)
    for number, (part, handle) in enumerate(zip(rewrite.plans, rewrite.results, strict=True), 1):
        end, result = part.region.end, written[handle]
        end.replace_all_uses_with(result)
        writer.replaced[end] = result
        if part.region.sink is not None:
            for node in part.region.sink.again:
                node.replace_all_uses_with(part.region.sink.offsets)
        pairs.append((result.name, end.name))
        bodies.update(dict.fromkeys(_erase(part, writer, [*rewrite.plans[number:], *later])))
    place = places.location(written[rewrite.results[0]])
    module = places.module(*plan.candidate.firsts, *(p.candidate.second for p in rewrite.plans))
    notes = tuple(dict.fromkeys(note for part in rewrite.plans for note in part.notes))
    return Match(
        rewrite.problem,
        place,
        written[rewrite.recipe.attention].name,
        choice=rewrite.choice,
        replaced=rewrite.replaced,
        notes=notes,
        stands_for=pairs[0],
        module=module,
        origins=plan.origins,
        also=tuple(pairs[1:]),
    )


def _erase(plan: RegionPlan, writer: Writer, later: Sequence[RegionPlan]) -> list[Node]:
    """Remove a region, but for what `later` plans share with it, and nodes before it that have no
    other use. Returns the bodies it called.
    """
    region, order, graph = plan.region, writer.host.order, writer.host.graph
    gone = {*region.all_nodes, *region.dead}.difference(region.factories)
    operand = products.operands(plan.candidate.firsts[0])[0]
    for node in region.factories:  # an operand is on the same device, maybe of another dtype
        node.args = (operand, *node.args[1:])
        node.kwargs = {**node.kwargs, "dtype": facts.tensors(node)[0].dtype}
    for node in [n for n in region.sizes if n not in writer.erased]:
        gone.update(writer.replace_size(node, gone))
    bodies = {n for call in (*gone, *plan.pads) for n in call.all_input_nodes if n.op == "get_attr"}
    needed = {node for plan in later for node in plan.region.all_nodes}
    gone -= needed | writer.erased
    for node in sorted(gone, key=order.__getitem__, reverse=True):
        graph.erase_node(node)
    writer.erased |= gone
    for node in sorted({*region.makers, *plan.pads}, key=order.__getitem__, reverse=True):
        if node not in writer.erased and not node.users:
            graph.erase_node(node)
            writer.erased.add(node)
    return list(bodies)


def _erase_body(node: Node, graph: Graph) -> None:
    owned = fx.body_of(node) is not None
    graph.erase_node(node)
    if owned:
        delattr(graph.owning_module, str(node.target))
