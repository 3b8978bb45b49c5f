"""Which offsets are equal, and which lengths they are the running sums of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ..._compat import shapes
from ..host import facts
from ..host.candidates import HostGraph
from ..host.sizes import same
from . import pads

_KEEPS_VALUES = frozenset(["contiguous", "clone", "detach", "to", "int", "long", "alias"])
_JOINS = frozenset(["cat", "concat", "concatenate", "hstack"])  # of vectors they are one


@dataclass
class Offsets:
    """Facts about the offsets of one graph."""

    host: HostGraph
    _keys: dict[Node, Hashable] = field(default_factory=dict)
    _ragged: dict[Hashable, Any] = field(default_factory=dict)

    def changes(self, storages: set[int]) -> bool:
        """Whether any call changes these storages in place."""
        return any(storages & changed for changed in self.host.mutators.values())

    def one(self, left: Node, right: Node) -> bool:
        """Whether two offsets are equal, by the calls and tensors that they are computed from.

        Two nested tensors have equal offsets if they have now. Then a guard checks later calls.
        """
        keys = self._key(left), self._key(right)
        if keys[0] == keys[1] or not all(key in self._ragged for key in keys):
            return keys[0] == keys[1]
        return shapes.guarded_equal(*(self._ragged[key] for key in keys))

    def summed_lengths(self, node: Node) -> Node | None:
        """The lengths, if a node is known to return a zero and then their running sums; else None.

        Nothing on the way may be changed in place.
        """
        way = _running_sums(node)
        changed = any(self.changes(facts.storages(n)) for n in way)
        return None if changed or not way else way[-1]

    def _key(self, node: Node) -> Hashable:
        if node not in self._keys:
            self._keys[node] = self._new_key(node)
        return self._keys[node]

    def _new_key(self, node: Node) -> Hashable:
        """A value number: equal for nodes that make the same calls on the same tensors."""
        called, inputs = facts.name(node), node.all_input_nodes
        if pads.is_nested(node):  # its ragged size stands for its offsets
            size = facts.tensors(node)[0].shape[1]
            self._ragged[key := ("ragged", str(size))] = size
            return key
        if called == "offsets" and pads.is_nested(inputs[0]):
            return self._key(inputs[0])
        own = set().union(facts.storages(node), *map(facts.storages, inputs))
        opaque = facts.is_opaque(node) and not _is_complete_cumsum(node)
        if not facts.is_call(node) or opaque or facts.is_random(node):
            return node
        if not inputs or self.changes(own):
            return node
        lengths = self.summed_lengths(node)
        if lengths is not None:
            return ("offsets of", self._key(lengths))
        if called in _KEEPS_VALUES and _keeps_integers(node):
            return self._key(inputs[0])
        number: Callable[[Any], Any] = lambda args: torch.fx.map_arg(args, self._key)  # type: ignore[arg-type]
        options = sorted((name, repr(number(value))) for name, value in node.kwargs.items())
        return (str(node.target), repr(number(node.args)), repr(options))


def _running_sums(node: Node) -> list[Node]:
    """The nodes from offsets to the lengths that they are the running sums of, after a zero.

    Empty if they are not known to be such sums.
    """
    if _is_complete_cumsum(node):
        return [node, node.all_input_nodes[0]]
    if facts.is_opaque(node):
        return []
    called = facts.name(node)
    if called in ("pad", "constant_pad_nd"):
        sums, widths = facts.argument(node, 0, "input", "self"), facts.argument(node, 1, "pad")
        named = [x for name, x in node.kwargs.items() if name not in ("input", "self", "pad")]
        pads_zeros = all(x in ("constant", None, 0) for x in (*node.args[2:], *named))
        return _summed([node], sums) if pads_zeros and tuple(widths) == (1, 0) else []
    parts = facts.argument(node, 0, "tensors") if called in _JOINS else None
    if isinstance(parts, (tuple, list)) and len(parts) == 2:
        zero, sums = parts
        if isinstance(zero, Node) and facts.name(zero) in ("zeros", "new_zeros", "zeros_like"):
            (zeros,) = facts.tensors(zero) or [torch.empty(0)]
            return _summed([node, zero], sums) if same(zeros.numel(), 1) else []
    return []


def _is_complete_cumsum(node: Node) -> bool:
    return facts.name(node) == "asynchronous_complete_cumsum" and pads.is_known(node)


def _summed(way: list[Node], node: Any) -> list[Node]:
    """`way`, continued from a cumulative sum of integers to the lengths that it sums."""
    while isinstance(node, Node) and facts.name(node) in _KEEPS_VALUES and _keeps_integers(node):
        way = [*way, node]
        node = node.all_input_nodes[0]
    if not isinstance(node, Node) or facts.name(node) != "cumsum":
        return []
    (sums,) = facts.tensors(node)
    lengths = node.all_input_nodes[0]
    counted = sums.dim() == 1 and sums.dtype in (torch.int32, torch.int64)
    return [*way, node, lengths] if counted and facts.tensors(lengths)[0].dim() == 1 else []


def _keeps_integers(node: Node) -> bool:
    kinds = [t.dtype for n in (node, *node.all_input_nodes[:1]) for t in facts.tensors(n)]
    return len(kinds) == 2 and all(kind in (torch.int32, torch.int64) for kind in kinds)
