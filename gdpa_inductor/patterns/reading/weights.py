"""Read the weights, element by element: the operand of the second product beside the value.

`Weights.read(node, index)` returns the score expression of one element of an ATen node:

- A view changes the index.
- A pointwise function becomes an expression.
- A tensor from outside becomes an aux operand with its index.
- The first product becomes the score.

All reads of the score must be at the same element. Otherwise the weights mix several scores, and
the region is not GDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ...program.expr import SCORE, Expr, aux, call, const, postorder
from ...rejection import Code
from ..host import facts, functions
from ..host.functions import MIXING, REASONS
from ..host.sizes import Size
from ..result import Refused
from . import contract, symbolic
from .factors import ADDED_PRODUCTS, PRODUCTS, Factors
from .frame import Digits, Index, Space, broadcast
from .kinds import Unknown, as_kind, real, where
from .piecewise import JOINS, Branch, chosen, in_branches, parts_of
from .precision import Precision
from .reached import covering, wants_gradients
from .reading import Operand, flat, kind_of
from .shadow import Shadow
from .views import tensor_of, through_view
from .vocabulary import FILLED, POINTWISE, REWORDED
from .widths import (
    COMPARISONS,
    ROUNDING,
    ROUNDS_OPERANDS,
    decides_in_fp64,
    in_16_bits,
    is_rounded_on_some,
    kept_in_16_bits,
    leaf_ranges,
    meeting_dtype,
)

_EXACT = {
    (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float64),
    (torch.float16, torch.float64), (torch.bfloat16, torch.float64),
}  # fmt: skip
_OVERWRITES = frozenset(["fill", "zero"])
_SCATTERS = frozenset(["select_scatter", "slice_scatter"])
_READERS = {
    **dict.fromkeys(PRODUCTS, "_product"),
    **dict.fromkeys(JOINS, "_concatenated"),
    **dict.fromkeys(("tril", "triu"), "_triangle"),
    **dict.fromkeys(FILLED, "_filled"),
    **dict.fromkeys(("arange", "eye"), "_indices"),
    "detach": "_detached",
    "_to_copy": "_cast",
    "copy": "_copied",
    "sum": "_summed",
}  # the methods of `Weights`


@dataclass
class Weights:
    """One pass over the weights of a shadow.

    memo:       The expressions that were read, by node, index and branches.
    branches:   The parts of joins that are being read. An expression holds at their positions only.
    operands:   The tensors from outside that were found so far; likewise `scalars`, `positions`.
    score:      The first product, and the element of it that is read.
    scores:     The index of its result, as the user has it.
    precision:  Facts about numbers on the way: fp64, and rounding to 16 bits.
    """

    shadow: Shadow
    space: Space
    memo: dict[tuple[object, ...], Expr] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    operands: list[Operand] = field(default_factory=list)
    scalars: list[Size] = field(default_factory=list)
    positions: list[Digits] = field(default_factory=list)
    score: tuple[Node, Index] | None = None
    scores: Index | None = None
    factors: Factors = field(init=False)
    precision: Precision = field(init=False)

    def __post_init__(self) -> None:
        dtype_of = lambda operand: facts.tensors(operand.leaf)[0].dtype
        ranges = leaf_ranges(self.operands, self.scalars, self.positions, dtype_of)
        self.factors = Factors(self.shadow, self.space)
        self.precision = Precision(self.shadow, ranges)

    def read(self, node: Node, index: Index) -> Expr:
        """The expression of the element `index` of `node`."""
        index = in_branches(self.space, self.branches, self.space.resolve_index(index))
        key = (node, index, self.branches)
        if node.name == self.shadow.first_result:
            self.scores = index
        if key not in self.memo:
            self.memo[key] = self._read(node, index)
        return self.memo[key]

    def _read(self, node: Node, index: Index) -> Expr:
        if node.op == "placeholder":
            return self._outside(self.shadow.leaves[node], index)
        if node.op == "get_attr":
            return self._constant(node)
        called = facts.name(node)
        if called in _READERS:
            read: Callable[[Node, Index], Expr] = getattr(self, _READERS[called])
            return read(node, index)
        seen = self._through_view(node, index)
        if seen is not None:
            found = self.read(*seen)
            return self._over(node.args[0], index, found) if called in _SCATTERS else found
        if called == "getitem" and node.args[1] == 0 and facts.name(node.args[0]) in POINTWISE:  # type: ignore[arg-type]
            return self._pointwise(node.args[0], index, tensor_of(node))  # type: ignore[arg-type]
        if called in POINTWISE and isinstance(node.meta.get("val"), torch.Tensor):
            return self._pointwise(node, index, tensor_of(node))
        raise self._refusal(node.args[0] if called == "getitem" else node)

    def _through_view(self, node: Node, index: Index) -> tuple[Node, Index] | None:
        """As the function; a refusal names the view, whose result may be an operand as it is."""
        try:
            return through_view(self.space, node, index)
        except Refused as refusal:
            refusal.node = refusal.node or self.shadow.source(node)
            raise

    def _detached(self, node: Node, index: Index) -> Expr:
        """Without its gradient, where there may be one."""
        x = self.read(node.args[0], index)  # type: ignore[arg-type]
        wanted = any(
            leaf is SCORE
            or (
                leaf.op == "aux"
                and facts.may_want_gradients(self.operands[int(leaf.value or 0)].leaf)
            )
            for leaf in (postorder([x]) if x.kind == "f" else ())
        )
        return call("detach", x) if wanted else x

    def _over(self, covered: Any, index: Index, seen: Expr) -> Expr:
        """The element that overwrites one, with the gradient of zeros that this one has."""
        wanted = seen.kind == "f" and wants_gradients(covered, self.shadow)
        return covering(seen, real(self.read(covered, index))) if wanted else seen

    def _outside(self, leaf: Node, index: Index, **how: Any) -> Expr:
        """An operand from outside: one auxiliary tensor for each index that it is read at."""
        operand = Operand(leaf, index, **how)
        if operand not in self.operands:
            self.operands.append(operand)
        return aux(self.operands.index(operand), kind_of(facts.tensors(leaf)[0].dtype))

    def _summed(self, node: Node, index: Index) -> Expr:
        """What `einsum` makes of a letter that one operand alone has, if it is from outside."""
        found = self.factors.summed(node, index)
        if found is None:
            raise self._refusal(node)
        return self._outside(found.leaf, found.index, summed=found.summed)

    def _concatenated(self, node: Node, index: Index) -> Expr:
        """Parts side by side: each is read in the branch in which its positions are."""
        parts, outer = parts_of(self.space, node, index), self.branches
        if parts is None:
            raise self._refusal(node)
        found: list[tuple[Branch, Expr]] = []
        for branch, part, at in parts:
            self.branches = (*outer, branch)
            found.append((branch, self.read(part, at)))
        self.branches = outer
        return chosen(kind_of(tensor_of(node).dtype), self._position(parts[0][0].digits), found)

    def _product(self, node: Node, index: Index) -> Expr:
        if self.score is None:
            self.score = (node, index)
        if self.score[0] is not node and not self._is_twin(node, index):
            raise Refused(Code.SEVERAL_SCORES, "the weights are built from more than one product")
        if self.score[1] != index or any(a.is_fixed or a.part for a in flat(index)):
            raise Refused(Code.CROSS_ELEMENT, "a weight depends on scores of different positions")
        if facts.name(node) not in ADDED_PRODUCTS:
            return SCORE
        added: Node = node.args[0]  # type: ignore[assignment]
        options = {"beta": const(1.0), "alpha": const(1.0)}
        options.update({name: real(self._argument(given)) for name, given in node.kwargs.items()})
        score = call("mul", SCORE, options["alpha"])
        at = broadcast(index, tensor_of(node).shape, tensor_of(added).shape)
        if options["beta"].is_const and options["beta"].value == 0:
            return self._over(added, at, score)  # as BLAS has it: what is added is not even read
        return call("add", call("mul", real(self.read(added, at)), options["beta"]), score)

    def _is_twin(self, node: Node, index: Index) -> bool:
        """True if a product is the first one, written once more: of the same elements."""
        assert self.score is not None
        first, at = self.score
        if at != index or tensor_of(first).dtype != tensor_of(node).dtype:
            return False
        if tensor_of(self.factors.of(first)[0]).shape != tensor_of(self.factors.of(node)[0]).shape:
            return False
        inner = self.factors.contracted(first)
        return self.factors.operands(first, at, inner) == self.factors.operands(node, at, inner)

    def _cast(self, node: Node, index: Index) -> Expr:
        source: Node = node.args[0]  # type: ignore[assignment]
        origin = self.shadow.source(node)
        explicit = origin is not None and facts.name(origin) in functions.CASTS
        return self._converted(self.read(source, index), source, node, explicit)

    def _copied(self, node: Node, index: Index) -> Expr:
        """What functionalisation makes of `x.copy_(y)`: y, in the dtype of x."""
        covered: Any = node.args[0]
        source: Any = node.args[1]
        at = broadcast(index, tensor_of(node).shape, tensor_of(source).shape)
        found = self._converted(self.read(source, at), source, node, explicit=True)
        return self._over(covered, index, found)

    def _converted(self, x: Expr, source: Node, node: Node, explicit: bool) -> Expr:
        """An element of `source` in the dtype of `node`.

        explicit: The model asks for this dtype, so 16 bits round. Otherwise torch's promotion does.
        """
        old, new = tensor_of(source).dtype, tensor_of(node).dtype
        if tensor_of(source).device != tensor_of(node).device:
            raise Refused(
                Code.DEVICE, f"{self.shadow.describe(node)} moves the scores to another device"
            )
        kind = kind_of(new)
        if kind != "f":
            if old == torch.float64:
                self.precision.wide = source
            self.precision.check_fit(x, new, node)
            return as_kind(kind, x)
        self.precision.note_width(node)
        exact = old == new or (old, new) in _EXACT or kind_of(old) == "b"
        if exact or (new in ROUNDING and not explicit):
            return real(x)
        if new in ROUNDING:
            return call(ROUNDING[new], real(x))
        if kind_of(old) != "i":
            raise Refused(Code.DTYPE, f"{self.shadow.describe(node)} rounds from {old} to {new}")
        if new == torch.float32:
            self.precision.singles[real(x)] = node
        return real(x)

    def _triangle(self, node: Node, index: Index) -> Expr:
        """tril and triu: a condition on the row and the column, in whatever dims these are."""
        x = self.read(node.args[0], index)  # type: ignore[arg-type]
        diagonal = as_kind(
            "i",
            self._argument(node.args[1] if len(node.args) > 1 else node.kwargs.get("diagonal", 0)),
        )
        row, column = (self._position(digits) for digits in index[-2:])
        compare = "le" if facts.name(node) == "tril" else "ge"
        return where(x.kind, call(compare, column, call("add", row, diagonal)), x, const(0))

    def _indices(self, node: Node, index: Index) -> Expr:
        """arange and eye: functions of their indices."""
        kind = kind_of(tensor_of(node).dtype)
        if facts.name(node) == "eye":
            row, column = (self._position(digits) for digits in index)
            return as_kind(kind, call("eq", row, column))
        start = self._argument(node.args[0]) if len(node.args) > 1 else const(0)
        step = self._argument(node.args[2]) if len(node.args) > 2 else const(1)
        if tensor_of(node).dtype in ROUNDING:
            raise Refused(
                Code.DTYPE, f"{self.shadow.describe(node)} counts in {tensor_of(node).dtype}"
            )
        if start.kind != "i" or step.kind != "i":
            raise Refused(
                Code.POINTWISE_OP, f"{self.shadow.describe(node)} steps through real numbers"
            )
        count = call("add", start, call("mul", self._position(index[0]), step))
        self.precision.check_fit(count, tensor_of(node).dtype, node)
        if tensor_of(node).dtype == torch.float32:
            self.precision.singles[real(count)] = node
        return as_kind(kind, count)

    def _position(self, digits: Digits) -> Expr:
        if not digits:
            return const(0)
        if digits not in self.positions:
            self.positions.append(digits)
        return Expr("index", (), self.positions.index(digits), "i")

    def _filled(self, node: Node, _: Index) -> Expr:
        given = dict(node.kwargs)
        fill = FILLED[facts.name(node)](
            *node.args, *([given["fill_value"]] if "fill_value" in given else [])
        )
        found, dtype = self._argument(fill), tensor_of(node).dtype
        self.precision.check_fit(found, dtype, node)
        found = as_kind(kind_of(dtype), found)
        if dtype in ROUNDING:
            found = in_16_bits(found, fill, dtype, False)
        if dtype == torch.float32:
            self.precision.singles[found] = node
        self.precision.note_numbers(node, [fill], dtype)
        return found

    def _constant(self, node: Node) -> Expr:
        held: Any = getattr(node.graph.owning_module, str(node.target), None)
        held = (
            getattr(held, "constant", None)
            if held is not None and hasattr(held, "fake_mode")
            else held
        )
        if not isinstance(held, torch.Tensor) or held.numel() != 1:
            raise self._refusal(node)
        return as_kind(kind_of(held.dtype), const(held.item()))

    def _argument(self, given: Any) -> Expr:
        """A number, literal or symbolic, as an expression."""
        value = given.meta.get("val") if isinstance(given, Node) else given
        if isinstance(value, (bool, int, float)):
            return const(value)
        if isinstance(value, torch.SymFloat) and isinstance(given, Node):
            held = facts.read_by_item(self.shadow.leaves.get(given))
            if held is not None:
                return real(self._outside(held, (), detached=True))
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return symbolic.expression(value, self.scalars)
        raise Refused(Code.POINTWISE_OP, f"an argument of type {type(value).__name__}")

    def _pointwise(self, node: Node, index: Index, result: torch.Tensor) -> Expr:
        kind = kind_of(result.dtype)
        if decides_in_fp64(node) if kind != "f" else result.dtype == torch.float64:
            self.precision.wide = node
        args = self._pointwise_operands(node, index, result)
        options = {
            name: given if isinstance(given, str) or given is None else self._argument(given)
            for name, given in node.kwargs.items()
            if name not in ("dtype", "layout", "device", "pin_memory", "memory_format", "inplace")
        }
        try:
            found = contract.rule_of(node)(kind, *args, **options)
        except (Unknown, ValueError, TypeError) as error:
            raise Refused(
                Code.POINTWISE_OP,
                f"{self.shadow.describe(node)} is not in the vocabulary: {error}",
                self.shadow.source(node),
            ) from None
        if facts.name(node) in _OVERWRITES:
            found = self._over(node.args[0], index, found)
        if found.kind != kind:
            raise Refused(
                Code.POINTWISE_OP,
                f"{self.shadow.describe(node)} changes kind from {found.kind} to {kind}",
            )
        if result.dtype in ROUNDING:
            found = kept_in_16_bits(found, args, node.args, result.dtype)
        self.precision.note_rounding(found, result.dtype)
        if facts.name(node) in REWORDED and found.op != "pow":
            self.precision.reworded.add(found)
        self.precision.check_fit(found, result.dtype, node)
        if result.dtype == torch.float32:
            self.precision.singles[found] = node
        return found

    def _pointwise_operands(self, node: Node, index: Index, result: torch.Tensor) -> list[Any]:
        called = facts.name(node)
        given = list(node.args)
        if called in _OVERWRITES:  # what was there before is not read
            given[0] = None
        if called == "nan_to_num" and result.is_floating_point():
            greatest = torch.finfo(result.dtype).max
            given += [None] * (4 - len(given))
            given[1:] = [
                x if x is not None else y
                for x, y in zip(given[1:], (0.0, greatest, -greatest), strict=True)
            ]
        args = [self._pointwise_operand(a, index, result) for a in given]
        meets = meeting_dtype(node, called, result.dtype)
        if meets in ROUNDING and is_rounded_on_some(called, args, meets):
            raise Refused(
                Code.DTYPE,
                f"{self.shadow.describe(node)} decides by a number that {meets} does not hold",
                self.shadow.source(node),
            )
        if meets in ROUNDING and called in ROUNDS_OPERANDS:
            compared = called in COMPARISONS
            args = [in_16_bits(x, a, meets, compared) for x, a in zip(args, given, strict=True)]
        for x in args:
            if isinstance(x, Expr) and x.kind == "i":
                self.precision.check_fit(x, meets, node)
                if meets == torch.float32:
                    self.precision.singles[real(x)] = node
        self.precision.note_numbers(node, given, meets)
        return args

    def _pointwise_operand(self, given: Any, index: Index, result: torch.Tensor) -> Any:
        if given is None or isinstance(given, str):
            return given
        if isinstance(given, Node) and isinstance(given.meta.get("val"), torch.Tensor):
            return self.read(given, broadcast(index, result.shape, tensor_of(given).shape))
        return self._argument(given)

    def _refusal(self, node: Any) -> Refused:
        called = facts.name(node)
        code = MIXING.get(called, Code.POINTWISE_OP)
        if code is Code.POINTWISE_OP and any(x in str(node.target) for x in ("norm", "softmax")):
            code = Code.NORMALISED
        return Refused(
            code, f"{self.shadow.describe(node)} {REASONS[code]}", self.shadow.source(node)
        )
