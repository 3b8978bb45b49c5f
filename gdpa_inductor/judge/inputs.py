"""Make fake inputs for a captured graph: as they were before the graph ran, with hinted sizes.

The fakes on the nodes of a capture may have been changed by the graph itself. So the real inputs
are used if they are known. Inputs that share a storage share one here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from .._compat import autograd, dynamo, fx, shapes, subclasses
from .record import Incomplete


@dataclass
class GraphInputs:
    """Fakes of inputs, parameters and buffers, in one fake mode.

    passed: All tensors that the caller passes or the graph holds. They may change later.
    """

    mode: Any = field(default_factory=subclasses.own_fake_mode)
    passed: list[Tensor] = field(default_factory=list)
    _bases: dict[Any, Tensor] = field(default_factory=dict)
    _alone: set[Any] = field(default_factory=set)
    _shared: set[Any] = field(default_factory=set)
    _learned: set[Any] = field(default_factory=set)
    _attributes: dict[int, Any] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)

    def of_graph(self, gm: GraphModule) -> list[Any]:
        """A value for each placeholder."""
        nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
        captures = [_captured(n) for n in nodes]
        needed: dict[Any, int] = {}
        for tensor in captures:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                key = _key(tensor)
                (self._shared if key in needed else self._alone).add(key)
                if _is_result(tensor):
                    self._learned.add(key)
                needed[key] = max(needed.get(key, 0), _extent(tensor))
        self._alone -= self._shared
        fakes = [
            self._like(t, needed.get(_key(t), 0)) if isinstance(t, Tensor) else _number(t)
            for t in captures
        ]
        tensors = (x for x in fakes if isinstance(x, Tensor))
        self.passed += [x for x in tensors if x.layout == torch.strided]
        return fakes

    def attribute(self, owner: GraphModule, target: str) -> Any:
        """A parameter, buffer or body that a graph fetches."""
        value: Any = owner
        for part in target.split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._attributes:
            self._alive.append(value)
            if _is_result(value):
                self._learned.add(_key(value))
            fake = self._attributes[id(value)] = self._like(value, _extent(value))
            self.passed += [fake] if fake.layout == torch.strided else []
        return self._attributes[id(value)]

    def fresh(self, node: Node, operands: Iterable[Any]) -> Any:
        """New results, as the capture has them, for a call that is not run."""
        value = node.meta.get("example_value")
        value = node.meta.get("val") if value is None else value
        grad = torch.is_grad_enabled() and any(
            isinstance(x, Tensor) and x.requires_grad for x in operands
        )

        def fake(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return _number(x)
            sizes, strides = _sizes(x.shape), _sizes(x.stride())
            new = torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device)
            return new.requires_grad_(grad and new.is_floating_point())

        return fx.tree_map(fake, value)

    def _like(self, tensor: Tensor, extent: int) -> Tensor:
        if tensor.layout != torch.strided:
            return self._nested(tensor)
        sizes, strides = _sizes(tensor.shape), _sizes(tensor.stride())
        start = shapes.hint_of(tensor.storage_offset())
        if not start and autograd.is_leaf(tensor) and _key(tensor) in self._alone:
            fake = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
            return fake.requires_grad_(tensor.requires_grad)
        base = self._base(tensor, extent)
        if _is_result(tensor):
            base = base if base.requires_grad else base.detach().requires_grad_().clone()
            return base.as_strided(sizes, strides, start)
        with torch.no_grad():
            fake = base.detach().as_strided(sizes, strides, start).detach()
        return fake.requires_grad_(tensor.requires_grad)

    def _base(self, tensor: Tensor, extent: int) -> Tensor:
        key = _key(tensor)
        if key not in self._bases:
            self._alive.append(tensor)
            base = torch.empty(extent, dtype=tensor.dtype, device=tensor.device)
            if key in self._learned:  # unlike a leaf, the clone may be written in place
                base = base.requires_grad_().clone()
            self._bases[key] = base
        return self._bases[key]

    def _nested(self, tensor: Tensor) -> Tensor:
        try:
            fake: Tensor = self.mode.from_tensor(tensor, static_shapes=True)
        except Exception as error:
            raise Incomplete(f"an input of layout {tensor.layout}") from error
        return fake


def _captured(node: Node) -> Any:
    real = dynamo.real_input(node)
    if real is not None:
        return real
    value = node.meta.get("example_value")
    return node.meta.get("val") if value is None else value


def _is_result(tensor: Tensor) -> bool:
    """Whether autograd knows what made it."""
    return tensor.requires_grad and not autograd.is_leaf(tensor)


def _key(tensor: Tensor) -> Any:
    if tensor.layout != torch.strided:
        return id(tensor)
    return subclasses.storage_address(tensor.untyped_storage()), tensor.dtype


def _sizes(sizes: Iterable[Any]) -> list[int]:
    return [_number(size) for size in sizes]


def _number(value: Any) -> Any:
    """Symbols at their hints; those without one at a small number."""
    hint = shapes.hint_of(value)
    if hint is None and isinstance(value, torch.SymInt):
        return 7
    return value if hint is None else hint


def _extent(tensor: Tensor) -> int:
    """How many elements of its storage a tensor reaches over."""
    last = sum((n - 1) * s for n, s in zip(_sizes(tensor.shape), _sizes(tensor.stride())) if n)
    return last + 1 + int(_number(tensor.storage_offset())) if 0 not in tensor.shape else 0
