"""Find the nodes of a candidate's region, and check that it is safe to replace them.

A region holds the nodes on the way from the first product to the second. It also holds calls that
change their storages in place on the way. Any other tensor that enters is a leaf. A region is safe
to replace under these conditions:

- No node outside uses its values. The exception is dead code: pure calls whose results reach no
  output and no mutation.
- Only its own nodes change its values. In-place calls do not change its operands or their gradients
  (`effects`).
- All of it runs in one gradient mode, and no function transform is open.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import effects, facts, functions, heads, places, row_sums
from .candidates import Candidate, HostGraph
from .mixing import NO_WEIGHTS


@dataclass(frozen=True)
class Sink:
    """The way from a second product to the call that removes the padding of its rows.

    tail:    Views and casts of the product's result. The last one is unpadded.
    unpad:   The call, and the nodes that take its results apart.
    result:  The node with the unpadded result, [L, ...].
    again:   Nodes that return the offsets.
    """

    tail: tuple[Node, ...]
    unpad: tuple[Node, ...]
    result: Node
    offsets: Node
    again: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Region:
    """The nodes to replace.

    nodes:      From the first product to the second, in program order. With a `sink`, also views
    and
                casts of the result.
    makers:     Pure calls between the leaves and these nodes.
    leaves:     The tensors that enter.
    dead:       Users of the region whose results nobody uses.
    sizes:      Users that read a shape only.
    factories:  Calls on the region's tensors that read only a dtype and a device, and whose results
                are used outside.
    shared:     Users that other candidates of the same scores replace, each with what it uses.
    """

    nodes: tuple[Node, ...]
    makers: tuple[Node, ...]
    leaves: tuple[Node, ...]
    dead: tuple[Node, ...]
    sizes: tuple[Node, ...]
    factories: tuple[Node, ...]
    sink: Sink | None = None
    shared: tuple[tuple[Node, Node], ...] = ()

    @property
    def end(self) -> Node:
        """The node to replace: the result of the second product, or of the unpadding after it."""
        return self.nodes[-1] if self.sink is None else self.sink.result

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """Every node that the replacement stands for."""
        return self.nodes if self.sink is None else (*self.nodes, *self.sink.unpad)


class Through(enum.Flag):
    """Calls before a region that become a part of it. Their inputs are then its leaves."""

    NOTHING = 0
    # Views, exact upcasts, and heads folded into the batch. So no operand is expanded or copied.
    VIEWS = enum.auto()
    # Functions whose result is larger than their inputs: masks of indices and lengths.
    MASKS = enum.auto()
    # All views of padded values, up to what pads them.
    PADDING = enum.auto()


@dataclass(frozen=True)
class Finder:
    """Finds the regions of one graph.

    padded: Calls that pad, and views and copies of their results. pads: Calls that pad. siblings:
    The second products of other candidates with the same first products.
    """

    host: HostGraph
    padded: Collection[Node] = ()
    pads: Collection[Node] = ()
    siblings: Collection[Node] = ()

    def of(
        self,
        candidate: Candidate,
        through: Through,
        sink: Sink | None = None,
        closed: Collection[Node] = (),
    ) -> Region:
        """The region of a candidate. Raises Refused if it is not safe to replace.

        Args:
            through: The kinds of calls before the region that become a part of it.
            closed: Nodes that stay leaves all the same.
        """
        second = candidate.second
        closure = self._closure(candidate.firsts, second) | set(sink.tail if sink else ())
        nodes = sorted(closure, key=self.host.order.__getitem__)
        inside = set(nodes)
        for node in nodes:
            if facts.is_opaque(node):
                raise Refused(
                    Code.OPAQUE_CALL,
                    f"{places.describe(node)} acts on the scores and cannot be analysed",
                )
            if facts.name(node) in NO_WEIGHTS:
                raise row_sums.within(node, second)
        leaves = _leaves(nodes, inside)
        end = nodes[-1] if sink is None else sink.result
        self._check_ambient([*nodes, end])
        self._check_kinds(nodes, leaves)
        makers, leaves = self._upstream([*nodes, end], inside, leaves, through, closed)
        self._check_kinds(makers, leaves)
        effects.check(self.host, effects.Extent(nodes, makers, leaves, end))
        also = [self._closure(candidate.firsts, other) for other in self.siblings]
        allowed = set[Node]().union(*also) - inside
        users = self._escapes(nodes, second, allowed, () if sink is None else sink.unpad)
        dead, sizes, factories = map(tuple, users[:3])
        parts = tuple(nodes), tuple(makers), tuple(leaves)
        return Region(*parts, dead, sizes, factories, sink, tuple(users[3]))

    def _closure(self, firsts: Sequence[Node], second: Node) -> set[Node]:
        """The nodes between products. firsts: One product, or several that compute the same."""
        inside = {*firsts, second}
        first = firsts[0]
        stack = [second]
        between = [
            m
            for m in self.host.mutators
            if self.host.order[first] < self.host.order[m] < self.host.order[second]
        ]
        while True:
            while stack:
                for source in stack.pop().all_input_nodes:
                    if (
                        source not in inside
                        and not self.host.reach[source].isdisjoint(firsts)
                        and not self.host.is_first(source)
                    ):
                        inside.add(source)
                        stack.append(source)
            own = frozenset().union(*(facts.storages(n) for n in inside if n is not second))
            stack = [m for m in between if m not in inside and self.host.mutators[m] & own]
            if not stack:
                return inside
            inside.update(stack)

    def _upstream(
        self, nodes: list[Node], inside: set[Node], leaves: list[Node], through: Through,
        closed: Collection[Node],
    ) -> tuple[list[Node], list[Node]]:  # fmt: skip
        """Replace leaves by the pure calls that make them. Returns (makers, remaining leaves)."""
        makers: set[Node] = set()
        remaining: dict[Node, None] = {}
        stack, end = list(reversed(leaves)), nodes[-1]
        while stack:
            leaf = stack.pop()
            seen = self._has_mode_of(end, leaf) and self._is_seen(leaf, through)
            if (
                leaf in closed
                or not self._is_repeatable(leaf, end)
                or not (seen or _is_size_arithmetic(leaf))
            ):
                remaining[leaf] = None
                continue
            makers.add(leaf)
            stack.extend(
                n
                for n in reversed(leaf.all_input_nodes)
                if n not in remaining and n not in makers and n not in inside
            )
        return sorted(makers, key=self.host.order.__getitem__), list(remaining)

    def _is_repeatable(self, leaf: Node, end: Node) -> bool:
        """Whether a call gives the same result at the end of the region, and nobody watches it."""
        return (
            leaf.op in ("call_function", "call_method")
            and not facts.is_opaque(leaf)
            and leaf not in self.host.mutators
            and not effects.is_overwritten(self.host, leaf, end)
            and not effects.is_watched(leaf)
        )

    def _has_mode_of(self, end: Node, leaf: Node) -> bool:
        """Whether a call runs in the gradient mode of the region's end, or has no gradient
        anyway.
        """
        here, there = self.host.ambient[leaf], self.host.ambient[end]
        same = (here.grad, here.inference) == (there.grad, there.inference)
        return here.transforms == 0 and (same or not _wants_gradients(leaf))

    def _is_seen(self, leaf: Node, through: Through) -> bool:
        """Whether the call that makes a leaf is of a kind in `through`."""
        viewed = facts.is_view(leaf) or _is_upcast(leaf) or heads.leads_to_a_join(leaf)
        seen = Through.VIEWS in through and viewed
        seen = seen or (Through.MASKS in through and self.host.spreads(leaf))
        if Through.PADDING in through:
            seen = (seen or leaf in self.padded) and leaf not in self.pads
        return seen

    # Safety

    def _check_kinds(self, nodes: Iterable[Node], leaves: Iterable[Node]) -> None:
        for node in (*nodes, *leaves):
            if not facts.is_plain(node):
                raise Refused(
                    Code.TENSOR_KIND,
                    f"{places.describe(node)} is not a plain tensor: {facts.kinds(node)}",
                )
        devices = {t.device for n in (*nodes, *leaves) for t in facts.tensors(n) if t.dim() > 0}
        if len(devices) > 1:
            raise Refused(Code.DEVICE, f"operands on {', '.join(sorted(map(str, devices)))}")

    def _check_ambient(self, nodes: list[Node]) -> None:
        last = self.host.ambient[nodes[-1]]
        for node in nodes:
            state = self.host.ambient[node]
            if state.transforms:
                raise Refused(
                    Code.OPAQUE_CALL,
                    f"{places.describe(node)} runs inside of a function transform (vmap, grad)",
                )
            if (state.grad, state.inference) != (last.grad, last.inference):
                raise Refused(
                    Code.GRAD_MODE,
                    f"{places.describe(node)} runs in another gradient mode than the second "
                    "product",
                )

    def _escapes(
        self, nodes: list[Node], second: Node, also: set[Node], unpad: Sequence[Node]
    ) -> tuple[list[Node], list[Node], list[Node], list[tuple[Node, Node]]]:
        """The users outside of the region: (dead ones, readers of a shape, factories, shared ones).

        Factories may be inside and used outside. Any other user is refused. unpad: The nodes that
        use the last node and are replaced too. also: The nodes of other regions of these scores.
        """
        inside, dead = set(nodes), dict[Node, None]()
        sizes: dict[Node, None] = {}
        regions: dict[Node, Node] = {}
        shared = [n for n in nodes if n.users.keys() - inside and self._is_factory(n, inside)]
        factories = dict.fromkeys(shared)
        for node in nodes if unpad else nodes[:-1]:
            for user in () if node in factories else node.users:
                if user in inside or user in dead or user in unpad:
                    continue
                if (
                    facts.name(user) in functions.SHAPES
                    and not facts.tensors(user)
                    and _is_readable(user, inside)
                ):
                    sizes[user] = None
                elif self._is_dead(user, inside, dead):
                    continue  # it is in `dead` now
                elif self._is_factory(user, inside):
                    factories[user] = None
                elif user in also:
                    regions[user] = node
                else:
                    raise escape(node, user, second)
        dying = sorted(dead, key=self.host.order.__getitem__)
        return dying, list(sizes), list(factories), list(regions.items())

    def _is_factory(self, node: Node, inside: set[Node]) -> bool:
        """Whether a call reads no values of a tensor, and makes a tensor without a gradient.

        No call of the region may write into that tensor.
        """
        if facts.name(node) not in functions.FACTORIES or facts.is_opaque(node):
            return False
        if node.kwargs.get("requires_grad"):
            return False
        others = facts.flat_nodes((node.args[1:], node.kwargs))
        mutators = inside & self.host.mutators.keys()
        written = frozenset().union(*(self.host.mutators[n] for n in mutators))
        return not any(map(facts.tensors, others)) and not written & facts.storages(node)

    def _is_dead(self, user: Node, inside: set[Node], dead: dict[Node, None]) -> bool:
        """Whether a user is dead: all its transitive users are pure, and none is an output.

        Adds these nodes to `dead`.
        """
        seen: dict[Node, None] = {user: None}
        stack = [user]
        while stack:
            node = stack.pop()
            if (
                node in inside
                or node.op == "output"
                or not _is_pure(node)
                or node in self.host.mutators
            ):
                return False
            for next_user in node.users:
                if next_user not in seen and next_user not in dead:
                    seen[next_user] = None
                    stack.append(next_user)
        dead.update(seen)
        return True


def escape(node: Node, user: Node, second: Node) -> Refused:
    """The refusal of scores that `user` sees, which is no part of the region."""
    summed = row_sums.outside(node, user, second)
    if summed is not None:
        return summed
    stored = places.stored_from(node if user.op == "output" else user)
    if user.op != "output":
        reason = f"{places.describe(user)} uses the scores besides the second product"
        reason += f", for the attribute `{stored}`" if stored else ""
    elif stored:
        reason = f"the scores are stored in the attribute `{stored}`"
    else:
        reason = "the scores are an output of the graph: they are returned, or kept elsewhere"
    return Refused(Code.SCORES_ESCAPE, reason, change=_APART if stored else None)


_APART = "do not store it in compiled code, or make it from a product of its own (`q @ k.mT`)"


def _is_pure(node: Node) -> bool:
    known = (
        node.op in ("call_function", "call_method")
        and not facts.is_opaque(node)
        and not facts.is_random(node)
    )
    silent = facts.name(node) in functions.SHAPES | functions.ASSERTIONS
    return known and bool(facts.tensors(node) or silent)


def _is_upcast(node: Node) -> bool:
    """Whether a node is an exact cast that kernels do on the fly: from 16 bits to 32."""
    inputs = [t for n in node.all_input_nodes for t in facts.tensors(n)]
    outputs = facts.tensors(node)
    return (
        facts.name(node) in functions.CASTS
        and len(inputs) == len(outputs) == 1
        and inputs[0].dtype in (torch.float16, torch.bfloat16)
        and outputs[0].dtype == torch.float32
        and inputs[0].device == outputs[0].device
        and facts.is_plain(node)
    )


def _is_readable(user: Node, inside: set[Node]) -> bool:
    """Whether a user returns a size, or several sizes that are only taken one by one."""
    if not isinstance(facts.value(user), (tuple, list)):
        return True
    others = [n for n in user.users if n not in inside]
    return all(facts.name(n) == "getitem" and isinstance(n.args[1], int) for n in others)


def _wants_gradients(node: Node) -> bool:
    """Whether inputs of a node have gradients. Otherwise the gradient mode makes no difference."""
    return any(map(facts.may_want_gradients, node.all_input_nodes))


def _is_size_arithmetic(node: Node) -> bool:
    """Whether a call makes a tuple of sizes."""
    return isinstance(facts.value(node), (tuple, list)) and not facts.tensors(node)


def _leaves(nodes: Iterable[Node], inside: set[Node]) -> list[Node]:
    leaves: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside:
                leaves[source] = None
    return list(leaves)
