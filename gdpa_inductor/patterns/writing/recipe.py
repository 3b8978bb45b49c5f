"""A recipe is the list of new calls that replace a region, tried on fakes before the graph changes.

`Recipe.call` runs a function on fake values, and records it. `writer` puts the recorded calls into
the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ..._compat import fx, shapes
from ...ops import ATTENTION
from ...rejection import Code
from ..host import facts
from ..host.sizes import Size, is_one, same
from ..reading.frame import Digits, Index
from ..reading.layout import sizes
from ..result import Refused

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Handle:
    """A tensor of the replacement: its fake value, and the user's node or the call that makes
    it.
    """

    value: torch.Tensor
    node: Node | None = None
    target: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


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
        (attention,) = (call for call in self.calls if call.target is ATTENTION.op)
        return attention

    def leaf(self, node: Node, dtype: torch.dtype | None = None) -> Handle:
        """A tensor of the user; for a nested tensor, its values.

        dtype: The dtype to which it will be cast. A copy has it already.
        """
        return self._tensor(node, "values", dtype)

    def offsets(self, node: Node) -> Handle:
        """A tensor of offsets, or the offsets of a nested tensor."""
        return self._tensor(node, "offsets")

    def _tensor(self, node: Node, part: str, dtype: torch.dtype | None = None) -> Handle:
        key = node, part, dtype
        if key in self._copies:
            return self._copies[key]
        handle = Handle(facts.tensors(node)[0], node)
        handle = self.call(part, handle) if handle.value.is_nested else handle
        if node in self.copied:
            copy = torch.ops.gdpa.kept.default
            handle = self._copies[key] = self.call(copy, handle, *([dtype] if dtype else []))
        return handle

    def call(self, target: Callable[..., Any] | str, *args: Any, **options: Any) -> Handle:
        """Run `target` on fakes, and record the call.

        target: A function or the name of a method. args: May hold handles and symbolic sizes.
        """
        with (
            self.fake_mode,
            torch.set_grad_enabled(self.grad),
            fx.without_guards(self.fake_mode),
        ):
            values = _values(args)
            run = getattr(values[0], target) if isinstance(target, str) else target
            value = run(*(values[1:] if isinstance(target, str) else values), **options)
        handle = Handle(value, None, target, args, options)
        self.calls.append(handle)
        return handle

    def arrange(self, source: Handle, index: Index, target: Index) -> Handle:
        """Permute and reshape a tensor with the digits `index` to one with the digits `target`.

        Digits of `target` that the source lacks are expanded. It copies only if strides require it.
        """
        source, index = self._selected(source, index)
        if index == target:
            return source
        have = tuple(itertools.chain.from_iterable(index))
        if not set(have) <= set(itertools.chain.from_iterable(target)):
            raise Refused(Code.LAYOUT, "an operand has a dimension that the scores lack")
        if have == tuple(itertools.chain.from_iterable(target)):
            return self._reshape(source, target)
        if any(len(digits) != 1 for digits in index):
            source = self.call(aten.reshape.default, source, [atom.size for atom in have])
        source = self._expanded(self._permuted(source, have, target), have, target)
        single = all(len(digits) <= 1 for digits in target)
        return source if single else self._reshape(source, target)

    def _permuted(self, source: Handle, have: Digits, target: Index) -> Handle:
        """The dims `have`, which have one atom each, in the order of `target`."""
        wanted = itertools.chain.from_iterable(target)
        order = [have.index(atom) for atom in wanted if atom in have]
        if order == list(range(len(order))):
            return source
        return self.call(aten.permute.default, source, order)

    def _expanded(self, source: Handle, have: Digits, target: Index) -> Handle:
        """A dim for each atom of `target`. Atoms that are not in `have` are expanded."""
        dims: list[Digits] = []
        for digits in target:
            if not digits:
                source = self.call(aten.unsqueeze.default, source, len(dims))
                dims.append(())
            for atom in digits:
                if atom not in have:
                    source = self.call(aten.unsqueeze.default, source, len(dims))
                dims.append((atom,))
        if set(have) >= set(itertools.chain.from_iterable(dims)):
            return source
        return self.call(aten.expand.default, source, [sizes(digits) for digits in dims])

    def _selected(self, source: Handle, index: Index) -> tuple[Handle, Index]:
        """The tensor without fixed atoms."""
        have = tuple(itertools.chain.from_iterable(index))
        if not any(atom.is_fixed for atom in have):
            return source, index
        if any(len(digits) != 1 for digits in index):
            source = self.call(aten.reshape.default, source, [atom.size for atom in have])
        for dim in reversed(range(len(have))):
            if have[dim].is_fixed:
                source = self.call(aten.select.int, source, dim, have[dim].value)
        return source, tuple((atom,) for atom in have if not atom.is_fixed)

    def _reshape(self, source: Handle, target: Index) -> Handle:
        """The same digits in the same order, in the dims of `target`."""
        # Not `view`: in a dim of size 1 the real stride may differ from that of the fake.
        return self.call(aten.reshape.default, source, [sizes(digits) for digits in target])

    def sized(self, source: Handle, shape: Sequence[Size]) -> Handle:
        """The same tensor with other symbols for its sizes. The call checks at run time."""
        if all(map(same, source.value.shape, shape)):
            return source
        return self.call(aten.view.default, source, list(shape))

    def contiguous(self, source: Handle) -> Handle:
        return self.call(aten.clone.default, source, memory_format=torch.contiguous_format)

    def cast(self, source: Handle, dtype: torch.dtype) -> Handle:
        same_dtype = source.value.dtype == dtype
        return source if same_dtype else self.call(aten._to_copy.default, source, dtype=dtype)

    def own(self, source: Handle) -> Handle:
        """A tensor that is not a view.

        A view that was made under `no_grad` must not be written into while gradients flow.
        """
        is_call = source.node is None and source.target is not ATTENTION.op
        return self.call(aten.detach.default, source) if is_call else source

    def duplicated(self, source: Handle) -> Handle:
        """A copy with the same strides."""
        return self.call(aten.clone.default, source)

    def detached(self, source: Handle) -> Handle:
        """The tensor without a gradient. In an exported graph it may want one: nobody knows yet."""
        return self.call(aten.detach.default, source) if self.grad else source

    def summed(self, source: Handle, dims: Sequence[int]) -> Handle:
        """The sum over some dims, which stay with size 1."""
        return self.call(aten.sum.dim_IntList, source, list(dims), True) if dims else source

    def moved(self, source: Handle, device: torch.device) -> Handle:
        same_device = source.value.device == device
        return source if same_device else self.call(aten._to_copy.default, source, device=device)

    def expanded(self, source: Handle, batch: Digits) -> Handle:
        """[1, ...] expanded to [batch, ...]."""
        return self.call(aten.expand.default, source, [sizes(batch), *source.value.shape[1:]])

    def sizes(self) -> list[Size]:
        """All symbolic sizes in the arguments of the calls."""
        symbols: list[Size] = []
        for call in self.calls:
            for arg in fx.tree_leaves(list(call.args)):
                if isinstance(arg, torch.SymInt):
                    symbols.append(arg)
        return symbols

    def with_strides(self, source: Handle, wanted: torch.Tensor) -> Handle:
        """The same tensor with the strides of `wanted`. It is copied only if they differ."""
        if _same_strides(source.value, wanted):
            return source
        order = sorted(range(wanted.dim()), key=lambda d: _stride_key(wanted, d))
        back = [order.index(d) for d in range(wanted.dim())]
        source = self.contiguous(self.call(aten.permute.default, source, order))
        return self.call(aten.permute.default, source, back)


def _values(args: Any) -> Any:
    """The fake values of handles in nested arguments."""
    if isinstance(args, (tuple, list)):
        return type(args)(_values(a) for a in args)
    return args.value if isinstance(args, Handle) else args


def _stride_key(tensor: torch.Tensor, dim: int) -> tuple[int, int]:
    hint = shapes.size_hint(tensor.stride(dim))
    return (-(1 << 60 if hint is None else hint), dim)


def _same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    pairs = zip(left.shape, left.stride(), right.stride(), strict=True)
    return all(is_one(size) or same(a, b) for size, a, b in pairs)
