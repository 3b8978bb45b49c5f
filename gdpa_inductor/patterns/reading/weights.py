"""Read the weights, element by element: the operand of the second product beside the value.

`Weights.read(node, element)` returns the score expression of one element of an ATen node:

- A view changes the index.
- A pointwise function becomes an expression.
- A tensor from outside becomes an aux operand with its index.
- The first product becomes the score.

All reads of the score must be at the same element. Otherwise the weights mix several scores, and
the region is not GDPA.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from ..._compat import shapes
from ...program.expr import SCORE, Expr, aux, call, const, postorder
from ...program.integers import ranges
from ...program.ops.random import keeps
from ...program.rounding import fragile_condition
from ...program.simplify import chosen as choice
from ...program.simplify import substitute
from ...rejection import Code
from ..host import facts, functions
from ..host.functions import MIXING, REASONS
from ..host.sizes import Size, same, smaller
from ..result import Refused
from . import contract, symbolic
from .factors import ADDED_PRODUCTS, PRODUCTS, Factors
from .frame import Digits, Index, Space, atoms, broadcast, flat
from .kinds import Unknown, as_kind, real, where
from .lookups import LOOKUPS, Bounds, bounds, lookup_of
from .piecewise import JOINS, Branch, chosen, in_branches, parts_of
from .precision import (
    COMPARISONS,
    ROUNDING,
    ROUNDS_OPERANDS,
    Precision,
    decides_in_fp64,
    in_16_bits,
    is_rounded_on_some,
    meeting_dtype,
    result_in_16_bits,
)
from .reached import covering, wants_gradients
from .reading import Operand, kind_of
from .rearranged import MOST_PIECES, ONE, Sum, Sums, Unread, pieces, plus, term
from .shadow import Shadow
from .views import tensor_of, through_view, value_of
from .vocabulary import FILLED, POINTWISE, REWORDED

_OVERWRITES = frozenset(["fill", "zero"])
_SCATTERS = frozenset(["select_scatter", "slice_scatter"])
_READERS = {
    **dict.fromkeys(PRODUCTS, "_product"),
    **dict.fromkeys(JOINS, "_concatenated"),
    **dict.fromkeys(("tril", "triu"), "_triangle"),
    **dict.fromkeys(FILLED, "_filled"),
    **dict.fromkeys(("arange", "eye"), "_indices"),
    **dict.fromkeys(LOOKUPS, "_looked_up"),
    "detach": "_detached",
    "_to_copy": "_cast",
    "copy": "_copied",
    "dropout_mask": "_dropout_mask",
    "sum": "_summed",
}  # the methods of `Weights`


@dataclass(frozen=True)
class Element:
    """An element of a tensor.

    branches:  The parts of joins that it is read in. Its expression holds at their positions only.
    """

    index: Index
    branches: tuple[Branch, ...] = ()


@dataclass
class Weights:
    """One pass over the weights of a shadow.

    memo:       The expressions that were read.
    operands:   The tensors from outside that were read so far; likewise `scalars`, `positions`.
    score:      The first product, and the element of it that is read.
    scores:     The index of its result, as the user has it.
    precision:  Facts about numbers on the way: fp64, and rounding to 16 bits.
    """

    shadow: Shadow
    space: Space
    memo: dict[tuple[Node, Element], Expr] = field(default_factory=dict)
    operands: list[Operand] = field(default_factory=list)
    scalars: list[Size] = field(default_factory=list)
    positions: list[Digits] = field(default_factory=list)
    score: tuple[Node, Index] | None = None
    scores: Index | None = None
    factors: Factors = field(init=False)
    precision: Precision = field(init=False)

    def __post_init__(self) -> None:
        self.factors = Factors(self.shadow, self.space)
        self.precision = Precision(self.shadow, self.operands, self.scalars, self.positions)

    def read(self, node: Node, at: Element) -> Expr:
        index = in_branches(self.space, at.branches, self.space.resolve_index(at.index))
        at = Element(index, at.branches)
        if node.name == self.shadow.first_result:
            self.scores = index
        if (node, at) not in self.memo:
            self.memo[node, at] = self._read(node, at)
        return self.memo[node, at]

    def _read(self, node: Node, at: Element) -> Expr:
        if node.op == "placeholder":
            return self._outside(self.shadow.leaves[node], at.index)
        if node.op == "get_attr":
            return self._constant(node)
        called = facts.name(node)
        if called in _READERS:
            read: Callable[[Node, Element], Expr] = getattr(self, _READERS[called])
            return read(node, at)
        viewed, refused = None, None
        try:
            viewed = through_view(self.space, node, at.index)
        except Refused as refusal:  # the result of the view may be an operand as it is
            refused = refusal.but(node=refusal.node or self.shadow.source(node))
        if viewed is not None:
            x = self.read(viewed[0], replace(at, index=viewed[1]))
            return self._over(node.args[0], at, x) if called in _SCATTERS else x
        function: Any = node.args[0] if called == "getitem" else node
        is_first = called != "getitem" or node.args[1] == 0
        result = value_of(node)
        if is_first and facts.name(function) in POINTWISE and isinstance(result, torch.Tensor):
            return self._pointwise(function, at, result)
        try:
            return self._rearranged(node, at)
        except Unread:
            raise refused or self._refusal(function) from None

    def _read_broadcast(self, source: Any, at: Element, shape: Sequence[Size]) -> Expr:
        index = broadcast(at.index, shape, tensor_of(source).shape)
        return self.read(source, replace(at, index=index))

    def _detached(self, node: Node, at: Element) -> Expr:
        source: Any = node.args[0]
        x = self.read(source, at)
        # Nothing is cut where no leaf has a gradient.
        for leaf in postorder([x]) if x.kind == "f" else ():
            operand = self.operands[leaf.value] if leaf.op == "aux" else None
            if leaf is SCORE or (operand and facts.may_want_gradients(operand.leaf)):
                return call("detach", x)
        return x

    def _over(self, covered: Any, at: Element, x: Expr) -> Expr:
        # What x overwrites has a gradient of zeros.
        trains = x.kind == "f" and wants_gradients(covered, self.shadow)
        return covering(x, real(self.read(covered, at))) if trains else x

    def _outside(self, leaf: Node, index: Index, **how: Any) -> Expr:
        # An operand for each index that a tensor is read at.
        operand = Operand(leaf, index, **how)
        if operand not in self.operands:
            self.operands.append(operand)
        kind = kind_of(facts.tensors(leaf)[0].dtype)
        is_table = kind == "f" and any(atom.place for atom in flat(index))
        return aux(self.operands.index(operand), "t" if is_table else kind)

    def _dropout_mask(self, node: Node, at: Element) -> Expr:
        """Whether a dropout keeps an element, by the numbers that are drawn for its score."""
        dropout, p = self.shadow.source(node), node.args[1]
        assert dropout is not None and isinstance(p, float)
        if at.branches or any(x.part or x.place or x.is_fixed for x in flat(at.index)):
            raise self.shadow.refused(Code.DROPOUT, node, "drops a part of the scores, or copies")
        operand = Operand(dropout, at.index, detached=True, is_seed=True)
        if operand not in self.operands:
            self.operands.append(operand)
        return keeps(aux(self.operands.index(operand), "i"), p)

    def _summed(self, node: Node, at: Element) -> Expr:
        # `einsum` sums over a letter that one operand alone has.
        operand = self.factors.summed(node, at.index)
        if operand is None:
            raise self._refusal(node)
        return self._outside(operand.leaf, operand.index, summed=operand.summed)

    def _looked_up(self, node: Node, at: Element) -> Expr:
        """An element of a table. Where that is no part of a program, the call's result is read."""
        look = lookup_of(node, self.space.resolve_index(at.index))
        if look is None or not smaller(tensor_of(look.table), tensor_of(node)):
            raise self._refusal(node)
        shape, dims = tensor_of(look.table).shape, list(look.dims)
        places: dict[int, Expr] = {}
        for dim, (index, element) in look.indices.items():
            read = self._index_of(index, replace(at, index=element), shape[dim], look.wraps)
            digits = self.positions[read.value] if read.op == "index" else ()
            if (
                len(look.indices) > 1
                and digits
                and same(math.prod(a.size for a in digits), shape[dim])
            ):
                dims[dim] = digits  # an index of every place in its order is none
            else:
                places[dim] = read
        if len(places) != 1:
            raise self._refusal(node)
        ((dim, place),) = places.items()
        try:
            return self._at_place(look.table, at, dims, dim, place)
        except ValueError:  # it is no table that is read as it is
            reason = "changes a table that is looked up"
            raise self.shadow.refused(
                Code.POINTWISE_OP, look.table, reason, at_source=True
            ) from None

    def _at_place(
        self, table: Node, at: Element, dims: Sequence[Digits | None], dim: int, place: Expr
    ) -> Expr:
        size, index = tensor_of(table).shape[dim], [x or () for x in dims]
        index[dim] = self.space.once(("place", place, str(size)), size, place=True)
        return call("lookup", self.read(table, replace(at, index=tuple(index))), place)

    def _rearranged(self, node: Node, at: Element) -> Expr:
        """An element of a tensor that calls rearrange. Raises Unread where this is not that."""
        limits = lambda x: ranges([x], self.precision.range_of)[x]
        *others, last = pieces(node, tuple(map(self._sum, at.index)), limits)
        result = self._piece(node, at, *last[1:])
        for condition, source, index in reversed(others):
            piece = self._piece(node, at, source, index)
            either = choice(condition, piece, result)
            result = covering(covering(either, piece), result)
        return result

    def _sum(self, digits: Digits) -> Sum:
        total: Sum = {}
        for atom in digits:
            if atom.part or atom.place or (total and not isinstance(atom.size, int)):
                raise Unread
            own = {self._position((atom,)): 1} if atom.value is None else {ONE: atom.value}
            total = plus(own, total, int(atom.size) if total else 1)
        return total

    def _piece(self, node: Node, at: Element, source: Node, index: Sums) -> Expr:
        if source.op != "placeholder":
            return self._filled(source)
        if not smaller(tensor_of(source), tensor_of(node)):
            raise Unread
        sizes = tensor_of(source).shape
        dims = [self._digits(x, size) for x, size in zip(index, sizes, strict=True)]
        places = [dim for dim, digits in enumerate(dims) if digits is None]
        if len(places) > 1 or (places and not tensor_of(source).is_floating_point()):
            raise Unread
        if not places:
            return self.read(source, replace(at, index=tuple(x or () for x in dims)))
        place = term(index[places[0]])
        if len([x for x in postorder([place]) if x.op == "index"]) < 2:
            raise Unread  # it is as small as it is
        return self._at_place(source, at, dims, places[0], place)

    def _digits(self, x: Sum, size: Size) -> Digits | None:
        """The digits of a dim that is read as it is, or at a number."""
        if isinstance(size, int) and (size == 1 or x.keys() <= {ONE}):
            return self.space.fixed(size, x.get(ONE, 0) if size > 1 else 0)
        leaves = sorted(x, key=lambda leaf: -x[leaf])
        if any(leaf.op != "index" for leaf in leaves):
            return None
        digits = flat(tuple(self.positions[leaf.value] for leaf in leaves))
        whole = same(math.prod(atom.size for atom in digits), size)
        return digits if whole and self._sum(digits) == x else None

    def _index_of(self, node: Node, at: Element, size: Size, wraps: bool) -> Expr:
        """The place in a dim of so many places that an index says."""
        source, digits = node, at.index
        while viewed := through_view(self.space, source, digits):
            source, digits = viewed
        try:
            (place,) = substitute([as_kind("i", self.read(node, at))], {})
        except Refused as refusal:
            raise refusal.but(node=self.shadow.source(source)) from None
        if fragile_condition(place, self.precision.rounded) is not None:
            reason = "decides by a rounded number which place is looked up"
            raise self.shadow.refused(Code.POINTWISE_OP, source, reason, at_source=True)
        leaves = [x for x in postorder([place]) if x.op == "aux"]
        own = [atoms(self.operands[x.value].index) for x in leaves]
        own += [{*self.positions[x.value]} for x in postorder([place]) if x.op == "index"]
        if any(len(x) > 1 and x == set().union(*own) for x in own[: len(leaves)]):
            if place.op != "aux":  # it is stored as it is, and not what it is made from
                reason = "makes an index from a tensor as large"
                raise self.shadow.refused(Code.POINTWISE_OP, source, reason, at_source=True)
            operand = self.operands[place.value]
            return self._outside(operand.leaf, operand.index, places=size, wraps=wraps)
        low, _ = bounds(place, self._bounds)
        if not wraps or (low is not None and shapes.statically_known_true(low >= 0)):
            return place
        return call("where", call("lt", place, 0), call("add", place, self._argument(size)), place)

    def _bounds(self, leaf: Expr) -> Bounds:
        if leaf.op == "scalar":
            return self.scalars[leaf.value], self.scalars[leaf.value]
        if leaf.op != "index":
            return None, None
        return 0, math.prod(atom.size for atom in self.positions[leaf.value]) - 1

    def _concatenated(self, node: Node, at: Element) -> Expr:
        # Each part is read in the branch in which its positions are.
        parts = parts_of(self.space, node, at.index)
        if parts is None:
            raise self._refusal(node)
        terms = [
            (branch, self.read(part, Element(index, (*at.branches, branch))))
            for branch, part, index in parts
        ]
        inner = set(postorder([x for _, x in terms]))
        if SCORE not in inner and len([x for x in inner if x.op == "lookup"]) > MOST_PIECES:
            raise self._refusal(node)  # a bias is rather stored than looked up so often
        return chosen(kind_of(tensor_of(node).dtype), self._position(parts[0][0].digits), terms)

    def _product(self, node: Node, at: Element) -> Expr:
        if self.score is None:
            self.score = (node, at.index)
        if self.score[0] is not node and not self._is_twin(node, at.index):
            raise Refused(Code.SEVERAL_SCORES, "the weights are built from more than one product")
        if self.score[1] != at.index or any(a.is_fixed or a.part for a in flat(at.index)):
            raise Refused(Code.CROSS_ELEMENT, "a weight depends on scores of different positions")
        if facts.name(node) not in ADDED_PRODUCTS:
            return SCORE
        added: Any = node.args[0]
        beta, alpha = (real(self._argument(node.kwargs.get(x, 1.0))) for x in ("beta", "alpha"))
        score = call("mul", SCORE, alpha)
        index = broadcast(at.index, tensor_of(node).shape, tensor_of(added).shape)
        at = replace(at, index=index)
        if beta.is_const and beta.value == 0:
            return self._over(added, at, score)  # as BLAS has it: what is added is not even read
        return call("add", call("mul", real(self.read(added, at)), beta), score)

    def _is_twin(self, node: Node, index: Index) -> bool:
        # The first product may be written once more, of the same elements.
        assert self.score is not None
        first, at = self.score
        if at != index or tensor_of(first).dtype != tensor_of(node).dtype:
            return False
        if tensor_of(self.factors.of(first)[0]).shape != tensor_of(self.factors.of(node)[0]).shape:
            return False
        inner = self.factors.contracted(first)
        return self.factors.operands(first, at, inner) == self.factors.operands(node, at, inner)

    def _cast(self, node: Node, at: Element) -> Expr:
        source: Any = node.args[0]
        origin = self.shadow.source(node)
        explicit = origin is not None and facts.name(origin) in functions.CASTS
        return self._converted(self.read(source, at), source, node, explicit)

    def _copied(self, node: Node, at: Element) -> Expr:
        """What functionalisation makes of `x.copy_(y)`: y, in the dtype of x."""
        covered: Any = node.args[0]
        source: Any = node.args[1]
        x = self._read_broadcast(source, at, tensor_of(node).shape)
        return self._over(covered, at, self._converted(x, source, node, explicit=True))

    def _converted(self, x: Expr, source: Node, node: Node, explicit: bool) -> Expr:
        # explicit: The model asks for this dtype, so 16 bits round. Else torch's promotion does.
        old, new = tensor_of(source).dtype, tensor_of(node).dtype
        if tensor_of(source).device != tensor_of(node).device:
            raise self.shadow.refused(Code.DEVICE, node, "moves the scores to another device")
        kind = kind_of(new)
        if kind != "f":
            if old == torch.float64:
                self.precision.wide = source
            self.precision.check_term(x, new, node)
            return as_kind(kind, x)
        if new == torch.float64:
            self.precision.wide = node
        exact = kind_of(old) != "i" and torch.promote_types(old, new) == new
        if exact or (new in ROUNDING and not explicit):
            return real(x)
        if new in ROUNDING:
            return call(ROUNDING[new], real(x))
        if kind_of(old) != "i":
            raise self.shadow.refused(Code.DTYPE, node, f"rounds from {old} to {new}")
        self.precision.check_term(x, new, node)
        return real(x)

    def _triangle(self, node: Node, at: Element) -> Expr:
        source: Any = node.args[0]
        x = self.read(source, at)
        diagonal = as_kind("i", self._argument(facts.argument(node, 1, "diagonal") or 0))
        row, column = map(self._position, at.index[-2:])
        compare = "le" if facts.name(node) == "tril" else "ge"
        return where(x.kind, call(compare, column, call("add", row, diagonal)), x, const(0))

    def _indices(self, node: Node, at: Element) -> Expr:
        dtype = tensor_of(node).dtype
        kind = kind_of(dtype)
        if facts.name(node) == "eye":
            row, column = map(self._position, at.index)
            return as_kind(kind, call("eq", row, column))
        start = self._argument(node.args[0]) if len(node.args) > 1 else const(0)
        step = self._argument(node.args[2]) if len(node.args) > 2 else const(1)
        if dtype in ROUNDING:
            raise self.shadow.refused(Code.DTYPE, node, f"counts in {dtype}")
        if start.kind != "i" or step.kind != "i":
            raise self.shadow.refused(Code.POINTWISE_OP, node, "steps through real numbers")
        count = call("add", start, call("mul", self._position(at.index[0]), step))
        self.precision.check_term(count, dtype, node)
        return as_kind(kind, count)

    def _position(self, digits: Digits) -> Expr:
        if not digits:
            return const(0)
        if digits not in self.positions:
            self.positions.append(digits)
        return Expr("index", (), self.positions.index(digits), "i")

    def _filled(self, node: Node, _: Element | None = None) -> Expr:
        if facts.name(node) == "constant_pad_nd":
            fill = facts.argument(node, 2, "value") or 0
        else:
            named = [node.kwargs["fill_value"]] if "fill_value" in node.kwargs else []
            fill = FILLED[facts.name(node)](*node.args, *named)
        x, dtype = self._argument(fill), tensor_of(node).dtype
        self.precision.check_term(x, dtype, node)
        self.precision.note_numbers(node, [fill], dtype)
        x = as_kind(kind_of(dtype), x)
        return in_16_bits(x, fill, dtype, False) if dtype in ROUNDING else x

    def _constant(self, node: Node) -> Expr:
        value: Any = getattr(node.graph.owning_module, str(node.target), None)
        if hasattr(value, "fake_mode"):
            value = getattr(value, "constant", None)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise self._refusal(node)
        return as_kind(kind_of(value.dtype), const(value.item()))

    def _argument(self, argument: Any) -> Expr:
        value = value_of(argument)
        if isinstance(value, (bool, int, float)):
            return const(value)
        if isinstance(value, torch.SymFloat) and isinstance(argument, Node):
            tensor = facts.read_by_item(self.shadow.leaves.get(argument))
            if tensor is not None:
                return real(self._outside(tensor, (), detached=True))
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return symbolic.expression(value, self.scalars)
        raise Refused(Code.POINTWISE_OP, f"an argument of type {type(value).__name__}")

    def _pointwise(self, node: Node, at: Element, result: torch.Tensor) -> Expr:
        kind = kind_of(result.dtype)
        if decides_in_fp64(node) if kind != "f" else result.dtype == torch.float64:
            self.precision.wide = node
        operands = self._pointwise_operands(node, at, result)
        options = {
            name: x if isinstance(x, str) or x is None else self._argument(x)
            for name, x in node.kwargs.items()
            if name not in ("dtype", "layout", "device", "pin_memory", "memory_format", "inplace")
        }
        try:
            term = contract.rule_of(node)(kind, *operands, **options)
        except (Unknown, ValueError, TypeError) as error:
            reason = f"is not in the vocabulary: {error}"
            raise self.shadow.refused(Code.POINTWISE_OP, node, reason, at_source=True) from None
        if facts.name(node) in _OVERWRITES:
            term = self._over(node.args[0], at, term)
        if term.kind != kind:
            reason = f"changes kind from {term.kind} to {kind}"
            raise self.shadow.refused(Code.POINTWISE_OP, node, reason)
        if result.dtype in ROUNDING:
            term = result_in_16_bits(term, operands, node.args, result.dtype)
        self.precision.note_rounding(term, result.dtype, node)
        if facts.name(node) in REWORDED and term.op != "pow":
            self.precision.reworded.add(term)
        self.precision.check_term(term, result.dtype, node)
        return term

    def _pointwise_operands(self, node: Node, at: Element, result: torch.Tensor) -> list[Any]:
        called = facts.name(node)
        args = list(node.args)
        if called in _OVERWRITES:  # what was there before is not read
            args[0] = None
        if called == "nan_to_num" and result.is_floating_point():
            greatest = torch.finfo(result.dtype).max
            fills = itertools.zip_longest(args[1:], (0.0, greatest, -greatest))
            args[1:] = [default if x is None else x for x, default in fills]
        operands = [self._pointwise_operand(x, at, result) for x in args]
        meets = meeting_dtype(node, called, result.dtype)
        if meets in ROUNDING and is_rounded_on_some(called, operands, meets):
            reason = f"decides by a number that {meets} does not hold"
            raise self.shadow.refused(Code.DTYPE, node, reason, at_source=True)
        if meets in ROUNDING and called in ROUNDS_OPERANDS:
            pairs = zip(operands, args, strict=True)
            operands = [in_16_bits(x, arg, meets, called in COMPARISONS) for x, arg in pairs]
        for x in operands:
            if isinstance(x, Expr) and x.kind == "i":
                self.precision.check_term(x, meets, node)
        self.precision.note_numbers(node, args, meets)
        return operands

    def _pointwise_operand(self, argument: Any, at: Element, result: torch.Tensor) -> Any:
        if argument is None or isinstance(argument, str):
            return argument
        if isinstance(argument, Node) and isinstance(value_of(argument), torch.Tensor):
            return self._read_broadcast(argument, at, result.shape)
        return self._argument(argument)

    def _refusal(self, node: Node) -> Refused:
        code = MIXING.get(facts.name(node), Code.POINTWISE_OP)
        if code is Code.POINTWISE_OP and any(x in str(node.target) for x in ("norm", "softmax")):
            code = Code.NORMALISED
        return self.shadow.refused(code, node, REASONS[code], at_source=True)
