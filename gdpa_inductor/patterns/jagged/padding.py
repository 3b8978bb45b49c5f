"""Padding in a user's graph: what is padded, with which numbers, and where padding is removed.

A *pad* makes [B, N, ...] from values [L, ...] and offsets [B+1]. Sequence b owns the values
offsets[b]:offsets[b+1]. A pad keeps the first N of them, and fills the rest up to N. An *unpad* is
the inverse. It fills values that a pad has dropped with zeros.
"""

from __future__ import annotations

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
# Functions that may come between a pad and a product, or between a product and an unpad.
LAYOUTS = functions.VIEWS | {
    "reshape", "flatten", "contiguous", "clone", "chunk", "split", "split_with_sizes", "unbind",
    "getitem", "select", "narrow", "unsafe_chunk",
}
READ_THROUGH = LAYOUTS | functions.CASTS
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
        found = GraphPadding(graph, Offsets(graph))
        for node in graph.order:
            pad = pad_of(node)
            found._follow_unread(node)
            given = set(node.all_input_nodes)
            if given & (found.padded | found.derived) and facts.name(node) not in UNPADS:
                found.derived.add(node)
            view = _reads_through(node) and found.padded & set(node.all_input_nodes[:1])
            if pad is None and not view:
                continue
            if found.offsets.changes(facts.storages(node)):
                found.derived.add(node)
                continue
            found.padded.add(node)
            if pad is not None:
                found.pads[node] = pad
        return found

    def _follow_unread(self, node: Node) -> None:
        """Record a call whose padding is not recognised, and what is computed from it."""
        if is_unread_pad(node):
            self.unread[node] = node
            if node in self.host.mutators:  # it writes into its first argument
                self.unread[node.all_input_nodes[0]] = node
        elif facts.name(node) not in UNPADS:
            behind = (self.unread[n] for n in node.all_input_nodes if n in self.unread)
            pad = next(behind, None)
            if pad is not None:
                self.unread[node] = pad

    def unread_pad(self, candidate: Candidate) -> Node | None:
        """The call that pads an operand of a product, if it is not recognised as padding."""
        found = [self.unread[n] for n in _operands(candidate) if n in self.unread]
        return found[0] if found else None

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
        """The numbers in the padding of a node, by pointwise evaluation; ordinary numbers
        elsewhere.
        """
        given = facts.tensors(node)
        if not given:
            return 2  # a size
        if node in self.pads:
            return torch.tensor(self.pads[node].fill).to(given[0].dtype)
        if node not in self.padded and node not in self.derived:
            return ORDINARY[kind_of(given[0].dtype)].to(given[0].dtype)
        if _reads_through(node):
            return self._absent(node.all_input_nodes[0]).to(given[0].dtype)
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
        node = second
        while True:
            users = [n for n in node.users if not _reads_no_element(n)]
            if len(users) != 1:
                raise Refused(Code.JAGGED_OUTPUT, "the padded output is used as such")
            (user,) = users
            found = sink_of(tuple(tail), user)
            if found is not None:
                return found
            if not _keeps_rows(user) or user in self.host.mutators:
                raise Refused(
                    Code.JAGGED_OUTPUT,
                    f"{places.describe(user)} uses the padded rows of the output",
                )
            tail.append(user)
            node = user

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
        made = self.padded | self.derived
        firsts = [n in made for first in candidate.firsts for n in products.operands(first)]
        value = any(
            n in made and not set(candidate.firsts) & {n, *self.host.reach[n]}
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
            raise Refused(
                Code.JAGGED_OPERAND,
                f"{name} is not made by padding alone: act on the values before they are padded",
            )
        here, there = self.host.ambient[pad.node], self.host.ambient[end]
        if here.modes != there.modes:
            raise Refused(Code.GRAD_MODE, f"{name} is padded in another gradient mode")
        held = facts.storages(pad.values) | facts.storages(pad.offsets)
        place = self.host.order
        for mutator, changed in self.host.mutators.items():
            if changed & held and place[pad.node] < place[mutator] < place[end]:
                raise Refused(
                    Code.MUTATED_OPERAND,
                    f"{places.describe(mutator)} changes {name} between its padding and the output",
                )
        return pad


def _operands(candidate: Candidate) -> list[Node]:
    """The operands of all products of a candidate."""
    return [
        n for product in (*candidate.firsts, candidate.second) for n in products.operands(product)
    ]


def _reads_through(node: Node) -> bool:
    """Whether a node is a view or a copy.

    A subscript is one if it has no tensor, and a repetition if its count is a number.
    """
    if facts.name(node) == "getitem":
        return not any(map(facts.tensors, node.all_input_nodes[1:]))
    if facts.name(node) == "repeat_interleave":
        return isinstance(facts.argument(node, 1, "repeats"), int)
    return facts.name(node) in READ_THROUGH


def _keeps_rows(node: Node) -> bool:
    """Whether a node is a view, a copy or a cast of floats.

    So zeros stay zeros, and rows stay rows.
    """
    if facts.name(node) in functions.CASTS:
        return all(t.dtype.is_floating_point for t in facts.tensors(node))
    return facts.name(node) in LAYOUTS


def _reads_no_element(node: Node) -> bool:
    known = functions.SHAPES | functions.ASSERTIONS
    return facts.name(node) in known and not facts.tensors(node)
