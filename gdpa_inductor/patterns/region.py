"""The candidates of a graph, the nodes of each region, and whether it is safe to replace them.

A candidate is a product one of whose operands is made from another product of two activations. Its
region holds the nodes on the way from the one to the other, and whatever changes their storages in
place on the way. Everything else that enters is a leaf. A region is safe to replace if

    nothing outside sees its values, unless what sees them is pure and reaches no output and no
    mutation; no leaf is changed between its use and the second product, by anyone, through any
    alias; its values are changed by its own nodes only; the gradient mode is one and the same, and
    no function transform is open.
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
from .vocabulary import MIXING, REASONS

# What is refused by its name, so that softmax attention costs nothing: a shadow would say the same.
_NO_WEIGHTS = {
    **dict.fromkeys(
        ["softmin", "gumbel_softmax", "normalize", "layer_norm", "group_norm", "rms_norm"],
        Code.NORMALISED,
    ),
    **{name: code for name, code in MIXING.items() if code in (Code.NORMALISED, Code.REDUCTION)},
}
for _binary_as_well in ("max", "min"):
    del _NO_WEIGHTS[_binary_as_well]
_MANY = 4  # more products than this behind one operand are "several" all the same


@dataclass(frozen=True)
class Candidate:
    """A product `second` and the products that one of its operands is made from."""

    second: Node
    firsts: tuple[Node, ...]


@dataclass(frozen=True)
class Region:
    """nodes: in program order, from the first product to the second. makers: pure calls that lead
    from leaves to them.

    leaves: what enters. dead: what sees the region and is seen by nothing. sizes: users that read a
    shape only.
    """

    nodes: tuple[Node, ...]
    makers: tuple[Node, ...]
    leaves: tuple[Node, ...]
    dead: tuple[Node, ...]
    sizes: tuple[Node, ...]

    @property
    def second(self) -> Node:
        return self.nodes[-1]


@dataclass
class HostGraph:
    """One graph and what is known of it. `reach`: the products that each node's tensors are made
    from.
    """

    graph: Graph
    ambient: Ambient
    order: dict[Node, int] = field(default_factory=dict)
    reach: dict[Node, frozenset[Node]] = field(default_factory=dict)
    mutators: dict[Node, frozenset[int]] = field(default_factory=dict)
    spread: dict[Node, bool] = field(default_factory=dict)

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
                firsts = self._scores_of(operand, firsts)
                if firsts:
                    found.append(Candidate(node, tuple(sorted(firsts, key=self.order.__getitem__))))
            if host.name(node) == "einsum" and len(host.operands(node)) > 3:
                found.append(Candidate(node, (node,)))
        return found

    def _is_first(self, node: Node) -> bool:
        return host.is_product(node) and not host.is_weight_product(node)

    def _scores_of(self, operand: Node, firsts: Iterable[Node]) -> set[Node]:
        """Of several products behind an operand, the one that is its scores, if there is only one.

        One that is reached through a reduction only, or has fewer dims, is what a gate or a bias is
        made from.
        """
        given = set(firsts)
        if len(given) > 1:
            given = given & self._pointwise_reach(operand) or given
        ranks = {n: _rank(n) for n in given}
        full = {n for n, rank in ranks.items() if rank == max(ranks.values())}
        return full if len(full) == 1 else given

    def _pointwise_reach(self, operand: Node) -> set[Node]:
        """The products that an operand is made from by no reduction."""
        found: set[Node] = set()
        seen = {operand}
        stack = [operand]
        while stack:
            node = stack.pop()
            if self._is_first(node):
                found.add(node)
            elif host.name(node) not in _NO_WEIGHTS:
                stack += [
                    n
                    for n in node.all_input_nodes
                    if n not in seen and (self.reach[n] or self._is_first(n))
                ]
                seen.update(stack)
        return found

    # The nodes of a region

    def region(self, candidate: Candidate, depth: int) -> Region:
        """The region of a candidate; `depth` says through what leaves are read (see `_upstream`).

        Raises Refused where it is not safe to replace.
        """
        first, second = candidate.firsts[0], candidate.second
        nodes = sorted(self._closure(first, second), key=self.order.__getitem__)
        inside = set(nodes)
        for node in nodes:
            if host.is_opaque(node):
                raise Refused(
                    Code.OPAQUE_CALL,
                    f"{host.describe(node)} acts on the scores and cannot be analysed",
                )
            code = _NO_WEIGHTS.get(host.name(node))
            if code is not None:
                raise Refused(code, f"{host.describe(node)} {REASONS[code]}")
        leaves = _leaves(nodes, inside)
        self._check_kinds(nodes, leaves)
        self._check_ambient(nodes)
        makers, leaves = self._upstream(nodes, inside, leaves, depth)
        self._check_mutations(inside, makers, leaves, second)
        dead, sizes = self._escapes(nodes, inside)
        return Region(tuple(nodes), tuple(makers), tuple(leaves), tuple(dead), tuple(sizes))

    def _closure(self, first: Node, second: Node) -> set[Node]:
        inside = {first, second}
        stack = [second]
        between = [
            m for m in self.mutators if self.order[first] < self.order[m] < self.order[second]
        ]
        while True:
            while stack:
                for source in stack.pop().all_input_nodes:
                    if (
                        source not in inside
                        and first in self.reach[source]
                        and not self._is_first(source)
                    ):
                        inside.add(source)
                        stack.append(source)
            own = frozenset().union(*(host.storages(n) for n in inside if n is not second))
            stack = [m for m in between if m not in inside and self.mutators[m] & own]
            if not stack:
                return inside
            inside.update(stack)

    def _upstream(
        self, nodes: list[Node], inside: set[Node], leaves: list[Node], depth: int
    ) -> tuple[list[Node], list[Node]]:
        """Read leaves through what they are made by: (the makers, the new leaves).

        At depth 1 through views and exact upcasts, so that nothing is seen expanded or widened; at
        depth 2 through point-wise functions too whose result is larger than what they are made
        from: masks of indices and lengths.
        """
        makers: set[Node] = set()
        found: dict[Node, None] = {}
        stack = list(reversed(leaves))
        state = self.ambient[nodes[-1]]
        while stack:
            leaf = stack.pop()
            known = (
                (leaf.op in ("call_function", "call_method"))
                and not host.is_opaque(leaf)
                and leaf not in self.mutators
            )
            same_mode = self.ambient[leaf].grad == state.grad and self.ambient[leaf].transforms == 0
            seen = (depth >= 1 and (host.is_view(leaf) or _is_upcast(leaf))) or (
                depth >= 2 and self._spreads(leaf)
            )
            if (known and same_mode and seen) or (known and _is_size_arithmetic(leaf)):
                makers.add(leaf)
            else:
                found[leaf] = None
                continue
            stack.extend(
                n
                for n in reversed(leaf.all_input_nodes)
                if n not in found and n not in makers and n not in inside
            )
        return sorted(makers, key=self.order.__getitem__), list(found)

    def _spreads(self, node: Node) -> bool:
        """A mask or bias that is made element by element from smaller tensors, and that nothing
        changes afterwards.
        """
        if node in self.spread:
            return self.spread[node]
        self.spread[node] = self._is_spread(node)
        return self.spread[node]

    def _is_spread(self, node: Node) -> bool:
        called = host.name(node)
        pointwise = called in host.POINTWISE or called in host.CASTS
        if (
            not (pointwise or called in host.CREATIONS)
            or len(host.tensors(node)) != 1
            or not host.is_plain(node)
        ):
            return False
        if any(
            host.storages(node) & changed for changed in self.mutators.values()
        ) or node.kwargs.get("out"):
            return False
        if called in host.CREATIONS:
            return not any(host.tensors(n) for n in node.all_input_nodes)
        rank = _rank(node)
        given = [n for n in node.all_input_nodes if host.tensors(n)]
        return bool(given) and all(
            _rank(n) < rank or self._spreads(_behind_views(n)) for n in given
        )

    # Safety

    def _check_kinds(self, nodes: Iterable[Node], leaves: Iterable[Node]) -> None:
        for node in (*nodes, *leaves):
            if not host.is_plain(node):
                kinds = {type(t).__name__ for t in host.tensors(node)}
                raise Refused(
                    Code.TENSOR_KIND,
                    f"{host.describe(node)} is not a plain tensor: {', '.join(kinds)}",
                )
        devices = {t.device for n in (*nodes, *leaves) for t in host.tensors(n) if t.dim() > 0}
        if len(devices) > 1:
            raise Refused(Code.DEVICE, f"operands on {', '.join(sorted(map(str, devices)))}")

    def _check_ambient(self, nodes: list[Node]) -> None:
        last = self.ambient[nodes[-1]]
        for node in nodes:
            state = self.ambient[node]
            if state.transforms:
                raise Refused(
                    Code.OPAQUE_CALL,
                    f"{host.describe(node)} runs inside of a function transform (vmap, grad)",
                )
            if (state.grad, state.inference) != (last.grad, last.inference):
                raise Refused(
                    Code.GRAD_MODE,
                    f"{host.describe(node)} runs in another gradient mode than the second product",
                )

    def _check_mutations(
        self, inside: set[Node], makers: list[Node], leaves: list[Node], second: Node
    ) -> None:
        uses = self._first_uses(inside, makers)
        for leaf in leaves:
            held, used = host.storages(leaf), uses.get(leaf, self.order[second])
            for mutator, changed in self.mutators.items():
                if changed & held and used < self.order[mutator] < self.order[second]:
                    place = host.describe(mutator)
                    raise Refused(
                        Code.MUTATED_OPERAND,
                        f"{place} changes an operand between its use and the output",
                    )
        outer = frozenset().union(*map(host.storages, leaves))
        for mutator, changed in self.mutators.items():
            if mutator in inside and changed & outer:
                raise Refused(
                    Code.MUTATED_OPERAND, f"{host.describe(mutator)} changes an operand in place"
                )

    def _first_uses(self, inside: set[Node], makers: list[Node]) -> dict[Node, int]:
        """Where the contents of each leaf are first read. A view reads nothing: its users do."""
        uses: dict[Node, int] = {}
        for node in [*sorted(inside, key=self.order.__getitem__), *reversed(makers)]:
            reads = node in inside or not host.is_view(node)
            position = self.order[node] if reads else uses.get(node, self.order[node])
            for source in node.all_input_nodes:
                uses[source] = min(uses.get(source, position), position)
        return uses

    def _escapes(self, nodes: list[Node], inside: set[Node]) -> tuple[list[Node], list[Node]]:
        """Users outside of the region: those that are dead, and those that read a shape. Others are
        refused.
        """
        dead: dict[Node, None] = {}
        sizes: dict[Node, None] = {}
        for node in nodes[:-1]:
            for user in node.users:
                if user in inside or user in dead:
                    continue
                if (
                    host.name(user) in host.SHAPES
                    and not host.tensors(user)
                    and _is_readable(user, inside)
                ):
                    sizes[user] = None
                elif not self._is_dead(user, inside, dead):
                    raise Refused(
                        Code.SCORES_ESCAPE,
                        f"{host.describe(user)} uses the scores besides the second product",
                    )
        return sorted(dead, key=self.order.__getitem__), list(sizes)

    def _is_dead(self, user: Node, inside: set[Node], dead: dict[Node, None]) -> bool:
        """Nothing sees it: every transitive user is pure and none is an output. Adds what it finds
        to `dead`.
        """
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


def _is_pure(node: Node) -> bool:
    known = (
        node.op in ("call_function", "call_method")
        and not host.is_opaque(node)
        and not host.is_random(node)
    )
    return known and bool(host.tensors(node) or host.name(node) in host.SHAPES)


def _is_upcast(node: Node) -> bool:
    """A cast that loses nothing and that kernels do on the fly: 16 bits to 32."""
    given = [t for n in node.all_input_nodes for t in host.tensors(n)]
    made = host.tensors(node)
    return (
        host.name(node) in host.CASTS
        and len(given) == len(made) == 1
        and given[0].dtype in (torch.float16, torch.bfloat16)
        and made[0].dtype == torch.float32
        and given[0].device == made[0].device
        and host.is_plain(node)
    )


def _behind_views(node: Node) -> Node:
    while node.op in ("call_function", "call_method") and host.is_view(node):
        node = node.all_input_nodes[0]
    return node


def _rank(node: Node) -> int:
    """How many dims are more than 1 long."""
    return sum(not (isinstance(size, int) and size == 1) for size in host.tensors(node)[0].shape)


def _is_readable(user: Node, inside: set[Node]) -> bool:
    """What it returns is one size, or several of which each is taken by number, as far as others
    see it.
    """
    if not isinstance(host.value(user), (tuple, list)):
        return True
    others = [n for n in user.users if n not in inside]
    return all(host.name(n) == "getitem" and isinstance(n.args[1], int) for n in others)


def _is_size_arithmetic(node: Node) -> bool:
    """A call that makes a tuple of sizes."""
    return isinstance(host.value(node), (tuple, list)) and not host.tensors(node)


def _leaves(nodes: Iterable[Node], inside: set[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside:
                found[source] = None
    return list(found)
