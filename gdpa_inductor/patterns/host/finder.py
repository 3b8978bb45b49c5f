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
from dataclasses import dataclass, replace

from torch.fx import Node

from ...rejection import Code
from ..result import Refused
from . import effects, facts, functions, heads, pages, places, products, row_sums
from .candidates import Candidate, HostGraph
from .functions import NO_WEIGHTS
from .region import Region, Sink, SummedRows


class Through(enum.Flag):
    """Calls before a region that become a part of it. Their inputs are then its leaves."""

    NOTHING = 0
    # Views, exact upcasts, and heads folded into the batch. So no operand is expanded or copied.
    VIEWS = enum.auto()
    # Functions whose result is larger than their inputs: masks of indices and lengths.
    MASKS = enum.auto()
    # All views of padded values, up to what pads them.
    PADDING = enum.auto()
    # Gathers of pages, and all views of their results.
    PAGES = enum.auto()


@dataclass(frozen=True)
class Finder:
    """Finds the regions of one graph.

    padded:    Calls that pad, and views and copies of their results.
    pads:      Calls that pad.
    siblings:  The second products of other candidates with the same first products.
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
        inside, sums = self._with_sums(candidate)
        inside |= set(sink.tail if sink else ())
        nodes = self.host.in_order(inside)
        summed = () if sums is None else sums.between
        for node in (*nodes, *summed):
            if facts.is_opaque(node):
                reason = f"{places.describe(node)} acts on the scores and cannot be analysed"
                raise Refused(Code.OPAQUE_CALL, reason)
            if facts.name(node) in NO_WEIGHTS:
                raise row_sums.within(node, second)
        known = inside.union(summed)
        sources = (source for node in (*nodes, *summed) for source in node.all_input_nodes)
        leaves = list(dict.fromkeys(source for source in sources if source not in known))
        end = nodes[-1] if sink is None else sink.result
        self._check_ambient([*nodes, *summed, *([] if sums is None else [sums.node]), end])
        self._check_kinds(nodes, leaves)
        factors = [x for n in (*candidate.firsts, second) for x in products.operands(n)]
        moved = self.host.rearranging
        behind = facts.walk(factors, lambda n: n.all_input_nodes if n in moved else ())
        # No factor is read from a table.
        stored = frozenset(filter(self.host.looks_up, (*closed, *behind)))
        paged = pages.PageReads()
        if Through.PAGES in through:
            outer = [factor for factor in factors if factor not in inside]
            paged = pages.page_reads(self.host, outer, closed, end)
        closed = (*closed, *paged.ends)
        makers, leaves = self._upstream(end, known, leaves, through, closed, stored, paged.way)
        self._check_kinds(makers, leaves)
        region = Region(tuple(nodes), tuple(makers), tuple(leaves), sink, sums=sums)
        effects.check(self.host, region)
        return self._with_users(region, candidate)

    def _with_sums(self, candidate: Candidate) -> tuple[set[Node], SummedRows | None]:
        """The nodes between products, without row sums and what is made of these."""
        firsts, second = candidate.firsts, candidate.second
        inside = self._closure(firsts, second)
        sums = row_sums.beside(self.host, inside, candidate)
        if sums is None:
            return inside, None
        if sums.node in inside and self.siblings:
            reason = f"{places.describe(sums.node)} sums what several products divide by the result"
            raise Refused(Code.SCORES_ESCAPE, reason, change=_BESIDE)
        inside = self._closure(firsts, second, sums.derived)
        between = row_sums.between(self.host, sums, inside, candidate)
        return inside, replace(sums, between=between)

    def _closure(
        self, firsts: Sequence[Node], second: Node, without: Collection[Node] = ()
    ) -> set[Node]:
        """The nodes between products. firsts: One product, or several that compute the same."""
        inside, stack = {*firsts, second}, [second]
        order, mutators = self.host.order, self.host.mutators
        # A call that writes into a value of the region belongs to it, with all that it reads. Such
        # a call may bring in another one, so both walks go on until nothing is added.
        between = [m for m in mutators if order[firsts[0]] < order[m] < order[second]]
        while stack:
            while stack:
                for source in stack.pop().all_input_nodes:
                    between_products = not self.host.reach[source].isdisjoint(firsts)
                    if source in inside or not between_products or products.of_activations(source):
                        continue
                    if source in without:
                        continue
                    inside.add(source)
                    stack.append(source)
            own = frozenset().union(*(facts.storages(n) for n in inside if n is not second))
            stack = [m for m in between if m not in inside and mutators[m] & own]
            inside.update(stack)
        return inside

    def _upstream(
        self,
        end: Node,
        inside: set[Node],
        leaves: list[Node],
        through: Through,
        closed: Collection[Node],
        stored: frozenset[Node],
        way: frozenset[Node],
    ) -> tuple[list[Node], list[Node]]:
        """Replace leaves by the pure calls that make them. Returns (makers, remaining leaves)."""
        makers: set[Node] = set()
        remaining: dict[Node, None] = {}
        stack = leaves[::-1]
        while stack:
            leaf = stack.pop()
            makes_sizes = isinstance(facts.value(leaf), (tuple, list)) and not facts.tensors(leaf)
            readable = makes_sizes or (
                self._has_mode_of(end, leaf)
                and (leaf in way or self._is_kind_of(through, leaf, stored))
            )
            if leaf in closed or not readable or not self._is_repeatable(leaf, end):
                remaining[leaf] = None
                continue
            makers.add(leaf)
            outside = [n for n in leaf.all_input_nodes if n not in inside]
            stack += [n for n in outside[::-1] if n not in remaining and n not in makers]
        return self.host.in_order(makers), list(remaining)

    def _is_repeatable(self, leaf: Node, end: Node) -> bool:
        """Whether a call gives the same result at the end of the region, and nobody watches it."""
        return (
            facts.is_call(leaf)
            and not facts.is_opaque(leaf)
            and leaf not in self.host.mutators
            and not effects.is_overwritten(self.host, leaf, end)
            and not effects.is_watched(leaf)
        )

    def _has_mode_of(self, end: Node, leaf: Node) -> bool:
        """Whether a call runs in the gradient mode of the region's end, or has no gradient."""
        here, there = self.host.ambient[leaf], self.host.ambient[end]
        same = (here.grad, here.inference) == (there.grad, there.inference)
        return here.transforms == 0 and (same or not _wants_gradients(leaf))

    def _is_kind_of(self, through: Through, leaf: Node, stored: frozenset[Node]) -> bool:
        viewed = facts.is_view(leaf) or facts.is_upcast(leaf) or heads.leads_to_a_join(leaf)
        known = Through.VIEWS in through and viewed
        known = known or (Through.MASKS in through and self.host.spreads(leaf, stored))
        if Through.PADDING in through:
            known = (known or leaf in self.padded) and leaf not in self.pads
        return known

    # Safety

    def _check_kinds(self, nodes: Iterable[Node], leaves: Iterable[Node]) -> None:
        for node in (*nodes, *leaves):
            if not facts.is_plain(node):
                reason = f"{places.describe(node)} is not a plain tensor: {facts.kinds(node)}"
                raise Refused(Code.TENSOR_KIND, reason)
        devices = {t.device for n in (*nodes, *leaves) for t in facts.tensors(n) if t.dim() > 0}
        if len(devices) > 1:
            raise Refused(Code.DEVICE, f"operands on {', '.join(sorted(map(str, devices)))}")

    def _check_ambient(self, nodes: list[Node]) -> None:
        last = self.host.ambient[nodes[-1]]
        for node in nodes:
            state = self.host.ambient[node]
            if state.transforms:
                reason = "runs inside of a function transform (vmap, grad)"
                raise Refused(Code.OPAQUE_CALL, f"{places.describe(node)} {reason}")
            if (state.grad, state.inference) != (last.grad, last.inference):
                reason = "runs in another gradient mode than the second product"
                raise Refused(Code.GRAD_MODE, f"{places.describe(node)} {reason}")

    def _with_users(self, region: Region, candidate: Candidate) -> Region:
        """The region with its users. Raises Refused if another node uses its values.

        Factories may be inside and used outside.
        """
        inside, unpad = set(region.nodes), () if region.sink is None else region.sink.unpad
        others = [self._closure(candidate.firsts, second) for second in self.siblings]
        also = set[Node]().union(*others)
        own = set(region.all_nodes) - inside
        escaping = [n for n in region.nodes if n.users.keys() - inside]
        factories = dict.fromkeys(n for n in escaping if self._is_factory(n, inside))
        sizes, dead, shared = dict[Node, None](), dict[Node, None](), dict[Node, Node]()
        values = [n for n in region.nodes if n not in factories and (unpad or n is not region.end)]
        for node, user in ((n, user) for n in values for user in n.users):
            if user in inside or user in dead or user in own:
                continue
            reads_size = facts.name(user) in functions.SHAPES and not facts.tensors(user)
            if reads_size and _is_readable(user, inside):
                sizes[user] = None
            elif self._is_dead(user, inside, dead):
                continue  # it is in `dead` now
            elif self._is_factory(user, inside):
                factories[user] = None
            elif user in also:
                shared[user] = node
            else:
                raise escape(node, user, candidate.second)
        return replace(
            region,
            dead=tuple(self.host.in_order(dead)),
            sizes=tuple(sizes),
            factories=tuple(factories),
            shared=tuple(shared.items()),
        )

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
        """Whether all that is made from a user is pure, and no output. Adds it to `dead`."""
        branch: list[Node] = []
        for node in facts.walk([user], lambda n: (u for u in n.users if u not in dead)):
            if node in inside or node in self.host.mutators or node.op == "output":
                return False
            if not _is_pure(node):
                return False
            branch.append(node)
        dead.update(dict.fromkeys(branch))
        return True


def escape(node: Node, user: Node, second: Node) -> Refused:
    """The refusal of scores that `user` reads, which is no part of the region."""
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


_BESIDE = "put values of the same weights side by side, as `w @ torch.cat([v, u], -1)`"
_APART = "do not store it in compiled code, or make it from a product of its own (`q @ k.mT`)"


def _is_pure(node: Node) -> bool:
    if not facts.is_call(node) or facts.is_opaque(node) or facts.is_random(node):
        return False
    silent = facts.name(node) in functions.SHAPES | functions.ASSERTIONS
    return silent or bool(facts.tensors(node))


def _is_readable(user: Node, inside: set[Node]) -> bool:
    """Whether a user returns a size, or several sizes that are only taken one by one."""
    if not isinstance(facts.value(user), (tuple, list)):
        return True
    others = [n for n in user.users if n not in inside]
    return all(facts.name(n) == "getitem" and isinstance(n.args[1], int) for n in others)


def _wants_gradients(node: Node) -> bool:
    """Whether inputs of a node have gradients. Otherwise the gradient mode makes no difference."""
    return any(map(facts.may_want_gradients, node.all_input_nodes))
