"""The current compile: the graph that Dynamo captured, and what was found in it so far.

A backend may get only a part of the captured graph. DDPOptimizer cuts a graph where a bucket of
gradients is full. That is often where a bias is used, and so between two products. It passes the
parts to the backend one by one. The nodes of a part have the fake values of the whole graph, but
other names. `regions` counts the regions of finished compiles.

`summarise` logs one line for each compiled model, which is what one torch.compile returned. It may
have several graphs, and Dynamo may compile a graph twice. So what was found is told when the
model's call ends, and only once.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch.fx import Graph, GraphModule, Node

from ._compat import dynamo
from .graphs import copy_graph
from .patterns import Match, Result
from .patterns.host import facts, places, products
from .rejection import Category, Code, Rejection

log = logging.getLogger("gdpa_inductor")
Analysis = Callable[[GraphModule], Result]  # it rewrites the graph that it is given
Values = Mapping[int, Node]  # the nodes that compute a tensor, by the identity of its fake


@dataclass(frozen=True)
class PartResult:
    result: Result  # of one part, with a rejection for each region that was cut off
    so_far: Result  # of all parts of the captured graph up to this one
    last: bool  # no part follows


@dataclass
class Compile:
    """One captured graph."""

    whole: weakref.ref[Graph]
    result_so_far: Result = field(default_factory=Result)  # of its parts up to this one
    # The values of the products of each region of the whole; None before anyone asked.
    regions: list[tuple[Match, list[int]]] | None = None

    def add(self, part: Values, result: Result, analysis: Analysis) -> PartResult:
        """Add the result of a part, which had these values before the rewrite."""
        whole = self.whole()
        if whole is None or not _is_cut(part, whole):
            self.result_so_far = result
            return PartResult(result, result, True)
        result += Result((), tuple(self._cuts(part, whole, analysis)))
        self.result_so_far += result
        return PartResult(result, self.result_so_far, _end(whole) in part)

    def _cuts(self, part: Values, whole: Graph, analysis: Analysis) -> list[Rejection]:
        """A rejection for each region whose second product is in this part, and another is not."""
        if self.regions is None:
            self.regions = _regions(whole, analysis)
        return [
            _cut(match, part[products[-1]])
            for match, products in self.regions
            if products[-1] in part and not part.keys() >= set(products)
        ]


def under_way() -> Compile | None:
    """The compile that Dynamo is at; None outside of Dynamo."""
    global _latest
    graph = dynamo.captured_graph()
    if graph is None:
        return None
    if _latest is None or _latest.whole() is not graph:
        _latest = Compile(weakref.ref(graph))
    return _latest


_latest: Compile | None = None


def regions() -> int:
    """How many fused regions there are in what was compiled last of each frame, since
    `torch._dynamo.utils.counters` were cleared: recompiles and restarts do not add up.
    Inductor does not call `GDPAPass` for a graph that it has in a cache; those do not count.
    A call of `attention` outside of a compiled model counts as one of its own.
    """
    return sum(dynamo.counters["gdpa_regions"].values())


def values(graph: Graph) -> Values:
    """Of a captured graph, before it is rewritten."""
    # By identity: DDP cuts a graph into parts that hold the very same fake values.
    inside = (n for n in graph.nodes if n.op not in ("placeholder", "output"))
    return {id(facts.value(n)): n for n in inside if facts.tensors(n)}


def _is_cut(part: Values, whole: Graph) -> bool:
    """Whether a graph is a part of another one. If its values were made anew, that is not known."""
    if not dynamo.is_cut_by_ddp():
        return False
    every = values(whole).keys()
    return not (every <= part.keys() or every.isdisjoint(part))


def _end(graph: Graph) -> int:
    """The last value that no other node has. No region ends after it."""
    # An in-place call may return what it was given.
    identities = [id(facts.value(n)) for n in graph.nodes if n.op != "output" and facts.tensors(n)]
    counts = Counter(identities)
    return next(value for value in reversed(identities) if counts[value] == 1)


def _regions(whole: Graph, analysis: Analysis) -> list[tuple[Match, list[int]]]:
    """The regions of the uncut graph, each with the values of its products."""
    if whole.owning_module is None:
        return []
    copy = copy_graph(whole.owning_module)
    nodes = {node.name: node for node in whole.nodes}
    matches = analysis(copy).matches
    gone = nodes.keys() - {node.name for node in copy.graph.nodes}
    regions: list[tuple[Match, list[int]]] = []
    for match in matches:
        if gone.issuperset(match.replaced):  # others are in bodies, which are never cut
            region = [nodes[name] for name in match.replaced]
            regions.append((match, [id(facts.value(n)) for n in region if products.is_product(n)]))
    return regions


def _cut(match: Match, second: Node) -> Rejection:
    return Rejection(
        Code.DDP_CUT,
        "DDP ends a bucket of gradients between the two products, and compiles them apart",
        places.location(second),
        second.name,
        match.module,
        match.score_mod.formula,
        match.problem.score_bytes,
    )


# By compiled model: what was found in each of its compiles; None once that was told.
_results: weakref.WeakKeyDictionary[object, dict[str, Result] | None] = weakref.WeakKeyDictionary()


def summarise(result: Result) -> None:
    """Log, when the compiled model's call ends, what was found in the graph being compiled."""
    call = dynamo.outermost_call()
    if call is None or not (result.matches or result.rejections):
        return
    if call.model not in _results:
        _results[call.model] = {}
        call.at_end.append(functools.partial(_log_summary, weakref.ref(call.model)))
    compiles = _results[call.model]
    if compiles is not None:
        compiles[dynamo.compile_under_way()] = result


def _log_summary(reference: weakref.ref[object]) -> None:
    model = reference()
    results = _results.get(model) if model is not None else None
    if results:
        _results[model] = None
        total = sum(results.values(), Result())
        # Softmax beside attention that is fused is no reason for a warning.
        left = any(r.code.category is not Category.NOT_GDPA for r in total.rejections)
        level = logging.WARNING if left or not total.matches else logging.INFO
        log.log(level, "%s", summary_line(total))


def summary_line(result: Result) -> str:
    """`gdpa: 3 of 4 attention regions fused, 1 not fused (SLOWER); …`."""
    fused, left = len(result.matches), len(result.rejections)
    text = f"gdpa: {fused} of {fused + left} attention regions fused"
    if not left:
        return text
    codes = Counter(rejection.code.name for rejection in result.rejections).most_common()
    why = ", ".join(f"{count} {code}" if count > 1 else code for code, count in codes)
    return f"{text}, {left} not fused ({why}); gdpa_inductor.explain(model)(*inputs) says why"
