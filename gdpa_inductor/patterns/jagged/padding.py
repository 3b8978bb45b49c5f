"""Padding in a user's graph: what pads jagged values, what cuts that off, which offsets are one.

A *pad* makes [B, N, ...] of values [L, ...] and offsets [B+1]: sequence b owns the values
offsets[b]:offsets[b+1], the first N of them are kept, and what is missing is filled. An *unpad* is
its inverse; what a pad left out it fills with zeros. Nothing of fbgemm is imported: its functions
are known by their names. A torch.autograd.Function that only calls one of them, and whose backward
only calls the inverse, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ... import _compat
from ...rejection import Code
from ..host import facts, functions, places, products
from ..host.candidates import Candidate, HostGraph
from ..host.region import Sink
from ..host.sizes import Size, same
from ..reading.reading import kind_of
from ..reading.vocabulary import POINTWISE
from ..result import Refused
from .wrapped import Wrapped, wrapped

# fmt: off
# Functions that pad: the names of their parameters, those that are not there left out. All of them
# have the values (or the nested tensor) first.
PADS: dict[str, tuple[str, ...]] = {
    "jagged_to_padded_dense": ("values", "offsets", "max_lengths", "padding_value"),
    "jagged_to_padded_dense_forward": ("values", "offsets", "max_lengths", "padding_value"),
    "_jagged_to_padded_dense_forward": ("values", "offsets", "max_lengths", "padding_value"),
    "jagged_1d_to_dense": ("values", "offsets", "max_sequence_length", "padding_value"),
    "jagged_2d_to_dense": ("values", "offsets", "max_sequence_length"),
    "to_padded_tensor": ("self", "padding"),
    "nested_to_padded_tensor": ("self", "padding"),
}
UNPADS: dict[str, tuple[str, ...]] = {
    "dense_to_jagged": ("dense", "x_offsets", "total_L"),
    "dense_to_jagged_forward": ("dense", "x_offsets", "total_L"),
    "_padded_dense_to_jagged_forward": ("dense", "offsets", "total_L"),
}
# Functions between a pad and a product, or a product and an unpad, that a shadow reads through.
LAYOUTS = functions.VIEWS | {
    "reshape", "flatten", "contiguous", "clone", "chunk", "split", "split_with_sizes", "unbind",
    "getitem", "select", "narrow", "unsafe_chunk",
}
READ_THROUGH = LAYOUTS | functions.CASTS
_ELEMENTWISE = (functions.POINTWISE | POINTWISE.keys()) - {"max", "min", "tril", "triu"}
_KEEPS_VALUES = frozenset(["contiguous", "clone", "detach", "to", "int", "long", "alias"])
# fmt: on


# Numbers that an element of an operand may be, by its kind.
ORDINARY = {
    "f": torch.tensor([1.0, 0.5, -2.0, 3.0], dtype=torch.float64),
    "i": torch.tensor([1, 2, 3, 4]),  # sizes among them, which scores are divided by
    "b": torch.tensor([True, False, True, False]),
}


@dataclass(frozen=True)
class Pad:
    """`node` [B, N, ...] holds `values` [L, ...] (or a nested tensor's) by `offsets`; past the end
    stands `fill`. calls: what makes it, the last first.
    """

    node: Node
    values: Node
    offsets: Node
    fill: Any
    calls: tuple[Node, ...]

    @property
    def longest(self) -> Size:
        return facts.tensors(self.node)[0].shape[1]


class NotPadded(Refused):
    """A side has nothing to do with padding: no note about it."""


@dataclass
class Padding:
    """What one graph pads and unpads. padded: pads, and views and copies of them that nothing
    changes in place. derived: all that is computed from these.
    """

    host: HostGraph
    pads: dict[Node, Pad] = field(default_factory=dict)
    padded: set[Node] = field(default_factory=set)
    derived: set[Node] = field(default_factory=set)
    _keys: dict[Node, Hashable] = field(default_factory=dict)
    _ragged: dict[Hashable, Any] = field(default_factory=dict)

    @staticmethod
    def of(graph: HostGraph) -> Padding:
        found = Padding(graph)
        for node in graph.order:
            pad = pad_of(node)
            given = set(node.all_input_nodes)
            if given & (found.padded | found.derived) and facts.name(node) not in UNPADS:
                found.derived.add(node)
            view = _reads_through(node) and found.padded & set(node.all_input_nodes[:1])
            if (pad is None and not view) or found._changes(facts.storages(node)):
                continue
            found.padded.add(node)
            if pad is not None:
                found.pads[node] = pad
        return found

    def _changes(self, storages: set[int]) -> bool:
        return any(storages & changed for changed in self.host.mutators.values())

    # Offsets

    def one(self, left: Node, right: Node) -> bool:
        """Whether two offsets are one and the same: by what they are computed from. Those of two
        nested tensors are, if they are now; then a guard keeps it so.
        """
        keys = self._key(left), self._key(right)
        if keys[0] == keys[1] or not all(key in self._ragged for key in keys):
            return keys[0] == keys[1]
        return _compat.guarded_equal(*(self._ragged[key] for key in keys))

    def summed_lengths(self, node: Node) -> Node | None:
        """The lengths whose running sums, after a zero, a node returns, if it is known to, and
        nothing on the way is changed in place.
        """
        way = _running_sums(node)
        changed = any(self._changes(facts.storages(n)) for n in way)
        return None if changed or not way else way[-1]

    def _key(self, node: Node) -> Hashable:
        if node not in self._keys:
            self._keys[node] = self._made(node)
        return self._keys[node]

    def _made(self, node: Node) -> Hashable:
        """A value number: equal for nodes that are equal by what they call on what."""
        called, given = facts.name(node), node.all_input_nodes
        if is_nested(node):  # its ragged size stands for its offsets
            size = facts.tensors(node)[0].shape[1]
            self._ragged[key := ("ragged", str(size))] = size
            return key
        if called == "offsets" and is_nested(given[0]):
            return self._key(given[0])
        own = set().union(facts.storages(node), *map(facts.storages, given))
        opaque = facts.is_opaque(node) and called != "asynchronous_complete_cumsum"
        if node.op not in ("call_function", "call_method") or opaque or facts.is_random(node):
            return node
        if not given or self._changes(own):
            return node
        lengths = self.summed_lengths(node)
        if lengths is not None:
            return ("offsets of", self._key(lengths))
        if called in _KEEPS_VALUES and _keeps_integers(node):
            return self._key(given[0])
        number: Callable[[Any], Any] = lambda given: torch.fx.map_arg(given, self._key)  # type: ignore[arg-type]
        options = sorted((name, repr(number(value))) for name, value in node.kwargs.items())
        return (str(node.target), repr(number(node.args)), repr(options))

    # What stands in the padding

    def absent(self, leaf: Node) -> Tensor | None:
        """The number in the padding of an operand, or several that it may be; None where it is not
        padded, or not known what stands there.
        """
        if leaf not in self.padded and leaf not in self.derived:
            return None
        try:
            return self._absent(leaf)
        except Exception:  # whatever the model's function may raise
            return None

    def _absent(self, node: Any) -> Any:
        """Of padding and of what is computed from it element by element; else ordinary numbers."""
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
        if self._changes(facts.storages(node)):
            raise LookupError("it is written into")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._absent)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    # Sinks

    def sink(self, second: Node) -> Sink:
        """Where the rows of a product go. Raises Refused where that is not one unpad alone."""
        tail: list[Node] = []
        node = second
        while True:
            users = [n for n in node.users if not _reads_shape(n)]
            if len(users) != 1:
                raise Refused(Code.JAGGED_OUTPUT, "the padded output is used as such")
            (user,) = users
            found = _sink(tuple(tail), user)
            if found is not None:
                return found
            if facts.name(user) not in LAYOUTS or user in self.host.mutators:
                raise Refused(
                    Code.JAGGED_OUTPUT,
                    f"{places.describe(user)} uses the padded rows of the output",
                )
            tail.append(user)
            node = user

    # Operands

    def feeds(self, candidate: Candidate) -> bool:
        """Whether an operand of a product is padded."""
        return not self.padded.isdisjoint(_operands(candidate))

    def derives(self, candidate: Candidate) -> bool:
        """Whether an operand of a product is computed from padded values."""
        return not self.derived.isdisjoint(_operands(candidate))

    def pads_rows(self, candidate: Candidate) -> bool:
        """Whether the rows may be padded: of the first product one operand is the keys, padded as
        the value is.
        """
        made = self.padded | self.derived
        firsts = [n in made for first in candidate.firsts for n in products.operands(first)]
        value = any(
            n in made and not set(candidate.firsts) & {n, *self.host.reach[n]}
            for n in products.operands(candidate.second)
        )
        return sum(firsts) > value

    def usable(self, name: str, leaf: Node, end: Node) -> Pad:
        """The pad that makes an operand. Raises Refused where its values, taken at `end`, are not
        what was padded.
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


@dataclass(frozen=True)
class Call:
    """A call of one of the tables: its name, its arguments by name, and the nodes that make it."""

    name: str
    given: dict[str, Any]
    nodes: tuple[Node, ...]


def call_of(node: Node, table: Mapping[str, tuple[str, ...]]) -> Call | None:
    """The call whose one result `node` is, in the open or in an autograd.Function of its own."""
    given = _arguments(node, table)
    if given is not None:
        return Call(facts.name(node), given, (node,))
    if facts.name(node) != "getitem" or node.args[1] != 0 or not isinstance(node.args[0], Node):
        return None
    held = wrapped(node.args[0])
    given = None if held is None else _arguments(held.forward, table)
    if held is None or given is None or not _is_inverse(held, table):
        return None
    known = {name: held.outside(value) for name, value in given.items()}
    return Call(facts.name(held.forward), known, (node, node.args[0]))


def _is_inverse(held: Wrapped, table: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the backward of a wrapped pad is an unpad of the gradient by the same offsets, or the
    other way round with zeros.
    """
    inverse = UNPADS if table is PADS else PADS
    given, back = _arguments(held.forward, table), _arguments(held.backward, inverse)
    if given is None or back is None or next(iter(back.values())) is not held.gradient:
        return False
    offsets, others = _offsets(given), _offsets(back)
    same_offsets = others is not None and held.saved.get(others) is offsets
    return same_offsets and back.get("padding_value", 0.0) == 0


def pad_of(node: Node) -> Pad | None:
    """What a node pads; None where it does not, or in a form of its own (several levels)."""
    call, made = call_of(node, PADS), facts.tensors(node)
    if call is None or len(made) != 1 or not facts.is_plain(node):
        return None
    values = next(iter(call.given.values()))
    if not isinstance(values, Node):
        return None
    fill = call.given.get("padding_value", call.given.get("padding", 0.0))
    if "values" not in call.given:
        return Pad(node, values, values, fill, call.nodes) if is_nested(values) else None
    offsets = _offsets(call.given)
    if offsets is None or len(facts.tensors(values)) != 1 or not facts.is_plain(values):
        return None
    if made[0].dim() != facts.tensors(values)[0].dim() + 1:
        return None
    return Pad(node, values, offsets, fill, call.nodes)


def length_of(pad: Pad) -> Size:
    """How many rows the jagged values have."""
    return _compat.values_of(facts.tensors(pad.values)[0]).shape[0]


def is_nested(node: Node) -> bool:
    """A nested tensor of one ragged dimension, the second, whose values lie close together."""
    found = facts.value(node)
    return (
        isinstance(found, torch.Tensor)
        and found.is_nested
        and found.layout == torch.jagged
        and _compat.is_compact_nested(found)
    )


def _running_sums(node: Node) -> list[Node]:
    """The way from offsets to the lengths that they are the running sums of, after a zero; empty
    where they are not known to be.
    """
    called, args = facts.name(node), node.args
    if called == "asynchronous_complete_cumsum":
        return [node, node.all_input_nodes[0]]
    if called in ("pad", "constant_pad_nd") and tuple(args[1]) == (1, 0):  # type: ignore[arg-type]
        rest = [*args[2:], *node.kwargs.values()]
        return _summed([node], args[0]) if all(x in ("constant", None, 0) for x in rest) else []
    if called in ("cat", "concat") and isinstance(args[0], (tuple, list)) and len(args[0]) == 2:
        zero, sums = args[0]
        if isinstance(zero, Node) and facts.name(zero) in ("zeros", "new_zeros", "zeros_like"):
            (made,) = facts.tensors(zero) or [torch.empty(0)]
            return _summed([node, zero], sums) if same(made.numel(), 1) else []
    return []


def _summed(way: list[Node], node: Any) -> list[Node]:
    """`way`, and on from a cumulative sum in integers to the lengths that are summed."""
    while isinstance(node, Node) and facts.name(node) in _KEEPS_VALUES and _keeps_integers(node):
        way = [*way, node]
        node = node.all_input_nodes[0]
    if not isinstance(node, Node) or facts.name(node) != "cumsum":
        return []
    (made,) = facts.tensors(node)
    lengths = node.all_input_nodes[0]
    counted = made.dim() == 1 and made.dtype in (torch.int32, torch.int64)
    return [*way, node, lengths] if counted and facts.tensors(lengths)[0].dim() == 1 else []


def _keeps_integers(node: Node) -> bool:
    kinds = [t.dtype for n in (node, *node.all_input_nodes[:1]) for t in facts.tensors(n)]
    return len(kinds) == 2 and all(kind in (torch.int32, torch.int64) for kind in kinds)


def _arguments(node: Node, table: Mapping[str, tuple[str, ...]]) -> dict[str, Any] | None:
    """The arguments of a call by name; None where it is none of the table's."""
    called = facts.name(node)
    if called not in table or node.op not in ("call_function", "call_method"):
        return None
    qualified = getattr(node.target, "_qualified_op_name", None)
    space = getattr(node.target, "namespace", None) or (qualified or "aten::").split("::")[0]
    if space not in ("aten", "fbgemm", "gdpa"):
        return None
    return {**dict(zip(table[called], node.args, strict=False)), **node.kwargs}


def _offsets(arguments: Mapping[str, Any]) -> Node | None:
    """The offsets of a call, if they are of one level: one tensor, or a list of one."""
    given = arguments.get("x_offsets", arguments.get("offsets"))
    if isinstance(given, (tuple, list)):
        return given[0] if len(given) == 1 and isinstance(given[0], Node) else None
    return given if isinstance(given, Node) else None


def _operands(candidate: Candidate) -> list[Node]:
    """Of all its products."""
    return [
        n for product in (*candidate.firsts, candidate.second) for n in products.operands(product)
    ]


def _reads_through(node: Node) -> bool:
    """A view or a copy; of subscripts those without tensors, which look elements up."""
    return facts.name(node) in READ_THROUGH and not (
        facts.name(node) == "getitem" and any(map(facts.tensors, node.all_input_nodes[1:]))
    )


def _reads_shape(node: Node) -> bool:
    return facts.name(node) in functions.SHAPES and not facts.tensors(node)


def _sink(tail: tuple[Node, ...], node: Node) -> Sink | None:
    """The sink that the call of `node` is; None where it is no unpad."""
    parts = {n: n.args[1] for n in node.users if facts.name(n) == "getitem"}
    values = [n for n, number in parts.items() if number == 0]
    call = call_of(node, UNPADS) or (call_of(values[0], UNPADS) if values else None)
    if call is None:
        return None
    offsets = _offsets(call.given)
    if offsets is None:
        raise Refused(Code.JAGGED_LAYOUT, f"{places.describe(node)} unpads several levels")
    if isinstance(facts.value(node), torch.Tensor):
        return Sink(tail, (node,), node, offsets)
    lists = [n for n, number in parts.items() if number == 1]
    again = [n for part in lists for n in part.users]
    known = all(facts.name(n) == "getitem" and n.args[1] == 0 for n in again)
    if len(parts) != len(node.users) or len(values) != 1 or not known:
        raise Refused(Code.JAGGED_OUTPUT, f"{places.describe(node)} returns a list that is used")
    return Sink(tail, (node, *values, *lists, *again), values[0], offsets, tuple(again))
