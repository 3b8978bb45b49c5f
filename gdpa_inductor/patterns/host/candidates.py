"""Find the candidates of a graph: products with an operand that is made from another product.

`HostGraph` is a graph with the facts of a single scan: the order of nodes, and the products that
each node is made from. It also knows which storages calls change, and which masks are made from
indices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

from ..._compat import fx
from . import facts, functions, products, writes
from .ambient import Ambient
from .functions import NO_WEIGHTS
from .sizes import same_shape, smaller

_TRANSPOSES = ("T", "mT", "t", "transpose", "permute", "swapaxes", "swapdims")
_MANY = 4  # so many of the products that an operand is made from are kept; more are "several" too


@dataclass(frozen=True)
class Candidate:
    """A product, `second`, and the products that one of its operands is made from."""

    second: Node
    firsts: tuple[Node, ...]


@dataclass
class HostGraph:
    """One graph, with the facts of a scan.

    reach:     The products that each node's tensors are made from.
    mutators:  The storages that each in-place call changes.
    later:     The storages that are changed after the graph, if a calling graph says so.
    learns:    The inputs that want gradients, by themselves or by a calling graph.
    """

    graph: Graph
    ambient: Ambient
    order: dict[Node, int] = field(default_factory=dict)
    reach: dict[Node, frozenset[Node]] = field(default_factory=dict)
    mutators: dict[Node, frozenset[int]] = field(default_factory=dict)
    later: frozenset[int] = frozenset()
    learns: frozenset[Node] = frozenset()
    spread: dict[tuple[Node, frozenset[Node]], bool] = field(default_factory=dict)

    @staticmethod
    def of(
        graph: Graph,
        ambient: Ambient,
        later: frozenset[int] = frozenset(),
        learns: frozenset[Node] = frozenset(),
    ) -> HostGraph:
        inputs = [n for n in graph.nodes if n.op in ("placeholder", "get_attr")]
        learns |= set(filter(facts.requires_grad, inputs))
        host = HostGraph(graph, ambient, later=later, learns=learns)
        related: dict[int, set[int]] = {}
        for position, node in enumerate(graph.nodes):
            host.order[node] = position
            host.reach[node] = host._reached(node)
            changed = writes.mutated(node)
            if changed:
                host.mutators[node] = frozenset().union(*map(facts.written_storages, changed))
            _relate(node, related)
        for node, written in host.mutators.items() if related else ():
            closure = facts.walk(written, lambda storage: related.get(storage, ()))
            host.mutators[node] = frozenset(closure)
        return host

    def wants(self, node: Node) -> bool:
        """True if a node may want gradients.

        In an exported graph only the inputs behind the node tell. No call in between may end the
        history, as a cast to integers does.
        """

        def has_history(node: Node) -> bool:
            cuts = facts.name(node) in functions.HISTORYLESS
            return not cuts and facts.may_want_gradients(node)

        if facts.requires_grad(node):
            return True
        behind = facts.walk([node], lambda n: n.all_input_nodes if has_history(n) else ())
        return any(n in self.learns and has_history(n) for n in behind)

    def written(
        self, storages: Collection[int], after: int, before: int | None = None
    ) -> list[Node]:
        """The calls between two places that change elements of these storages."""
        end = len(self.order) if before is None else before
        calls = [m for m, changed in self.mutators.items() if not changed.isdisjoint(storages)]
        between = [m for m in calls if after < self.order[m] < end]
        return [m for m in between if facts.name(m) not in functions.CUTS]

    def changes_after(self, storages: Collection[int], place: int) -> bool:
        """True if elements of these storages change after a place, or after the graph."""
        return not self.later.isdisjoint(storages) or bool(self.written(storages, place))

    def _reached(self, node: Node) -> frozenset[Node]:
        if not facts.is_call(node) or not facts.tensors(node):
            return frozenset()
        firsts: set[Node] = set()
        for source in node.all_input_nodes:
            if not products.is_product(source):
                firsts |= self.reach[source]
            elif not products.is_weight_product(source):
                firsts.add(source)
        if firsts and facts.is_opaque(node) and not _keeps_shape(node):
            return frozenset()
        return frozenset(self.in_order(firsts)[:_MANY])

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self.order.__getitem__)

    @functools.cached_property
    def candidates(self) -> list[Candidate]:
        """The candidates, in program order. A product has two if both of its operands qualify."""
        candidates: list[Candidate] = []
        for node in filter(products.of_activations, self.graph.nodes):
            operands = products.operands(node)
            for operand in operands:
                is_first = products.of_activations(operand)
                firsts = self._scores_of(operand, {operand} if is_first else self.reach[operand])
                if firsts:
                    candidates.append(Candidate(node, tuple(self.in_order(firsts))))
            if facts.name(node) == "einsum" and len(operands) > 3:
                candidates.append(Candidate(node, (node,)))
        return candidates

    def siblings(self, candidate: Candidate) -> list[Node]:
        """The second products that multiply what is made of the same first products.

        Sums of rows by a product with ones are none: a column of ones beside V is better.
        """
        if products.multiplies_ones(candidate.second):
            return []
        firsts = set(candidate.firsts)
        seconds = [c.second for c in self.candidates if firsts <= set(c.firsts)]
        return [n for n in seconds if n is not candidate.second and not products.multiplies_ones(n)]

    def flat(self) -> list[Node]:
        """Products that would be second products if 2-D inputs of the graph were no weights.

        One operand is made from Q Kᵀ, with K an input as it is, and the other is an input too.
        """
        matmuls = filter(products.is_product, self.graph.nodes)
        operands = {n: products.operands(n) for n in matmuls if facts.name(n) != "linear"}
        firsts = {
            n
            for n, factors in operands.items()
            if all(map(products.is_flat_input, factors)) and facts.name(factors[-1]) in _TRANSPOSES
        }

        def inputs(node: Node) -> Sequence[Node]:
            reduces = facts.name(node) in NO_WEIGHTS or facts.is_opaque(node)
            return () if reduces or node in firsts else node.all_input_nodes

        def derives(node: Node) -> bool:
            return node not in firsts and any(n in firsts for n in facts.walk([node], inputs))

        return [
            n
            for n, factors in operands.items()
            if any(map(products.is_flat_input, factors)) and any(map(derives, factors))
        ]

    def is_one_product(self, firsts: Sequence[Node]) -> bool:
        """True if these products may be copies of one: they multiply the same tensors in one order.

        The matcher then compares them element by element.
        """
        operands = [[products.origin(n) for n in products.operands(first)] for first in firsts]
        return all(one == operands[0] for one in operands)

    def projection(self, candidate: Candidate) -> Node | None:
        """The product with a weight between the first product and the second, or a convolution.

        The two products then belong to two layers, or the weights are mixed.
        """
        between = (n for n in self._back(candidate) if n not in candidate.firsts)
        is_one = lambda node: (
            facts.name(node) in functions.CONVOLUTIONS
            or (products.is_product(node) and products.is_weight_product(node))
        )
        return next(filter(is_one, between), None)

    def reduction(self, candidate: Candidate) -> Node | None:
        """A normalisation or reduction on the way from the first products, if every way has one.

        It is the last of the nearest way.
        """
        ends = lambda node: facts.name(node) in NO_WEIGHTS
        way = list(self._back(candidate, ends))
        if not set(way).isdisjoint(candidate.firsts):
            return None
        return next(filter(ends, way), None)

    def _back(
        self, candidate: Candidate, ends: Callable[[Node], bool] = lambda node: False
    ) -> Iterator[Node]:
        """Walk from the second product back to the first ones, which are yielded too.

        The nearest nodes come first. The walk does not go past a node for which `ends` is true.
        """
        firsts = candidate.firsts

        def leading(node: Node) -> list[Node]:
            inputs = node.all_input_nodes
            return [n for n in inputs if n in firsts or not self.reach[n].isdisjoint(firsts)]

        return facts.walk(
            leading(candidate.second), lambda n: () if n in firsts or ends(n) else leading(n)
        )

    def _scores_of(self, operand: Node, firsts: Iterable[Node]) -> set[Node]:
        """The product that gives the scores, among several that an operand is made from.

        A gate or a bias may be made from a product too. Such a product is reached through a
        reduction only, or has fewer dims.
        """

        def pointwise_inputs(node: Node) -> list[Node]:
            if products.of_activations(node) or facts.name(node) in NO_WEIGHTS:
                return []
            return [n for n in node.all_input_nodes if self.reach[n] or products.of_activations(n)]

        scores = set(firsts)
        if len(scores) > 1:
            pointwise = {n for n in facts.walk([operand], pointwise_inputs) if n in scores}
            scores = pointwise or scores
        ranks = {n: rank_of(n) for n in scores}
        full = {n for n, rank in ranks.items() if rank == max(ranks.values())}
        return full if len(full) == 1 else scores

    # Masks and biases that are made of indices and of tables

    @functools.cached_property
    def rearranging(self) -> frozenset[Node]:
        return frozenset(filter(rearranges, self.graph.nodes))

    @functools.cached_property
    def unrolled(self) -> set[Node]:
        """The calls that make a bias by rearranging smaller tables, and those that lead to one."""
        unrolled: set[Node] = set()
        for node in reversed(self.graph.nodes):
            if node in self.rearranging and (
                not unrolled.isdisjoint(node.users) or _is_unrolled(node, self.rearranging)
            ):
                unrolled.add(node)
        return unrolled

    def looks_up(self, node: Node) -> bool:
        """Whether a call looks up in a smaller table of reals: at an index of integers, or by calls
        that rearrange it.
        """
        return node in self.unrolled or _looks_up(node)

    def spreads(self, node: Node, stored: frozenset[Node] = frozenset()) -> bool:
        """True if a mask or bias is made pointwise from smaller tensors and never changes later.

        stored: Look-ups whose results are operands, so that nothing is made from their tables.
        """
        if (node, stored) not in self.spread:
            self.spread[node, stored] = node not in stored and self._is_spread(node, stored)
        return self.spread[node, stored]

    def _is_spread(self, node: Node, stored: frozenset[Node]) -> bool:
        called, is_creation = facts.name(node), _is_creation(node)
        copies = called in ("contiguous", "clone")
        pointwise = copies or called in functions.POINTWISE or called in functions.CASTS
        is_lookup = self.looks_up(node)
        if not (is_creation or pointwise or _cuts_nothing(node) or is_lookup):
            return False
        if len(facts.tensors(node)) != 1 or not facts.is_plain(node) or node.kwargs.get("out"):
            return False
        own = facts.storages(node)
        if any(own & changed for changed in self.mutators.values()):
            return False
        if is_creation:
            return True
        inputs = [n for n in node.all_input_nodes if facts.tensors(n)]
        is_reduction = called in ("max", "min") and len(inputs) < 2
        if is_reduction or not inputs:
            return False
        if is_lookup:
            return True
        rank = rank_of(node)
        return all(rank_of(n) < rank or self.spreads(behind_views(n), stored) for n in inputs)


def _relate(node: Node, related: dict[int, set[int]]) -> None:
    """Record storages that may be the same at run time, because symbolic strides decide that."""
    if not writes.may_alias(node):
        return
    (source,) = facts.tensors(node.all_input_nodes[0])
    if all(isinstance(size, int) for size in (*source.shape, *source.stride())):
        return
    for one in facts.storages(node.all_input_nodes[0]):
        for other in facts.storages(node):
            related.setdefault(one, set()).add(other)
            related.setdefault(other, set()).add(one)


def _keeps_shape(node: Node) -> bool:
    """True if an opaque call looks pointwise: it has one result, with the shape of an operand.

    A body with a product may hold an attention of its own.
    """
    if node.op == "call_function" and fx.has_plain_bodies(node.target):
        parts = [part for body in facts.bodies_of(node) for part in body.modules()]
        graphs = [part.graph for part in parts if isinstance(part, GraphModule)]
        if any(products.is_product(n) for graph in graphs for n in graph.nodes):
            return False
    outputs = [t.shape for t in facts.tensors(node)]
    inputs = [t.shape for n in node.all_input_nodes for t in facts.tensors(n)]
    return len(outputs) == 1 and any(same_shape(shape, outputs[0]) for shape in inputs)


def _is_creation(node: Node) -> bool:
    """True if a call depends on indices only. `new_tensor` may read a tensor's dtype and device."""
    if fx.counts(node.target, node.args):
        return True
    has_inputs = any(map(facts.tensors, node.all_input_nodes))
    return facts.name(node) in functions.CREATIONS and not has_inputs


def _cuts_nothing(node: Node) -> bool:
    """A `detach` of what has no gradient."""
    wanted = any(map(facts.may_want_gradients, node.all_input_nodes))
    return facts.name(node) == "detach" and not wanted


def rearranges(node: Node) -> bool:
    """Whether a call only rearranges the elements of a tensor of reals."""
    if not facts.is_call(node) or facts.name(node) not in functions.REARRANGES:
        return False
    values = [t for n in (node, *node.all_input_nodes) for t in facts.tensors(n)]
    empty = any(isinstance(size, int) and size == 0 for t in values for size in t.shape)
    return len(values) > 1 and not empty and all(t.is_floating_point() for t in values)


def _is_unrolled(node: Node, rearranging: Collection[Node]) -> bool:
    behind = facts.walk([node], lambda n: n.all_input_nodes if n in rearranging else ())
    return not facts.is_view(node) and any(
        rank_of(n) < rank_of(node) and smaller(facts.tensors(n)[0], facts.tensors(node)[0])
        for n in behind
        if len(facts.tensors(n)) == 1
    )


def _looks_up(node: Node) -> bool:
    """Whether a call looks up in a smaller table of reals, at an index of integers."""
    inputs = [t for n in node.all_input_nodes for t in facts.tensors(n)]
    (result,) = facts.tensors(node) if indexes(node) else (None,)
    return result is not None and all(
        smaller(table, result) for table in inputs if table.is_floating_point()
    )


def indexes(node: Node) -> bool:
    """Whether a call reads elements of a tensor of reals, at an index of integers."""
    if facts.name(node) not in functions.LOOKUPS or len(facts.tensors(node)) != 1:
        return False
    inputs = [t for n in node.all_input_nodes for t in facts.tensors(n)]
    tables = [t for t in inputs if t.is_floating_point()]
    indices = {t.dtype for t in inputs if not t.is_floating_point()}
    return len(tables) == 1 and bool(indices) and indices.isdisjoint((torch.bool, torch.uint8))


def is_index(node: Node) -> bool:
    """Whether a tensor, or a view of it, is an index into a table."""
    return any(_looks_up(user) or (facts.is_view(user) and is_index(user)) for user in node.users)


def behind_views(node: Node) -> Node:
    while facts.is_view(node):
        node = node.all_input_nodes[0]
    return node


def rank_of(node: Node) -> int:
    """How many dims are more than 1 long."""
    return sum(not (isinstance(size, int) and size == 1) for size in facts.tensors(node)[0].shape)
