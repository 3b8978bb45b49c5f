"""Find the candidates of a graph: products with an operand that is made from another product.

`HostGraph` is a graph with the facts of a single scan: the order of nodes, and the products that
each node is made from. It also knows which storages calls change, and which masks are made from
indices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch.fx import Graph, GraphModule, Node

from ..._compat import fx
from . import facts, functions, products, row_sums, writes
from .ambient import Ambient
from .mixing import NO_WEIGHTS
from .sizes import same

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
    spread: dict[Node, bool] = field(default_factory=dict)
    known: list[Candidate] | None = None

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
            host.mutators[node] = _closure(written, related)
        return host

    def wants(self, node: Node) -> bool:
        """True if a node may want gradients.

        In an exported graph only the inputs behind the node tell. No call in between may end the
        history, as a cast to integers does.
        """
        if facts.requires_grad(node):
            return True
        behind, stack = set[Node](), [node]
        while stack:
            node = stack.pop()
            ends = facts.name(node) in functions.HISTORYLESS or not facts.may_want_gradients(node)
            if node not in behind and not ends:
                behind.add(node)
                stack += node.all_input_nodes
        return not behind.isdisjoint(self.learns)

    def written(
        self, storages: Collection[int], after: int, before: int | None = None
    ) -> list[Node]:
        """The calls between two places that change elements of these storages."""
        return [
            m
            for m, changed in self.mutators.items()
            if not changed.isdisjoint(storages)
            and facts.name(m) not in functions.CUTS
            and after < self.order[m]
            and (before is None or self.order[m] < before)
        ]

    def _reached(self, node: Node) -> frozenset[Node]:
        if node.op not in ("call_function", "call_method") or not facts.tensors(node):
            return frozenset()
        firsts: set[Node] = set()
        for source in node.all_input_nodes:
            if products.is_product(source):
                firsts |= set() if products.is_weight_product(source) else {source}
            else:
                firsts |= self.reach[source]
        if firsts and facts.is_opaque(node) and not _keeps_shape(node):
            return frozenset()
        return frozenset(sorted(firsts, key=self.order.__getitem__)[:_MANY])

    def candidates(self) -> list[Candidate]:
        """The candidates, in program order. A product has two if both of its operands qualify."""
        if self.known is None:
            self.known = self._candidates()
        return self.known

    def _candidates(self) -> list[Candidate]:
        candidates: list[Candidate] = []
        for node in self.graph.nodes:
            if not products.is_product(node) or products.is_weight_product(node):
                continue
            for operand in products.operands(node):
                firsts = {operand} if self.is_first(operand) else self.reach[operand]
                firsts = self._scores_of(operand, firsts)
                if firsts:
                    candidates.append(
                        Candidate(node, tuple(sorted(firsts, key=self.order.__getitem__)))
                    )
            if facts.name(node) == "einsum" and len(products.operands(node)) > 3:
                candidates.append(Candidate(node, (node,)))
        return candidates

    def siblings(self, candidate: Candidate) -> list[Node]:
        """The second products that multiply what is made of the same first products.

        Sums of rows by a product with ones are none: a column of ones beside V is better.
        """
        firsts = set(candidate.firsts)
        seconds = [c.second for c in self.candidates() if firsts <= set(c.firsts)]
        if row_sums.multiplies_ones(candidate.second):
            return []
        return [n for n in seconds if n is not candidate.second and not row_sums.multiplies_ones(n)]

    def flat(self) -> list[Node]:
        """Products that would be second products if 2-D inputs of the graph did not count as
        weights.

        One operand is made from Q Kᵀ, with K an input as it is given, and the other is an input
        too.
        """
        matmuls = [n for n in self.graph.nodes if products.is_product(n)]
        operands = {n: products.operands(n) for n in matmuls if facts.name(n) != "linear"}
        firsts = {
            n
            for n, factors in operands.items()
            if all(map(products.is_flat_input, factors)) and facts.name(factors[-1]) in _TRANSPOSES
        }
        return [
            n
            for n, factors in operands.items()
            if any(map(products.is_flat_input, factors))
            and any(x not in firsts and self._derives_from(x, firsts) for x in factors)
        ]

    def _derives_from(self, node: Node, firsts: Collection[Node]) -> bool:
        """True if a tensor is made from one of these products, without a reduction."""
        seen, stack = {node}, [node]
        while stack:
            node = stack.pop()
            if node in firsts:
                return True
            if facts.name(node) not in NO_WEIGHTS and not facts.is_opaque(node):
                stack += [n for n in node.all_input_nodes if n not in seen]
                seen.update(stack)
        return False

    def is_one_product(self, firsts: Sequence[Node]) -> bool:
        """True if these products may be copies of one: they multiply the same tensors in one order.

        The matcher then compares them element by element.
        """
        operands = [[products.origin(n) for n in products.operands(first)] for first in firsts]
        return all(one == operands[0] for one in operands)

    def projects(self, candidate: Candidate) -> bool:
        """True if a weight is multiplied between the first product and the second.

        The two products then belong to two layers. A convolution is such a weight.
        """
        between = (n for n in self._back(candidate) if n not in candidate.firsts)
        return any(map(products.multiplies_a_weight, between))

    def reduction(self, candidate: Candidate) -> Node | None:
        """A normalisation or reduction on the way from the first products, if every way has one.

        It is the last of the nearest way.
        """
        nearest = None
        ends = lambda node: facts.name(node) in NO_WEIGHTS
        for node in self._back(candidate, ends):
            if node in candidate.firsts:
                return None
            if nearest is None and ends(node):
                nearest = node
        return nearest

    def _back(
        self, candidate: Candidate, ends: Callable[[Node], bool] = lambda node: False
    ) -> Iterator[Node]:
        """Walk from the second product back to the first ones, which are yielded too.

        The nearest nodes come first. The walk does not go past a node for which `ends` is true.
        """
        seen, queue = {candidate.second}, deque([candidate.second])
        while queue:
            for node in queue.popleft().all_input_nodes:
                is_first = node in candidate.firsts
                leads = is_first or not self.reach[node].isdisjoint(candidate.firsts)
                if not leads or node in seen:
                    continue
                seen.add(node)
                yield node
                if not is_first and not ends(node):
                    queue.append(node)

    def is_first(self, node: Node) -> bool:
        return products.is_product(node) and not products.is_weight_product(node)

    def _scores_of(self, operand: Node, firsts: Iterable[Node]) -> set[Node]:
        """The product that gives the scores, among several that an operand is made from.

        A gate or a bias may be made from a product too. Such a product is reached through a
        reduction only, or has fewer dims.
        """
        scores = set(firsts)
        if len(scores) > 1:
            scores = scores & self._pointwise_reach(operand) or scores
        ranks = {n: rank_of(n) for n in scores}
        full = {n for n, rank in ranks.items() if rank == max(ranks.values())}
        return full if len(full) == 1 else scores

    def _pointwise_reach(self, operand: Node) -> set[Node]:
        """The products that an operand is made from without a reduction."""
        firsts: set[Node] = set()
        seen = {operand}
        stack = [operand]
        while stack:
            node = stack.pop()
            if self.is_first(node):
                firsts.add(node)
            elif facts.name(node) not in NO_WEIGHTS:
                stack += [
                    n
                    for n in node.all_input_nodes
                    if n not in seen and (self.reach[n] or self.is_first(n))
                ]
                seen.update(stack)
        return firsts

    # Masks and biases that are made of indices

    def spreads(self, node: Node) -> bool:
        """True if a mask or bias is made pointwise from smaller tensors and never changes later."""
        if node in self.spread:
            return self.spread[node]
        self.spread[node] = self._is_spread(node)
        return self.spread[node]

    def _is_spread(self, node: Node) -> bool:
        called = facts.name(node)
        pointwise = (
            called in functions.POINTWISE or called in functions.CASTS or _cuts_nothing(node)
        )
        if (
            not (pointwise or _is_creation(node))
            or len(facts.tensors(node)) != 1
            or not facts.is_plain(node)
        ):
            return False
        if any(
            facts.storages(node) & changed for changed in self.mutators.values()
        ) or node.kwargs.get("out"):
            return False
        if _is_creation(node):
            return True
        rank = rank_of(node)
        inputs = [n for n in node.all_input_nodes if facts.tensors(n)]
        if called in ("max", "min") and len(inputs) < 2:  # a reduction
            return False
        return bool(inputs) and all(
            rank_of(n) < rank or self.spreads(_behind_views(n)) for n in inputs
        )


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


def _closure(storages: Iterable[int], related: dict[int, set[int]]) -> frozenset[int]:
    result = set(storages)
    stack = list(result)
    while stack:
        new = related.get(stack.pop(), set()) - result
        result |= new
        stack.extend(new)
    return frozenset(result)


def _keeps_shape(node: Node) -> bool:
    """True if an opaque call looks pointwise: it has one result, with the shape of an operand.

    A body with a product may hold an attention of its own.
    """
    if node.op == "call_function" and fx.has_plain_bodies(node.target):
        attributes = [fx.body_of(n) for n in node.all_input_nodes if n.op == "get_attr"]
        bodies = [part for body in attributes if body is not None for part in body.modules()]
        graphs = [body.graph for body in bodies if isinstance(body, GraphModule)]
        if any(products.is_product(n) for graph in graphs for n in graph.nodes):
            return False
    shapes = [t.shape for t in facts.tensors(node)]
    inputs = [t.shape for n in node.all_input_nodes for t in facts.tensors(n)]
    return len(shapes) == 1 and any(
        len(shape) == len(shapes[0]) and all(map(same, shape, shapes[0])) for shape in inputs
    )


def _is_creation(node: Node) -> bool:
    """True if a call depends on indices only. `new_tensor` may read a tensor's dtype and device."""
    if fx.counts(node.target, node.args):
        return True
    has_inputs = any(facts.tensors(n) for n in node.all_input_nodes)
    return facts.name(node) in functions.CREATIONS and not has_inputs


def _cuts_nothing(node: Node) -> bool:
    """A `detach` of what has no gradient."""
    return facts.name(node) == "detach" and not any(
        map(facts.may_want_gradients, node.all_input_nodes)
    )


def _behind_views(node: Node) -> Node:
    while node.op in ("call_function", "call_method") and facts.is_view(node):
        node = node.all_input_nodes[0]
    return node


def rank_of(node: Node) -> int:
    """How many dims are more than 1 long."""
    return sum(not (isinstance(size, int) and size == 1) for size in facts.tensors(node)[0].shape)
