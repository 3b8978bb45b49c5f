"""The candidates of a graph, the nodes of each region, and whether it is safe to replace them.

A candidate is a product one of whose operands is made from another product of two activations. Its region holds the
nodes on the way from the one to the other, and whatever changes their storages in place on the way. Everything else
that enters is a leaf. A region is safe to replace if

    nothing outside sees its values, unless what sees them is pure and reaches no output and no mutation;
    no leaf is changed between its use and the second product, by anyone, through any alias;
    its values are changed by its own nodes only;
    the gradient mode is one and the same, and no function transform is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from .. import _compat
from ..rejection import Code
from . import host
from .ambient import Ambient
from .result import Refused

_MANY = 4  # more products than this behind one operand are "several" all the same


@dataclass(frozen=True)
class Candidate:
    """A product `second` and the products that one of its operands is made from."""

    second: Node
    firsts: tuple[Node, ...]


@dataclass(frozen=True)
class Region:
    """nodes: in program order, from the first product to the second. views: pure views that lead to the leaves.

    leaves: what enters. dead: what sees the region and is seen by nothing. sizes: users that read a shape only.
    """

    nodes: tuple[Node, ...]
    views: tuple[Node, ...]
    leaves: tuple[Node, ...]
    dead: tuple[Node, ...]
    sizes: tuple[Node, ...]

    @property
    def second(self) -> Node:
        return self.nodes[-1]


@dataclass
class HostGraph:
    """One graph and what is known of it. `reach`: the products that each node's tensors are made from."""

    graph: Graph
    ambient: Ambient
    order: dict[Node, int] = field(default_factory=dict)
    reach: dict[Node, frozenset[Node]] = field(default_factory=dict)
    mutators: dict[Node, frozenset[int]] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, ambient: Ambient) -> HostGraph:
        found = HostGraph(graph, ambient)
        for position, node in enumerate(graph.nodes):
            found.order[node] = position
            found.reach[node] = found._reached(node)
            changed = host.mutated(node)
            if changed:
                found.mutators[node] = frozenset().union(*map(host.storages, changed))
        return found

    def _reached(self, node: Node) -> frozenset[Node]:
        if node.op not in ("call_function", "call_method") or not host.tensors(node):
            return frozenset()
        found: set[Node] = set()
        for source in node.all_input_nodes:
            if host.is_product(source):
                found |= set() if host.is_weight_product(source) else {source}
            else:
                found |= self.reach[source]
        if found and host.is_opaque(node) and not _keeps_shape(node):
            return frozenset()
        return frozenset(sorted(found, key=self.order.__getitem__)[:_MANY])

    def candidates(self) -> list[Candidate]:
        """In program order; two for a product whose operands both qualify."""
        found: list[Candidate] = []
        for node in self.graph.nodes:
            if not host.is_product(node) or host.is_weight_product(node):
                continue
            for operand in host.operands(node):
                firsts = {operand} if self._is_first(operand) else self.reach[operand]
                firsts = _of_full_size(firsts, operand)
                if firsts:
                    found.append(Candidate(node, tuple(sorted(firsts, key=self.order.__getitem__))))
            if host.name(node) == "einsum" and len(host.operands(node)) > 3:
                found.append(Candidate(node, (node,)))
        return found

    def _is_first(self, node: Node) -> bool:
        return host.is_product(node) and not host.is_weight_product(node)

    # The nodes of a region

    def region(self, candidate: Candidate) -> Region:
        """Raises Refused where the region is not safe to replace."""
        first, second = candidate.firsts[0], candidate.second
        nodes = sorted(self._closure(first, second), key=self.order.__getitem__)
        inside = set(nodes)
        for node in nodes:
            if host.is_opaque(node):
                raise Refused(Code.OPAQUE_CALL, f"{host.describe(node)} acts on the scores and cannot be analysed")
        leaves = _leaves(nodes, inside)
        self._check_kinds(nodes, leaves)
        self._check_ambient(nodes)
        views, leaves = self._through_views(nodes, leaves)
        self._check_mutations(inside, views, leaves, second)
        dead, sizes = self._escapes(nodes, inside)
        return Region(tuple(nodes), tuple(views), tuple(leaves), tuple(dead), tuple(sizes))

    def _closure(self, first: Node, second: Node) -> set[Node]:
        inside = {first, second}
        stack = [second]
        between = [m for m in self.mutators if self.order[first] < self.order[m] < self.order[second]]
        while True:
            while stack:
                for source in stack.pop().all_input_nodes:
                    if source not in inside and first in self.reach[source] and not self._is_first(source):
                        inside.add(source)
                        stack.append(source)
            own = frozenset().union(*(host.storages(n) for n in inside if n is not second))
            stack = [m for m in between if m not in inside and self.mutators[m] & own]
            if not stack:
                return inside
            inside.update(stack)

    def _through_views(self, nodes: list[Node], leaves: list[Node]) -> tuple[list[Node], list[Node]]:
        """Read leaves through views to what they are views of, so that nothing expanded is seen as its full size."""
        views: set[Node] = set()
        found: dict[Node, None] = {}
        stack = list(reversed(leaves))
        grad = self.ambient[nodes[-1]].grad
        while stack:
            leaf = stack.pop()
            if (self.ambient[leaf].grad == grad and _is_view(leaf)) or _is_size_arithmetic(leaf):
                views.add(leaf)
                stack.extend(reversed([n for n in leaf.all_input_nodes if n not in found and n not in views]))
            else:
                found[leaf] = None
        return sorted(views, key=self.order.__getitem__), list(found)

    # Safety

    def _check_kinds(self, nodes: Iterable[Node], leaves: Iterable[Node]) -> None:
        for node in (*nodes, *leaves):
            if not host.is_plain(node):
                kinds = {type(t).__name__ for t in host.tensors(node)}
                raise Refused(Code.TENSOR_KIND, f"{host.describe(node)} is not a plain tensor: {', '.join(kinds)}")
        devices = {t.device for n in (*nodes, *leaves) for t in host.tensors(n) if t.dim() > 0}
        if len(devices) > 1:
            raise Refused(Code.DEVICE, f"operands on {', '.join(sorted(map(str, devices)))}")

    def _check_ambient(self, nodes: list[Node]) -> None:
        last = self.ambient[nodes[-1]]
        for node in nodes:
            state = self.ambient[node]
            if state.transforms:
                raise Refused(Code.OPAQUE_CALL, f"{host.describe(node)} runs inside of a function transform (vmap, grad)")
            if (state.grad, state.inference) != (last.grad, last.inference):
                raise Refused(Code.GRAD_MODE, f"{host.describe(node)} runs in another gradient mode than the second product")

    def _check_mutations(self, inside: set[Node], views: list[Node], leaves: list[Node], second: Node) -> None:
        uses = self._first_uses(inside, views)
        for leaf in leaves:
            held = host.storages(leaf)
            for mutator, changed in self.mutators.items():
                if changed & held and uses.get(leaf, self.order[second]) < self.order[mutator] < self.order[second]:
                    raise Refused(
                        Code.MUTATED_OPERAND, f"{host.describe(mutator)} changes an operand between its use and the output"
                    )
        outer = frozenset().union(*map(host.storages, leaves)) if leaves else frozenset()
        for mutator in self.mutators:
            if mutator in inside and self.mutators[mutator] & outer:
                raise Refused(Code.MUTATED_OPERAND, f"{host.describe(mutator)} changes an operand in place")

    def _first_uses(self, inside: set[Node], views: list[Node]) -> dict[Node, int]:
        """Where the contents of each leaf are first read. A view reads nothing: its users do."""
        uses: dict[Node, int] = {}
        for node in [*sorted(inside, key=self.order.__getitem__), *reversed(views)]:
            position = self.order[node] if node in inside else uses.get(node, self.order[node])
            for source in node.all_input_nodes:
                uses[source] = min(uses.get(source, position), position)
        return uses

    def _escapes(self, nodes: list[Node], inside: set[Node]) -> tuple[list[Node], list[Node]]:
        """Users outside of the region: those that are dead, and those that read a shape. Others are refused."""
        dead: dict[Node, None] = {}
        sizes: dict[Node, None] = {}
        for node in nodes[:-1]:
            for user in node.users:
                if user in inside or user in dead:
                    continue
                if host.name(user) in host.SHAPES and not host.tensors(user):
                    sizes[user] = None
                elif not self._is_dead(user, inside, dead):
                    raise Refused(Code.SCORES_ESCAPE, f"{host.describe(user)} uses the scores besides the second product")
        return sorted(dead, key=self.order.__getitem__), list(sizes)

    def _is_dead(self, user: Node, inside: set[Node], dead: dict[Node, None]) -> bool:
        """Nothing sees it: every transitive user is pure and none is an output. Adds what it finds to `dead`."""
        seen: dict[Node, None] = {user: None}
        stack = [user]
        while stack:
            node = stack.pop()
            if node in inside or node.op == "output" or not _is_pure(node) or node in self.mutators:
                return False
            for next_user in node.users:
                if next_user not in seen and next_user not in dead:
                    seen[next_user] = None
                    stack.append(next_user)
        dead.update(seen)
        return True


def _keeps_shape(node: Node) -> bool:
    """An opaque call that acts like a point-wise function: one result, shaped as an operand."""
    if node.op == "call_function" and _compat.has_plain_bodies(node.target):
        return False
    shapes = [t.shape for t in host.tensors(node)]
    given = [t.shape for n in node.all_input_nodes for t in host.tensors(n)]
    return len(shapes) == 1 and any(len(s) == len(shapes[0]) and s == shapes[0] for s in given)


def _of_full_size(firsts: Iterable[Node], operand: Node) -> set[Node]:
    """Of several products behind an operand, the one that has all its dims, if it is the only one: the others are biases."""
    given = set(firsts)
    ranks = {n: sum(not (isinstance(s, int) and s == 1) for s in host.tensors(n)[0].shape) for n in given}
    full = {n for n, rank in ranks.items() if rank == max(ranks.values())}
    return full if len(full) == 1 else given


def _is_pure(node: Node) -> bool:
    known = node.op in ("call_function", "call_method") and not host.is_opaque(node) and not host.is_random(node)
    return known and bool(host.tensors(node) or host.name(node) in host.SHAPES)


def _is_view(node: Node) -> bool:
    """A call that only looks at its first argument's storage in another shape."""
    return (
        node.op in ("call_function", "call_method")
        and host.name(node) in host.VIEWS
        and not host.is_opaque(node)
        and len(host.tensors(node)) == 1
        and bool(node.all_input_nodes)
        and not any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values()))
        and host.storages(node) <= host.storages(node.all_input_nodes[0])
        and host.is_plain(node)
    )


def _is_size_arithmetic(node: Node) -> bool:
    """A call that makes a tuple of sizes."""
    value = host.value(node)
    return node.op == "call_function" and isinstance(value, (tuple, list)) and not host.tensors(node)


def _leaves(nodes: Iterable[Node], inside: set[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside:
                found[source] = None
    return list(found)
