"""Padding in a user's graph: what is padded, with which numbers, and where padding is removed.

A *pad* makes [B, N, ...] from values [L, ...] and offsets [B+1]. Sequence b owns the values
offsets[b]:offsets[b+1]. A pad keeps the first N of them, and fills the rest up to N. An *unpad* is
the inverse. It fills values that a pad has dropped with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ...rejection import Code
from ..host import facts, functions, places, products
from ..host.candidates import Candidate, HostGraph
from ..host.region import Sink
from ..reading.reading import kind_of
from ..reading.vocabulary import POINTWISE
from ..result import Refused
from .offsets import Offsets
from .pads import UNPADS, Pad, is_unread_pad, pad_of, sink_of

# fmt: off
_ELEMENTWISE = (functions.POINTWISE | POINTWISE.keys()) - {"max", "min", "tril", "triu"}
# fmt: on

# Ordinary numbers, by the kind of an operand. They stand for elements that are not known.
ORDINARY = {
    "f": torch.tensor([1.0, 0.5, -2.0, 3.0], dtype=torch.float64),
    "i": torch.tensor([1, 2, 3, 4]),  # sizes among them, which scores are divided by
    "b": torch.tensor([True, False, True, False]),
}


class NotPadded(Refused):
    """A side has no padding at all, so there is no note about it."""


@dataclass
class GraphPadding:
    """The padding of one graph.

    pads:     The pad of each node that pads.
    padded:   Pads, and views and copies of them that nothing changes in place.
    derived:  Padded tensors that are changed in place, and all that is computed from padded ones.
    unread:   Nodes that are computed from padding that is not recognised, with the call that pads.
    """

    host: HostGraph
    offsets: Offsets
    pads: dict[Node, Pad] = field(default_factory=dict)
    padded: set[Node] = field(default_factory=set)
    derived: set[Node] = field(default_factory=set)
    unread: dict[Node, Node] = field(default_factory=dict)

    @staticmethod
    def of(graph: HostGraph) -> GraphPadding:
        padding = GraphPadding(graph, Offsets(graph))
        for node in graph.order:
            padding._scan(node)
        return padding

    def _scan(self, node: Node) -> None:
        pad = pad_of(node)
        self._follow_unread(node)
        inputs = set(node.all_input_nodes)
        if inputs & (self.padded | self.derived) and facts.name(node) not in UNPADS:
            self.derived.add(node)
        view = _reads_through(node) and self.padded & set(node.all_input_nodes[:1])
        if pad is None and not view:
            return
        if self.offsets.changes(facts.storages(node)):
            self.derived.add(node)
            return
        self.padded.add(node)
        if pad is not None:
            self.pads[node] = pad

    def _follow_unread(self, node: Node) -> None:
        if is_unread_pad(node):
            self.unread[node] = node
            if node in self.host.mutators:  # it writes into its first argument
                self.unread[node.all_input_nodes[0]] = node
        elif facts.name(node) not in UNPADS:
            pad = self._first_unread(node.all_input_nodes)
            if pad is not None:
                self.unread[node] = pad

    def _first_unread(self, nodes: Iterable[Node]) -> Node | None:
        return next((self.unread[n] for n in nodes if n in self.unread), None)

    def unread_pad(self, candidate: Candidate) -> Node | None:
        """The call that pads an operand of a product, if it is not recognised as padding."""
        return self._first_unread(_operands(candidate))

    def absent(self, leaf: Node) -> Tensor | None:
        """The numbers that the padding of an operand may have.

        None if the operand is not padded, or if the numbers are not known.
        """
        if leaf not in self.padded and leaf not in self.derived:
            return None
        try:
            return self._absent(leaf)
        except Exception:  # whatever the model's function may raise
            return None

    def _absent(self, node: Any) -> Any:
        """As `absent`, by pointwise evaluation; ordinary numbers where a node is not padded."""
        tensors = facts.tensors(node)
        if not tensors:
            return 2  # a size
        dtype = tensors[0].dtype
        if node in self.pads:
            return torch.tensor(self.pads[node].fill).to(dtype)
        if node not in self.padded and node not in self.derived:
            return ORDINARY[kind_of(dtype)].to(dtype)
        if _reads_through(node):
            return self._absent(node.all_input_nodes[0]).to(dtype)
        if facts.name(node) not in _ELEMENTWISE:
            raise LookupError(f"{facts.name(node)} may mix elements")
        if self.offsets.changes(facts.storages(node)):
            raise LookupError("it is written into")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._absent)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def sink(self, second: Node) -> Sink:
        """The unpad of a product's rows. Raises Refused if the rows have another user."""
        tail: list[Node] = []
        while True:
            node = tail[-1] if tail else second
            users = [n for n in node.users if not _reads_no_element(n)]
            if len(users) != 1:
                raise Refused(Code.JAGGED_OUTPUT, "the padded output is used as such")
            (user,) = users
            sink = sink_of(tuple(tail), user)
            if sink is not None:
                return sink
            if not _keeps_rows(user) or user in self.host.mutators:
                reason = f"{places.describe(user)} uses the padded rows of the output"
                raise Refused(Code.JAGGED_OUTPUT, reason)
            tail.append(user)

    def feeds(self, candidate: Candidate) -> bool:
        """Whether an operand of a product is padded."""
        return not self.padded.isdisjoint(_operands(candidate))

    def derives(self, candidate: Candidate) -> bool:
        """Whether an operand of a product is computed from padded values."""
        return not self.derived.isdisjoint(_operands(candidate))

    def pads_rows(self, candidate: Candidate) -> bool:
        """Whether the rows may be padded too: one operand of the first product is the padded keys.

        The keys are padded as the value is.
        """
        padded = self.padded | self.derived
        firsts = [n in padded for first in candidate.firsts for n in products.operands(first)]
        value = any(
            n in padded and not set(candidate.firsts) & {n, *self.host.reach[n]}
            for n in products.operands(candidate.second)
        )
        return sum(firsts) > value

    def usable(self, name: str, leaf: Node, end: Node) -> Pad:
        """The pad that makes an operand.

        Raises Refused if the values are not the same at `end` as when they were padded.
        """
        pad = self.pads.get(leaf)
        if pad is None and leaf not in self.derived:
            raise NotPadded(Code.JAGGED_OPERAND, f"{name} is not padded")
        if pad is None:
            reason = "is not made by padding alone: act on the values before they are padded"
            raise Refused(Code.JAGGED_OPERAND, f"{name} {reason}")
        if self.host.ambient[pad.node].modes != self.host.ambient[end].modes:
            raise Refused(Code.GRAD_MODE, f"{name} is padded in another gradient mode")
        storages = facts.storages(pad.values) | facts.storages(pad.offsets)
        place = self.host.order
        for mutator, changed in self.host.mutators.items():
            if changed & storages and place[pad.node] < place[mutator] < place[end]:
                reason = f"changes {name} between its padding and the output"
                raise Refused(Code.MUTATED_OPERAND, f"{places.describe(mutator)} {reason}")
        return pad


def _operands(candidate: Candidate) -> list[Node]:
    all_products = (*candidate.firsts, candidate.second)
    return [n for product in all_products for n in products.operands(product)]


def _reads_through(node: Node) -> bool:
    """Whether a node is a view, a copy or a cast."""
    return facts.lays_out(node) or facts.name(node) in functions.CASTS


def _keeps_rows(node: Node) -> bool:
    """Whether a node is a view, a copy or a cast of floats: zeros stay zeros, rows stay rows."""
    if facts.name(node) in functions.CASTS:
        return all(t.dtype.is_floating_point for t in facts.tensors(node))
    return facts.name(node) in functions.LAYOUTS


def _reads_no_element(node: Node) -> bool:
    known = functions.SHAPES | functions.ASSERTIONS
    return facts.name(node) in known and not facts.tensors(node)
