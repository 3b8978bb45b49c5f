"""Make fake inputs for a captured graph: as they were before the graph ran, with hinted sizes.

The fakes on the nodes of a capture may have been changed by the graph itself. So the real inputs
are used if they are known. Inputs that share a storage share one here too.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from .._compat import autograd, dynamo, fx, shapes, subclasses
from .verdict import Incomplete


@dataclass
class GraphInputs:
    """Fakes of inputs, parameters and buffers, in one fake mode.

    passed: All tensors that the caller passes or the graph holds. They may change later.
    """

    mode: Any = field(default_factory=subclasses.own_fake_mode)
    passed: list[Tensor] = field(default_factory=list)
    _bases: dict[Any, Tensor] = field(default_factory=dict)
    _alone: set[Any] = field(default_factory=set)
    _learned: set[Any] = field(default_factory=set)
    _attributes: dict[int, Any] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)

    def of_graph(self, gm: GraphModule) -> list[Any]:
        """A value for each placeholder."""
        values: list[Any] = []
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                real = dynamo.real_input(node)
                values.append(fx.value_of(node) if real is None else real)
        extents: dict[Any, int] = {}
        strided = [x for x in values if _is_strided(x)]
        for tensor in strided:
            extents[_key(tensor)] = max(extents.get(_key(tensor), 0), _extent(tensor))
        self._learned |= {_key(x) for x in strided if _is_result(x)}
        uses = Counter(map(_key, strided))
        self._alone = {key for key, count in uses.items() if count == 1}
        fakes = [
            self._like(x, extents.get(_key(x), 0)) if isinstance(x, Tensor) else _number(x)
            for x in values
        ]
        self.passed += filter(_is_strided, fakes)
        return fakes

    def attribute(self, owner: GraphModule, target: str) -> Any:
        """A parameter, buffer or body that a graph fetches."""
        value = operator.attrgetter(target)(owner)
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._attributes:
            self._alive.append(value)
            if _is_result(value):
                self._learned.add(_key(value))
            fake = self._attributes[id(value)] = self._like(value, _extent(value))
            self.passed += filter(_is_strided, [fake])
        return self._attributes[id(value)]

    def fresh(self, node: Node, operands: Iterable[Any]) -> Any:
        """New results, as the capture has them, for a call that is not run."""
        grad = torch.is_grad_enabled() and any(
            isinstance(x, Tensor) and x.requires_grad for x in operands
        )

        def fake(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return _number(x)
            new = _empty_like(x)
            return new.requires_grad_(grad and new.is_floating_point())

        return fx.tree_map(fake, fx.value_of(node))

    def _like(self, tensor: Tensor, extent: int) -> Tensor:
        if tensor.layout != torch.strided:
            try:
                nested: Tensor = self.mode.from_tensor(tensor, static_shapes=True)
            except Exception as error:
                raise Incomplete(f"an input of layout {tensor.layout}") from error
            return nested
        start, key = shapes.hint_of(tensor.storage_offset()), _key(tensor)
        if not start and autograd.is_leaf(tensor) and key in self._alone:
            return _empty_like(tensor).requires_grad_(tensor.requires_grad)
        if key not in self._bases:
            self._alive.append(tensor)
            base = torch.empty(extent, dtype=tensor.dtype, device=tensor.device)
            # Unlike a leaf, the clone may be written in place.
            learned = key in self._learned
            self._bases[key] = base.requires_grad_().clone() if learned else base
        base, view = self._bases[key], (_sizes(tensor.shape), _sizes(tensor.stride()), start)
        if _is_result(tensor):
            base = base if base.requires_grad else base.detach().requires_grad_().clone()
            return base.as_strided(*view)
        with torch.no_grad():
            fake = base.detach().as_strided(*view).detach()
        return fake.requires_grad_(tensor.requires_grad)


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _is_result(tensor: Tensor) -> bool:
    """Whether autograd knows what made it."""
    return tensor.requires_grad and not autograd.is_leaf(tensor)


def _key(tensor: Tensor) -> Any:
    if tensor.layout != torch.strided:
        return id(tensor)
    return subclasses.storage_address(tensor.untyped_storage()), tensor.dtype


def _empty_like(tensor: Tensor) -> Tensor:
    sizes, strides = _sizes(tensor.shape), _sizes(tensor.stride())
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)


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
