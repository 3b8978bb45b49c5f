"""The modes in which each node of a graph runs: autocast, gradient mode, function transforms.

Dynamo records changes of modes as calls. `Ambient.of` scans a graph once and returns the modes of
each node. The scan begins with the modes that were active when the graph was captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Graph, Node

from ..._compat import fx


@dataclass(frozen=True)
class State:
    """The modes of a node.

    They are the autocast contexts that the graph has entered (outermost first), the gradient mode,
    and how many transforms and inference modes are open.
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


@dataclass
class Ambient:
    """The state of every node of one graph."""

    states: dict[Node, State] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, start: State | None = None) -> Ambient:
        state = start or State(grad=torch.is_grad_enabled())
        entered: list[tuple[Node, tuple[object, ...]]] = [(None, args) for args in state.autocast]  # type: ignore[misc]
        ambient = Ambient()
        for node in graph.nodes:
            change = fx.state_change(node.target) if node.op == "call_function" else ""
            if change == "autocast on":
                entered.append((node, tuple(node.args)))
            elif change == "autocast off":
                entered = [item for item in entered if item[0] is not node.args[0]]
            if change:
                state = State(
                    tuple(args for _, args in entered),
                    bool(node.args[0]) if change == "grad" else state.grad,
                    state.transforms + _step(node, change == "transform"),
                    state.inference + _step(node, change == "inference"),
                )
            ambient.states[node] = state
        return ambient

    def __getitem__(self, node: Node) -> State:
        return self.states[node]

    def inside(self, call: Node) -> State:
        """The state in which the bodies of a higher-order op begin."""
        state, change = self[call], fx.body_change(call.target)
        if change == "grad":
            return replace(state, grad=bool(call.args[0]))
        if change == "autocast on":
            return replace(state, autocast=(*state.autocast, tuple(call.args[:4])))
        return state


def _step(node: Node, counts: bool) -> int:
    """+1 if a node enters a transform or mode, -1 if it leaves one, else 0."""
    called = getattr(node.target, "__name__", "")
    if not counts:
        return 0
    return -1 if "decrement" in called or "exit" in called or "enable" in called else 1
