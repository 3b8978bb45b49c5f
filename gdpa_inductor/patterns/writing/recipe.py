"""A recipe is the list of new calls that replace a region, tried on fakes before the graph changes.

`Recipe.call` runs a function on fake values, and records it. `writer` puts the recorded calls into
the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from ..._compat import fx, inductor, shapes
from ...ops import FORWARDS
from ...rejection import Code
from ..host import facts
from ..host.sizes import Size, is_one, same
from ..reading.frame import Digits, Index, flat
from ..reading.layout import sizes
from ..result import Refused

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Handle:
    """A tensor of the replacement: its fake value, and the user's node or the call that makes
    it.

    dropout: The call draws the seed of this node, and is written there.
    """

    value: torch.Tensor
    node: Node | None = None
    target: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    dropout: Node | None = None


def _is_attention(call: Handle) -> bool:
    return any(call.target is forward.op for forward in FORWARDS)


@dataclass
class Recipe:
    """The calls of one replacement, in order.

    copied: Tensors of the user that are copied, because they change before the backward.
    """

    grad: bool
    fake_mode: Any
    copied: Collection[Node] = ()
    calls: list[Handle] = field(default_factory=list)
    _copies: dict[tuple[Node, str, torch.dtype | None], Handle] = field(default_factory=dict)

    @property
    def attention(self) -> Handle:
        """The one call of the operator."""
        (attention,) = filter(_is_attention, self.calls)
        return attention

    def until(self, last: Handle | None = None) -> list[Handle]:
        """The calls up to one of them, or all."""
        return self.calls if last is None else self.calls[: self.calls.index(last) + 1]

    def leaf(self, node: Node, dtype: torch.dtype | None = None, *, part: str = "values") -> Handle:
        """A tensor of the user; for a nested tensor, one of its parts.

        dtype: The dtype to which it will be cast. A copy has it already.
        """
        key = node, part, dtype
        if key in self._copies:
            return self._copies[key]
        handle = Handle(facts.tensors(node)[0], node)
        if handle.value.is_nested:
            handle = self.call(part, handle)
        if node in self.copied:
            dtypes = [] if dtype is None else [dtype]
            handle = self.call(torch.ops.gdpa.kept.default, handle, *dtypes)
            self._copies[key] = handle
        return handle

    def call(self, target: Callable[..., Any] | str, *args: Any, **options: Any) -> Handle:
        """Run `target` on fakes, and record the call.

        target: A function or the name of a method. args: May hold handles and symbolic sizes.
        """
        given = args, options
        values, named = map_aggregate(given, lambda x: x.value if isinstance(x, Handle) else x)
        function: Any = target
        if isinstance(target, str):
            function, values = getattr(values[0], target), values[1:]
        with self.fake_mode, fx.without_guards(self.fake_mode), torch.set_grad_enabled(self.grad):
            value = function(*values, **named)
        handle = Handle(value, None, target, args, options)
        self.calls.append(handle)
        return handle

    def seed(self, dropout: Node) -> Handle:
        """The seed of a dropout, drawn where stock Inductor draws it."""
        device = facts.tensors(dropout)[0].device
        handle = replace(self.call(inductor.seed_op(), device), dropout=dropout)
        self.calls[-1] = handle
        return handle

    def arrange(self, source: Handle, index: Index, target: Index) -> Handle:
        """Permute and reshape a tensor with the digits `index` to one with the digits `target`.

        Digits of `target` that the source lacks are expanded. It copies only if strides require it.
        """
        source, index = self._selected(source, index)
        have, wanted = flat(index), flat(target)
        if index == target:
            return source
        if not set(have) <= set(wanted):
            raise Refused(Code.LAYOUT, "an operand has a dimension that the scores lack")
        if have != wanted:
            source = self._split(source, index)
            order = [have.index(atom) for atom in wanted if atom in have]
            if order != list(range(len(order))):
                source = self.call(aten.permute.default, source, order)
            source = self._expanded(source, have, target)
            if all(len(digits) <= 1 for digits in target):
                return source
        # Not `view`: in a dim of size 1 the real stride may differ from that of the fake.
        return self.call(aten.reshape.default, source, [sizes(digits) for digits in target])

    def _split(self, source: Handle, index: Index) -> Handle:
        if all(len(digits) == 1 for digits in index):
            return source
        return self.call(aten.reshape.default, source, [atom.size for atom in flat(index)])

    def _expanded(self, source: Handle, have: Digits, target: Index) -> Handle:
        """A dim for each atom of `target`. Atoms that are not in `have` are expanded."""
        dims: list[Digits] = []
        for digits in target:
            for atom in digits or (None,):
                if atom not in have:
                    source = self.call(aten.unsqueeze.default, source, len(dims))
                dims.append(() if atom is None else (atom,))
        if set(have) >= set(flat(target)):
            return source
        return self.call(aten.expand.default, source, [sizes(digits) for digits in dims])

    def _selected(self, source: Handle, index: Index) -> tuple[Handle, Index]:
        have = flat(index)
        if not any(atom.is_fixed for atom in have):
            return source, index
        source = self._split(source, index)
        for dim in reversed(range(len(have))):
            if have[dim].is_fixed:
                source = self.call(aten.select.int, source, dim, have[dim].value)
        return source, tuple((atom,) for atom in have if not atom.is_fixed)

    def contiguous(self, source: Handle) -> Handle:
        return self.call(aten.clone.default, source, memory_format=torch.contiguous_format)

    def cast(self, source: Handle, dtype: torch.dtype) -> Handle:
        same_dtype = source.value.dtype == dtype
        return source if same_dtype else self.call(aten._to_copy.default, source, dtype=dtype)

    def own(self, source: Handle) -> Handle:
        """A tensor that is not a view.

        A view that was made under `no_grad` must not be written into while gradients flow.
        """
        may_be_view = source.node is None and not _is_attention(source)
        return self.call(aten.detach.default, source) if may_be_view else source

    def detached(self, source: Handle) -> Handle:
        """The tensor without a gradient. In an exported graph it may want one: nobody knows yet."""
        return self.call(aten.detach.default, source) if self.grad else source

    def sizes(self) -> list[Size]:
        """All symbolic sizes in the arguments of the calls."""
        arguments = (x for call in self.calls for x in fx.tree_leaves(list(call.args)))
        return [x for x in arguments if isinstance(x, torch.SymInt)]

    def with_strides(self, source: Handle, wanted: torch.Tensor) -> Handle:
        """The same tensor with the strides of `wanted`. It is copied only if they differ."""
        strides = zip(source.value.shape, source.value.stride(), wanted.stride(), strict=True)
        if all(is_one(size) or same(old, new) for size, old, new in strides):
            return source
        hints = map(shapes.size_hint, wanted.stride())
        known = [1 << 60 if hint is None else hint for hint in hints]
        order = sorted(range(wanted.dim()), key=lambda dim: -known[dim])
        back = [order.index(dim) for dim in range(wanted.dim())]
        source = self.contiguous(self.call(aten.permute.default, source, order))
        return self.call(aten.permute.default, source, back)
