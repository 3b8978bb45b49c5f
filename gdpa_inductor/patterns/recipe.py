"""New nodes, tried on fakes first: a region's replacement is computed in full before the graph is
touched.

`Recipe.call` runs a function on the operands' fake values and notes it; `write` puts what was noted
into the graph. Sizes may be symbolic: they are written as nodes that compute them from sizes that
the graph has.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from .. import _compat
from ..rejection import Code
from .candidates import HostGraph
from .frame import Digits, Index, Size, is_one, same
from .host import facts, functions
from .layout import sizes
from .result import Refused

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Handle:
    """A tensor of the replacement: its fake value, and the call that makes it or the user's node
    that it is.
    """

    value: torch.Tensor
    node: Node | None = None
    target: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recipe:
    """The calls of one replacement, in order. copied: tensors of the user's of which copies are
    taken, since they change before the backward.
    """

    grad: bool
    fake_mode: Any
    copied: Collection[Node] = ()
    calls: list[Handle] = field(default_factory=list)
    _copies: dict[tuple[Node, str], Handle] = field(default_factory=dict)

    def leaf(self, node: Node) -> Handle:
        """A tensor of the user's; of a nested one, its values."""
        return self._held(node, "values")

    def offsets(self, node: Node) -> Handle:
        """A tensor of offsets, or those of a nested tensor."""
        return self._held(node, "offsets")

    def _held(self, node: Node, part: str) -> Handle:
        if (node, part) in self._copies:
            return self._copies[node, part]
        held = Handle(facts.tensors(node)[0], node)
        held = self.call(part, held) if held.value.is_nested else held
        if node in self.copied:
            held = self._copies[node, part] = self.call(torch.ops.gdpa.kept.default, held)
        return held

    def call(self, target: Callable[..., Any] | str, *args: Any, **options: Any) -> Handle:
        """Run `target`, a function or a method's name, on fakes and note it. `args` may hold
        handles and symbolic sizes.
        """
        with (
            self.fake_mode,
            torch.set_grad_enabled(self.grad),
            _compat.without_guards(self.fake_mode),
        ):
            given = _values(args)
            run = getattr(given[0], target) if isinstance(target, str) else target
            value = run(*(given[1:] if isinstance(target, str) else given), **options)
        made = Handle(value, None, target, args, options)
        self.calls.append(made)
        return made

    def arrange(self, source: Handle, index: Index, target: Index) -> Handle:
        """A tensor whose dims have the digits `index` as one whose dims have those of `target`.

        Digits of `target` that the source lacks are expanded. Copies only where strides leave no
        other way.
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
        """Dims `have`, one atom each, in the order of `target`."""
        wanted = itertools.chain.from_iterable(target)
        order = [have.index(atom) for atom in wanted if atom in have]
        if order == list(range(len(order))):
            return source
        return self.call(aten.permute.default, source, order)

    def _expanded(self, source: Handle, have: Digits, target: Index) -> Handle:
        """A dim for each atom of `target`; those that are not among `have` are expanded."""
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
        """The tensor without the atoms that are fixed."""
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
        # Not `view`: real strides may differ from a fake's where a dim has size 1.
        return self.call(aten.reshape.default, source, [sizes(digits) for digits in target])

    def sized(self, source: Handle, shape: Sequence[Size]) -> Handle:
        """The same tensor in other symbols for the same sizes; wherever it runs, it checks them."""
        if all(map(same, source.value.shape, shape)):
            return source
        return self.call(aten.view.default, source, list(shape))

    def contiguous(self, source: Handle) -> Handle:
        return self.call(aten.clone.default, source, memory_format=torch.contiguous_format)

    def cast(self, source: Handle, dtype: torch.dtype) -> Handle:
        same_dtype = source.value.dtype == dtype
        return source if same_dtype else self.call(aten._to_copy.default, source, dtype=dtype)

    def own(self, source: Handle) -> Handle:
        """No view: one made under `no_grad` must not be written into where gradients flow."""
        made = source.node is None and source.target is not torch.ops.gdpa.attention.default
        return self.call(aten.detach.default, source) if made else source

    def duplicated(self, source: Handle) -> Handle:
        """A tensor of its own, of the same strides."""
        return self.call(aten.clone.default, source)

    def detached(self, source: Handle) -> Handle:
        """Without a gradient. Whether an exported graph's operand wants one, nobody knows yet."""
        return self.call(aten.detach.default, source) if self.grad else source

    def moved(self, source: Handle, device: torch.device) -> Handle:
        same_device = source.value.device == device
        return source if same_device else self.call(aten._to_copy.default, source, device=device)

    def expanded(self, source: Handle, batch: Digits) -> Handle:
        """[1, ...] expanded to [batch, ...]."""
        return self.call(aten.expand.default, source, [sizes(batch), *source.value.shape[1:]])

    def sizes(self) -> list[Size]:
        """Every symbolic size that the calls are given."""
        found: list[Size] = []
        for made in self.calls:
            for arg in _compat.tree_leaves(list(made.args)):
                if isinstance(arg, torch.SymInt):
                    found.append(arg)
        return found

    def with_strides(self, source: Handle, wanted: torch.Tensor) -> Handle:
        """The same tensor with the strides of `wanted`; a copy only if they differ."""
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
    hint = _compat.size_hint(tensor.stride(dim))
    return (-(1 << 60 if hint is None else hint), dim)


def _same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    pairs = zip(left.shape, left.stride(), right.stride(), strict=True)
    return all(is_one(size) or same(a, b) for size, a, b in pairs)


class Writer:
    """Puts the calls of recipes into one graph."""

    def __init__(self, graph: HostGraph) -> None:
        self.host = graph
        self.replaced: dict[Node, Node] = {}
        self.erased: set[Node] = set()

    def write(self, recipe: Recipe, before: Node, like: Node) -> dict[Handle, Node]:
        """Insert all calls before a node, with the source place of `like`."""
        written: dict[Handle, Node] = {}
        graph = self.host.graph
        with graph.inserting_before(before):
            for made in recipe.calls:
                assert made.target is not None
                args = self._arguments(made.args, written, like)
                op = "call_method" if isinstance(made.target, str) else "call_function"
                node = graph.create_node(op, made.target, args, dict(made.options))
                describe(node, like, made.value)
                written[made] = node
        return written

    def _arguments(self, args: Any, written: dict[Handle, Node], like: Node) -> Any:
        if isinstance(args, (tuple, list)):
            return type(args)(self._arguments(a, written, like) for a in args)
        if isinstance(args, Handle):
            return written[args] if args.node is None else self.current(args.node)
        if isinstance(args, torch.SymInt):
            return self.size(args, like)
        return args

    def current(self, node: Node) -> Node:
        """The node that stands for a node of the analysis, which may have been replaced since."""
        while node in self.replaced:
            node = self.replaced[node]
        return node

    def size(self, size: Size, like: Node) -> Any:
        """A node that computes a symbolic size, at the insertion point."""
        if isinstance(size, int) or size.node.expr.is_number:
            return int(size)
        expression = size.node.expr
        needed = {symbol: self._symbol(symbol, like) for symbol in expression.free_symbols}
        if expression.is_Symbol:
            return needed[expression]
        node = _compat.write_symbolic(expression, needed, self.host.graph)
        _evaluate(node, like)
        return node

    def replace_size(self, node: Node, gone: set[Node]) -> list[Node]:
        """Let users of a node that reads a shape, other than `gone` ones, use the sizes themselves;
        what is then unused.
        """
        value = facts.value(node)
        several = isinstance(value, (tuple, list))
        unused = [node]
        for user in [n for n in node.users if n not in gone]:
            with self.host.graph.inserting_before(node):
                size = self.size(value[user.args[1]] if several else value, node)
            if several:
                _replace_uses(user, user, size)
                unused.append(user)
            else:
                _replace_uses(node, user, size)
        return unused

    def can_write(self, size: Size) -> bool:
        """Whether `size` can be computed from the graph's inputs."""
        if isinstance(size, int) or size.node.expr.is_number:
            return True
        return all(symbol in self._symbols for symbol in size.node.expr.free_symbols)

    def _symbol(self, symbol: Any, like: Node) -> Node:
        node, dim = self._symbols[symbol]
        if dim is None:
            return node
        if facts.tensors(node)[0].is_nested:
            nested, node = node, self.host.graph.call_method("values", (node,))
            describe(node, like, _compat.values_of(facts.tensors(nested)[0]))
        found = self.host.graph.call_function(aten.sym_size.int, (node, dim))
        describe(found, like, facts.tensors(node)[0].shape[dim])
        return found

    @functools.cached_property
    def _symbols(self) -> dict[Any, tuple[Node, int | None]]:
        """Where each symbol is found: a node that holds it, or a dim of an input or of a padded
        nested tensor, whose longest sequence is in no other place.
        """
        found: dict[Any, tuple[Node, int | None]] = {}
        for node in self.host.graph.nodes:
            value = facts.value(node)
            if (
                isinstance(value, torch.SymInt)
                and value.node.expr.is_Symbol
                and facts.name(node) not in functions.SHAPES
            ):
                found.setdefault(value.node.expr, (node, None))
        for node in self.host.graph.nodes:
            padded = facts.name(node) in ("to_padded_tensor", "nested_to_padded_tensor")
            if node.op == "placeholder" or padded:
                for tensor in map(_compat.values_of, facts.tensors(node)):
                    for dim, size in enumerate(tensor.shape):
                        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                            found.setdefault(size.node.expr, (node, dim))
        return found


def _replace_uses(node: Node, user: Node, new: Any) -> None:
    """Replace `node` in the arguments of `user`, or of all its users where it is given as its own
    user.
    """
    swap = lambda n: new if n is node else n
    for one in list(node.users) if user is node else [user]:
        one.args, one.kwargs = torch.fx.map_arg(one.args, swap), torch.fx.map_arg(one.kwargs, swap)


def _evaluate(node: Node, like: Node) -> Any:
    """Give values to a chain of new nodes over sizes."""
    if facts.value(node) is None:
        args = [_evaluate(a, like) if isinstance(a, Node) else a for a in node.args]
        describe(node, like, node.target(*args))  # type: ignore[operator]
    return facts.value(node)


def describe(node: Node, like: Node, value: Any) -> None:
    """Meta data of a new node: those of the node that it stands for, and its own value."""
    for key in (
        "stack_trace",
        "nn_module_stack",
        "source_fn_stack",
        "custom",
        "fwd_source_fn_stack",
        "fwd_nn_module_stack",
    ):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    key = "val" if "val" in like.meta and "example_value" not in like.meta else "example_value"
    node.meta[key] = value
