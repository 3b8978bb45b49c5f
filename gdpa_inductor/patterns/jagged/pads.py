"""Read calls that pad and unpad, by their names, as `Pad` and `Sink`.

fbgemm is not imported. A torch.autograd.Function counts as such a call, if it calls only one of
these functions and its backward only the inverse. ATen's padding functions have no derivative, so
models that train wrap them in such Functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..._compat import fx, operators, subclasses
from ...rejection import Code
from ..host import facts, places
from ..host.region import Sink
from ..host.sizes import Size
from ..result import Refused

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
_CREATIONS = (
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
    target, mask, rows = (facts.flat_nodes(argument) for argument in node.args[:3])
    return (
        len(target) == len(mask) == len(rows) == 1
        and facts.name(target[0]) in _CREATIONS
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
class AutogradFunction:
    """A Function that wraps one call. Dynamo captures it as one call with two bodies.

    forward:   The call of the forward body.
    backward:  The call of the backward body. It makes the gradient of the forward's first tensor.
    operands:  From each input of the forward body to the caller's argument.
    saved:     From each input of the backward body to the input of the forward body that it saves.
    """

    forward: Node
    backward: Node
    operands: dict[Node, Node]
    saved: dict[Node, Node]


def autograd_function(node: Node) -> AutogradFunction | None:
    """The reading of a call of an autograd.Function, or None if it wraps more than one call."""
    if node.op != "call_function" or not fx.is_autograd_function(node.target):
        return None
    bodies = [fx.body_of(n) for n in node.args[:2] if isinstance(n, Node)]
    if len(bodies) != 2 or bodies[0] is None or bodies[1] is None:
        return None
    forward, backward = (None if body is None else _only_call(body) for body in bodies)
    if forward is None or backward is None:
        return None
    inputs, (results, *saved_inputs) = _ends(bodies[0])
    gradients, returned = _ends(bodies[1])
    if results[0] is not forward or any(facts.tensors(n) for n in facts.flat_nodes(results[1:])):
        return None
    source = facts.flat_nodes(forward.args + tuple(forward.kwargs.values()))[0]
    if list(returned) != [backward if n is source else None for n in inputs]:
        return None
    operands = {
        inner: outer for inner, outer in zip(inputs, node.args[2:]) if isinstance(outer, Node)
    }
    saved = dict(zip(gradients[len(results) :], saved_inputs[0] if saved_inputs else ()))
    return AutogradFunction(forward, backward, operands, saved)


def _only_call(body: GraphModule) -> Node | None:
    calls = [n for n in body.graph.nodes if n.op.startswith("call") and not _is_idle(n)]
    return calls[0] if len(calls) == 1 else None


def _is_idle(node: Node) -> bool:
    # It only changes modes, or computes sizes.
    if node.op == "call_function" and fx.state_change(node.target):
        return True
    return facts.value(node) is not None and not facts.tensors(node)


def _ends(body: GraphModule) -> tuple[list[Node], Any]:
    """(the inputs of a body, the argument of its output)"""
    inputs, (output,) = (body.graph.find_nodes(op=op) for op in ("placeholder", "output"))
    return inputs, output.args[0]


def call_of(
    node: Node, table: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, Any], tuple[Node, ...]] | None:
    """The call of a function in `table` that returns `node`, plain or in an autograd.Function:
    its arguments by name, and the nodes that make it.
    """
    arguments = _arguments(node, table)
    if arguments is not None:
        return arguments, (node,)
    if facts.name(node) != "getitem" or node.args[1] != 0 or not isinstance(node.args[0], Node):
        return None
    function = autograd_function(node.args[0])
    arguments = None if function is None else _arguments(function.forward, table)
    if function is None or arguments is None:
        return None
    if not _is_inverse(function, arguments, UNPADS if table is PADS else PADS):
        return None
    operands = function.operands
    outer = torch.fx.map_arg(arguments, lambda n: operands.get(n, n))
    return dict(outer), (node, node.args[0])


def _is_inverse(
    function: AutogradFunction, arguments: Mapping[str, Any], inverse: dict[str, tuple[str, ...]]
) -> bool:
    """Whether the backward of a wrapped pad is an unpad of the gradient by the same offsets.

    Or the other way round: then the backward pads with zeros.
    """
    back = _arguments(function.backward, inverse)
    gradient = next(iter(function.backward.graph.nodes))  # the first input of the backward body
    if back is None or next(iter(back.values())) is not gradient:
        return False
    offsets, others = _offsets(arguments), _offsets(back)
    same_offsets = others is not None and function.saved.get(others) is offsets
    return same_offsets and back.get("padding_value", 0.0) == 0


def pad_of(node: Node) -> Pad | None:
    """The pad of a node. None if it does not pad, or pads by several levels of offsets."""
    call, outputs = call_of(node, PADS), facts.tensors(node)
    if call is None or len(outputs) != 1 or not facts.is_plain(node):
        return None
    arguments, nodes = call
    values = next(iter(arguments.values()))
    if not isinstance(values, Node):
        return None
    fill = arguments.get("padding_value", arguments.get("padding", 0.0))
    if "values" not in arguments:
        return Pad(node, values, values, fill, nodes) if is_nested(values) else None
    offsets = _offsets(arguments)
    if offsets is None or len(facts.tensors(values)) != 1 or not facts.is_plain(values):
        return None
    if outputs[0].dim() != facts.tensors(values)[0].dim() + 1:
        return None
    return Pad(node, values, offsets, fill, nodes)


def length_of(pad: Pad) -> Size:
    return subclasses.values_of(facts.tensors(pad.values)[0]).shape[0]


def is_nested(node: Node) -> bool:
    """Whether a node is a nested tensor with contiguous values, whose only ragged dim is dim 1."""
    value = facts.value(node)
    return (
        isinstance(value, torch.Tensor)
        and value.is_nested
        and value.layout == torch.jagged
        and subclasses.is_compact_nested(value)
    )


def sink_of(tail: tuple[Node, ...], node: Node) -> Sink | None:
    parts = {n: n.args[1] for n in node.users if facts.name(n) == "getitem"}
    values = [n for n, number in parts.items() if number == 0]
    call = call_of(node, UNPADS) or (call_of(values[0], UNPADS) if values else None)
    if call is None:
        return None
    offsets = _offsets(call[0])
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
    called = facts.name(node)
    if called not in table or not facts.is_call(node):
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
    offsets = arguments.get("x_offsets", arguments.get("offsets"))
    if isinstance(offsets, (tuple, list)):
        offsets = offsets[0] if len(offsets) == 1 else None
    return offsets if isinstance(offsets, Node) else None
