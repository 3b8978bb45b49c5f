"""The modes in which each node of a graph runs: autocast, gradient mode, function transforms.

Dynamo records changes of modes as calls. `Ambient.of` scans a graph once and returns the modes of
each node. The scan begins with the modes that were active when the graph was captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node

from ..._compat import fx


@dataclass(frozen=True)
class State:
    """The modes of a node.

    autocast:               The contexts that the graph has entered, the outermost first.
    transforms, inference:  How many function transforms and inference modes are open.
    """

    autocast: tuple[tuple[object, ...], ...] = ()
    grad: bool = True
    transforms: int = 0
    inference: int = 0

    @property
    def modes(self) -> tuple[bool, int, int]:
        """The modes that decide whether autograd records a call, and how."""
        return self.grad, self.transforms, self.inference

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run under this state's autocast."""
        with fx.autocast_regions(self.autocast):
            yield


class Ambient(dict[Node, State]):
    """The state of every node of one graph."""

    @staticmethod
    def of(graph: Graph, start: State | None = None) -> Ambient:
        state = start or State(grad=torch.is_grad_enabled())
        entered: list[tuple[Node | None, tuple[object, ...]]]
        entered = [(None, args) for args in state.autocast]
        ambient = Ambient()
        for node in graph.nodes:
            change = fx.state_change(node.target) if node.op == "call_function" else ""
            if change == "autocast on":
                entered.append((node, tuple(node.args)))
            elif change == "autocast off":
                # The call that leaves a context names the one that entered it: they need not nest.
                entered = [item for item in entered if item[0] is not node.args[0]]
            if change:
                called = getattr(node.target, "__name__", "")
                step = -1 if any(word in called for word in ("decrement", "exit", "enable")) else 1
                state = State(
                    tuple(args for _, args in entered),
                    bool(node.args[0]) if change == "grad" else state.grad,
                    state.transforms + (step if change == "transform" else 0),
                    state.inference + (step if change == "inference" else 0),
                )
            ambient[node] = state
        return ambient

    def inside(self, call: Node) -> State:
        """The state in which the bodies of a higher-order op begin."""
        state, change = self[call], fx.body_change(call.target)
        if change == "grad":
            return replace(state, grad=bool(call.args[0]))
        if change == "autocast on":
            return replace(state, autocast=(*state.autocast, tuple(call.args[:4])))
        return state
