"""Read a torch.autograd.Function that wraps one call, and whose backward is one call too.

ATen's padding functions have no derivative, so models that train wrap them in such Functions.
Dynamo captures a Function as one call with two bodies, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..._compat import fx
from ..host import facts


@dataclass(frozen=True)
class AutogradFunction:
    """A Function that wraps one call.

    forward:   The call of the forward body.
    backward:  The call of the backward body. It makes the gradient of the forward's first tensor.
    operands:  From each input of the forward body to the caller's argument.
    saved:     From each input of the backward body to the input of the forward body that it saves.
    """

    forward: Node
    backward: Node
    operands: dict[Node, Node]
    saved: dict[Node, Node]

    def outside(self, given: Any) -> Any:
        """An argument of the forward call, with the caller's nodes in place of the body's
        inputs.
        """
        return torch.fx.map_arg(given, lambda node: self.operands.get(node, node))

    @property
    def gradient(self) -> Node:
        """The input of the backward body that holds the gradient of the result."""
        return next(iter(self.backward.graph.nodes))


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
    inputs, (results, *kept) = _ends(bodies[0])
    gradients, returned = _ends(bodies[1])
    if results[0] is not forward or any(facts.tensors(n) for n in facts.flat_nodes(results[1:])):
        return None
    source = facts.flat_nodes(forward.args + tuple(forward.kwargs.values()))[0]
    wanted = [backward if n is source else None for n in inputs]
    if list(returned) != wanted:
        return None
    operands = {
        inner: outer for inner, outer in zip(inputs, node.args[2:]) if isinstance(outer, Node)
    }
    saved = dict(zip(gradients[len(results) :], kept[0] if kept else ()))
    return AutogradFunction(forward, backward, operands, saved)


def _only_call(body: GraphModule) -> Node | None:
    """The one call of a body that makes tensors."""
    calls = [n for n in body.graph.nodes if n.op.startswith("call") and not _is_idle(n)]
    return calls[0] if len(calls) == 1 else None


def _is_idle(node: Node) -> bool:
    """Whether a node only changes modes, or computes sizes."""
    if node.op == "call_function" and fx.state_change(node.target):
        return True
    return facts.value(node) is not None and not facts.tensors(node)


def _ends(body: GraphModule) -> tuple[list[Node], Any]:
    inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
    (end,) = (n for n in body.graph.nodes if n.op == "output")
    return inputs, end.args[0]
