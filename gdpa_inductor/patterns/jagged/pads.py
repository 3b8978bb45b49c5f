"""Read calls that pad and unpad, by their names, as `Pad` and `Sink`.

fbgemm is not imported. A torch.autograd.Function counts as such a call, if it calls only one of
these functions and its backward only the inverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..._compat import operators, subclasses
from ...rejection import Code
from ..host import facts, places
from ..host.region import Sink
from ..host.sizes import Size
from ..result import Refused
from .autograd_functions import AutogradFunction, autograd_function

# fmt: off
# Functions that pad, with the names of their parameters. The first parameter is always the values,
# or the nested tensor.
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
# Calls that fill a tensor with rows one after the other, by a mask.
_SCATTERS = (
    "masked_scatter", "masked_scatter_", "setitem", "__setitem__", "index_put", "index_put_",
)
_MADE_FOR_IT = (
    "zeros", "new_zeros", "zeros_like", "full", "new_full", "full_like", "empty", "new_empty",
    "empty_like",
)
# fmt: on


def is_unread_pad(node: Node) -> bool:
    """Whether a call pads without offsets: `pad_sequence`, or rows that go where a mask is true."""
    if facts.name(node) == "pad_sequence":
        return True
    if facts.name(node) not in _SCATTERS or len(node.args) < 3:
        return False
    made, mask, rows = (facts.flat_nodes(argument) for argument in node.args[:3])
    return (
        len(made) == len(mask) == len(rows) == 1
        and facts.name(made[0]) in _MADE_FOR_IT
        and any(t.dtype == torch.bool for t in facts.tensors(mask[0]))
        and any(t.dim() > 0 for t in facts.tensors(rows[0]))
    )


@dataclass(frozen=True)
class Pad:
    """One pad.

    node:     The padded tensor, [B, N, ...].
    values:   The values, [L, ...], or a nested tensor.
    offsets:  The offsets of the sequences.
    fill:     The number in the padding.
    calls:    The nodes that make it, the last first.
    """

    node: Node
    values: Node
    offsets: Node
    fill: Any
    calls: tuple[Node, ...]

    @property
    def longest(self) -> Size:
        return facts.tensors(self.node)[0].shape[1]


@dataclass(frozen=True)
class PadCall:
    """A call of a function in a table: its name, its arguments by name, the nodes that make it."""

    name: str
    given: dict[str, Any]
    nodes: tuple[Node, ...]


def call_of(node: Node, table: Mapping[str, tuple[str, ...]]) -> PadCall | None:
    """The call of a function in `table` that returns `node`, plain or in an autograd.Function."""
    given = _arguments(node, table)
    if given is not None:
        return PadCall(facts.name(node), given, (node,))
    if facts.name(node) != "getitem" or node.args[1] != 0 or not isinstance(node.args[0], Node):
        return None
    held = autograd_function(node.args[0])
    given = None if held is None else _arguments(held.forward, table)
    if held is None or given is None or not _is_inverse(held, table):
        return None
    known = {name: held.outside(value) for name, value in given.items()}
    return PadCall(facts.name(held.forward), known, (node, node.args[0]))


def _is_inverse(held: AutogradFunction, table: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the backward of a wrapped pad is an unpad of the gradient by the same offsets.

    Or the other way round: then the backward pads with zeros.
    """
    inverse = UNPADS if table is PADS else PADS
    given, back = _arguments(held.forward, table), _arguments(held.backward, inverse)
    if given is None or back is None or next(iter(back.values())) is not held.gradient:
        return False
    offsets, others = _offsets(given), _offsets(back)
    same_offsets = others is not None and held.saved.get(others) is offsets
    return same_offsets and back.get("padding_value", 0.0) == 0


def pad_of(node: Node) -> Pad | None:
    """The pad of a node. None if it does not pad, or pads by several levels of offsets."""
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
    return subclasses.values_of(facts.tensors(pad.values)[0]).shape[0]


def is_nested(node: Node) -> bool:
    """Whether a node is a nested tensor with contiguous values, whose only ragged dim is dim 1."""
    found = facts.value(node)
    return (
        isinstance(found, torch.Tensor)
        and found.is_nested
        and found.layout == torch.jagged
        and subclasses.is_compact_nested(found)
    )


def sink_of(tail: tuple[Node, ...], node: Node) -> Sink | None:
    """The sink of a node that unpads, or None."""
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


def _arguments(node: Node, table: Mapping[str, tuple[str, ...]]) -> dict[str, Any] | None:
    """The arguments of a call by name, or None if its function is not in the table."""
    called = facts.name(node)
    if called not in table or node.op not in ("call_function", "call_method"):
        return None
    if not is_known(node):
        return None
    return {**dict(zip(table[called], node.args, strict=False)), **node.kwargs}


def is_known(node: Node) -> bool:
    """Whether a call is from a library of the tables. Other libraries may use the same names."""
    qualified = operators.qualified_name(node.target)
    space = getattr(node.target, "namespace", None) or (qualified or "aten::").split("::")[0]
    return space in ("aten", "fbgemm", "gdpa")


def _offsets(arguments: Mapping[str, Any]) -> Node | None:
    """The offsets of a call, if they have one level: a tensor, or a list with one."""
    given = arguments.get("x_offsets", arguments.get("offsets"))
    if isinstance(given, (tuple, list)):
        return given[0] if len(given) == 1 and isinstance(given[0], Node) else None
    return given if isinstance(given, Node) else None
