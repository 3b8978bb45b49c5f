"""The structural reading of a shadow: product, program, product.

From the region's result back: views, the second product, then, element by element, the weights.
`Reader.read(node, index)` is the score expression of the element `index` of an ATen node: views
change the index, point-wise functions become expressions, tensors from outside become auxiliary
operands at their own index, and the first product becomes the score. Every demand for the score
must be for one and the same element; else the weights mix scores, and are something else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ...program.expr import SCORE, Expr, aux, call, const, postorder
from ...program.integers import Range
from ...program.rounding import fragile_condition, reworded_decision, rounded_term
from ...program.score_mod import formula
from ...rejection import Code
from ..host import facts, functions, places
from ..host.mixing import MIXING, REASONS
from ..host.sizes import Size
from ..result import Refused
from . import symbolic
from .frame import Digits, Index, Space, broadcast
from .joined import JOINS, Branch, chosen, in_branches, parts_of
from .reached import covering, wants_gradients
from .reading import Operand, Reading, flat, kind_of
from .shadow import Shadow
from .views import tensor_of, through_view
from .vocabulary import FILLED, POINTWISE, REWORDED, Unknown, as_kind, real, where
from .widths import (
    COMPARISONS,
    ROUNDING,
    ROUNDS_OPERANDS,
    decides_in_fp64,
    fits,
    in_16_bits,
    in_fp32,
    is_small,
    leaf_ranges,
    meeting_dtype,
    rounded_literal,
)

_PRODUCTS = frozenset(["bmm", "mm", "baddbmm", "addmm"])
_ADDED_PRODUCTS = frozenset(["baddbmm", "addmm"])
_EXACT = {
    (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float64),
    (torch.float16, torch.float64), (torch.bfloat16, torch.float64),
}  # fmt: skip
_OVERWRITES = frozenset(["copy", "fill", "zero"])
_SCATTERS = frozenset(["select_scatter", "slice_scatter"])
_READERS = {
    **dict.fromkeys(_PRODUCTS, "_product"),
    **dict.fromkeys(JOINS, "_joined"),
    **dict.fromkeys(("tril", "triu"), "_triangle"),
    **dict.fromkeys(FILLED, "_filled"),
    **dict.fromkeys(("arange", "eye"), "_indices"),
    "detach": "_detached",
    "_to_copy": "_cast",
}  # the methods of `Reader`


def read(shadow: Shadow) -> Reading:
    """Read a shadow. Raises Refused where it is not product, point-wise program, product."""
    space = Space()
    shape = shadow.output.meta["val"].shape
    output = tuple(space.fresh(size) for size in shape)
    while True:  # again after a split: all indices are then in the same atoms
        splits = len(space.splits)
        try:
            reading = Reader(shadow, space).region(output)
        except RecursionError:
            raise Refused(Code.ANALYSIS, "the program between the products is too long") from None
        if len(space.splits) == splits:
            return reading


@dataclass
class Reader:
    """One pass over a shadow."""

    shadow: Shadow
    space: Space
    memo: dict[tuple[object, ...], Expr] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    operands: list[Operand] = field(default_factory=list)
    scalars: list[Size] = field(default_factory=list)
    positions: list[Digits] = field(default_factory=list)
    score: tuple[Node, Index] | None = None
    scores: Index | None = None
    wide: Node | None = None  # what continues in fp64
    singles: dict[Expr, Node] = field(default_factory=dict)  # what the model has in fp32
    rounded: set[Expr] = field(default_factory=set)  # positions computed with in 16 bits
    reworded: set[Expr] = field(default_factory=set)  # reals that torch computes in other words

    def region(self, output: Index) -> Reading:
        """Read the whole region; `output` is the index of its result."""
        second, index = self._second_product(self.space.resolve_index(output))
        if self.space.outer is None:
            self.space.outer = frozenset(self.space.splits)
        depends = _depends_on_product(self.shadow)
        sides: list[Node] = list(second.args[:2])  # type: ignore[arg-type]
        scored = [side in depends for side in sides]
        if all(scored):
            raise Refused(
                Code.CROSS_ELEMENT, "both operands of the second product depend on the scores"
            )
        if not any(scored):
            raise Refused(
                Code.CONTRACTION, "no operand of the second product is made from the scores"
            )
        swapped = scored[1]
        keys = self._contracted(second)
        weights_at, value_at = ((*index[:-1], keys), (*index[:-2], keys, index[-1]))
        if swapped:
            weights_at, value_at = value_at, weights_at
        weight = real(self.read(sides[1 if swapped else 0], weights_at))
        if SCORE not in set(postorder([weight])) or self.score is None:
            raise Refused(Code.CONTRACTION, "the weights do not depend on the first product")
        fragile = fragile_condition(weight, self.rounded)
        fragile = fragile or reworded_decision(weight, self.reworded)
        if fragile is not None:
            raise Refused(
                Code.POINTWISE_OP,
                f"a mask that depends on how its numbers round: {formula(fragile)}",
            )
        value = self.operand(sides[0 if swapped else 1], value_at)
        product, at = self.score
        inner = self._contracted(product)
        left, right = self._factor_operands(product, at, inner)
        self._check_dtypes(self._factors(product)[0], weight)
        if tensor_of(self._factors(product)[0]).dtype != torch.float64:
            weight = in_fp32(weight)
        resolve = self.space.resolve_index
        return Reading(
            weight, tuple(self.operands), tuple(self.scalars), tuple(self.positions), left, right,
            value, resolve(output), resolve(weights_at), resolve(at), resolve(self.scores or at),
            self.space.resolve(inner), self.space.resolve(keys), self.space, swapped,
        )  # fmt: skip

    def _second_product(self, index: Index) -> tuple[Node, Index]:
        node = self.shadow.output
        while facts.name(node) not in _PRODUCTS:
            seen = through_view(self.space, node, index)
            if seen is None:
                raise Refused(Code.LAYOUT, f"the second product ends in {self.describe(node)}")
            node, index = seen
        if facts.name(node) in _ADDED_PRODUCTS:
            raise Refused(
                Code.LAYOUT, f"the second product, {self.describe(node)}, adds to its result"
            )
        if any(a.is_fixed for a in flat(index)):
            raise Refused(Code.LAYOUT, "a part of the second product's result is used")
        return node, index

    def _factors(self, product: Node) -> tuple[Node, Node]:
        at = 1 if facts.name(product) in _ADDED_PRODUCTS else 0
        return product.args[at], product.args[at + 1]  # type: ignore[return-value]

    def _contracted(self, product: Node) -> Digits:
        """The digits that a product sums over: the same ones in every pass."""
        size = tensor_of(self._factors(product)[0]).shape[-1]
        made: dict[str, Digits] = self.space.contracted
        if product.name not in made:
            made[product.name] = self.space.fresh(size)
        return self.space.resolve(made[product.name])

    def _check_dtypes(self, factor: Node, weight: Expr) -> None:
        dtype = tensor_of(factor).dtype
        if kind_of(dtype) != "f":
            raise Refused(Code.DTYPE, f"the first product multiplies {dtype} operands")
        if self.wide is not None and dtype != torch.float64:
            raise Refused(
                Code.DTYPE, f"{self.describe(self.wide)} continues in fp64 on scores in {dtype}"
            )
        if dtype != torch.float64:
            return
        large = [node.args[0] for node in self.singles if node.op == "float"]
        large = [x for x in large if not is_small(x, self._ranges)]
        rounded = rounded_term(weight, self.singles, large)
        if rounded is not None:
            node = self.singles[rounded]
            reason = f"{self.describe(node)} rounds to fp32 beside scores in {dtype}"
            raise Refused(Code.DTYPE, reason, self.shadow.source(node))

    def describe(self, node: Node) -> str:
        origin = self.shadow.source(node)
        return places.describe(origin) if origin is not None else f"`{facts.name(node)}`"

    # Elements

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
        seen = through_view(self.space, node, index)
        if seen is not None:
            found = self.read(*seen)
            return self._over(node.args[0], index, found) if called in _SCATTERS else found
        if called == "getitem" and node.args[1] == 0 and facts.name(node.args[0]) in POINTWISE:  # type: ignore[arg-type]
            return self._pointwise(node.args[0], index, tensor_of(node))  # type: ignore[arg-type]
        if called in POINTWISE and isinstance(node.meta.get("val"), torch.Tensor):
            return self._pointwise(node, index, tensor_of(node))
        raise self._refusal(node.args[0] if called == "getitem" else node)

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
        """What overwrites an element, with the gradient of zeros that this one has."""
        wanted = seen.kind == "f" and wants_gradients(covered, self.shadow)
        return covering(seen, real(self.read(covered, index))) if wanted else seen

    def _outside(self, leaf: Node, index: Index, detached: bool = False) -> Expr:
        """An operand from outside: one auxiliary tensor for each index that it is read at."""
        operand = Operand(leaf, index, detached=detached)
        if operand not in self.operands:
            self.operands.append(operand)
        return aux(self.operands.index(operand), kind_of(facts.tensors(leaf)[0].dtype))

    def _joined(self, node: Node, index: Index) -> Expr:
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
        if facts.name(node) not in _ADDED_PRODUCTS:
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
        """Whether a product is the first one, written once more: of the same elements."""
        assert self.score is not None
        first, at = self.score
        if at != index or tensor_of(first).dtype != tensor_of(node).dtype:
            return False
        if tensor_of(self._factors(first)[0]).shape != tensor_of(self._factors(node)[0]).shape:
            return False
        inner = self._contracted(first)
        return self._factor_operands(first, at, inner) == self._factor_operands(node, at, inner)

    def _factor_operands(self, product: Node, at: Index, inner: Digits) -> tuple[Operand, Operand]:
        left, right = self._factors(product)
        return (
            self.operand(left, (*at[:-1], inner)),
            self.operand(right, (*at[:-2], inner, at[-1])),
        )

    def _argument(self, given: Any) -> Expr:
        """A number, literal or symbolic, as an expression."""
        value = given.meta.get("val") if isinstance(given, Node) else given
        if isinstance(value, (bool, int, float)):
            return const(value)
        if isinstance(value, torch.SymFloat) and isinstance(given, Node):
            held = _read_number(self.shadow.leaves.get(given))
            if held is not None:
                return real(self._outside(held, (), detached=True))
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return symbolic.expression(value, self.scalars)
        raise Refused(Code.POINTWISE_OP, f"an argument of type {type(value).__name__}")

    def _cast(self, node: Node, index: Index) -> Expr:
        source: Node = node.args[0]  # type: ignore[assignment]
        x, old, new = self.read(source, index), tensor_of(source).dtype, tensor_of(node).dtype
        if tensor_of(source).device != tensor_of(node).device:
            raise Refused(Code.DEVICE, f"{self.describe(node)} moves the scores to another device")
        kind = kind_of(new)
        if kind != "f":
            if old == torch.float64:
                self.wide = source
            self._check_fit(x, new, node)
            return as_kind(kind, x)
        self._note_width(node)
        origin = self.shadow.source(node)
        explicit = origin is not None and facts.name(origin) in functions.CASTS
        exact = old == new or (old, new) in _EXACT or kind_of(old) == "b"
        if exact or not explicit:
            return real(x)
        if new in ROUNDING:
            return call(ROUNDING[new], real(x))
        if kind_of(old) != "i":
            raise Refused(Code.DTYPE, f"{self.describe(node)} rounds from {old} to {new}")
        if new == torch.float32:
            self.singles[real(x)] = node
        return real(x)

    @functools.cached_property
    def _ranges(self) -> Callable[[Expr], Range]:
        dtype_of = lambda operand: facts.tensors(operand.leaf)[0].dtype
        return leaf_ranges(self.operands, self.scalars, self.positions, dtype_of)

    def _check_fit(self, x: Expr, dtype: torch.dtype, node: Node) -> None:
        """Integers of a program do not wrap: those of the model must not either."""
        if not fits(x, dtype, self._ranges):
            reason = f"{self.describe(node)} may go beyond what {dtype} holds"
            raise Refused(Code.DTYPE, reason, self.shadow.source(node))

    def _note_width(self, node: Node) -> None:
        if tensor_of(node).dtype == torch.float64:
            self.wide = node

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
            raise Refused(Code.DTYPE, f"{self.describe(node)} counts in {tensor_of(node).dtype}")
        if start.kind != "i" or step.kind != "i":
            raise Refused(Code.POINTWISE_OP, f"{self.describe(node)} steps through real numbers")
        count = call("add", start, call("mul", self._position(index[0]), step))
        self._check_fit(count, tensor_of(node).dtype, node)
        if tensor_of(node).dtype == torch.float32:
            self.singles[real(count)] = node
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
        self._check_fit(found, dtype, node)
        found = as_kind(kind_of(dtype), found)
        if dtype in ROUNDING and found.is_const:
            found = rounded_literal(float(found.value or 0), dtype)
        if dtype == torch.float32:
            self.singles[found] = node
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

    def _pointwise(self, node: Node, index: Index, result: torch.Tensor) -> Expr:
        kind = kind_of(result.dtype)
        if decides_in_fp64(node) if kind != "f" else result.dtype == torch.float64:
            self.wide = node
        args = self._pointwise_operands(node, index, result)
        options = {
            name: given if isinstance(given, str) or given is None else self._argument(given)
            for name, given in node.kwargs.items()
            if name not in ("dtype", "layout", "device", "pin_memory", "memory_format", "inplace")
        }
        try:
            found = POINTWISE[facts.name(node)](kind, *args, **options)
        except (Unknown, ValueError, TypeError) as error:
            raise Refused(
                Code.POINTWISE_OP,
                f"{self.describe(node)} is not in the vocabulary: {error}",
                self.shadow.source(node),
            ) from None
        if facts.name(node) in _OVERWRITES:
            found = self._over(node.args[0], index, found)
        if found.kind != kind:
            raise Refused(
                Code.POINTWISE_OP, f"{self.describe(node)} changes kind from {found.kind} to {kind}"
            )
        if result.dtype in ROUNDING and _has_places(found):
            self.rounded.add(found)
        if facts.name(node) in REWORDED and found.op != "pow":
            self.reworded.add(found)
        self._check_fit(found, result.dtype, node)
        if result.dtype == torch.float32:
            self.singles[found] = node
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
        if meets in ROUNDING and called in ROUNDS_OPERANDS:
            compared = called in COMPARISONS
            args = [in_16_bits(x, a, meets, compared) for x, a in zip(args, given, strict=True)]
        for x in args:
            if isinstance(x, Expr) and x.kind == "i":
                self._check_fit(x, meets, node)
                if meets == torch.float32:
                    self.singles[real(x)] = node
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
        return Refused(code, f"{self.describe(node)} {REASONS[code]}", self.shadow.source(node))

    def operand(self, node: Node, index: Index) -> Operand:
        """A factor of a product: views and casts of one tensor from outside."""
        casts: list[torch.dtype] = []
        while node.op != "placeholder":
            if facts.name(node) == "_to_copy":
                source: Node = node.args[0]  # type: ignore[assignment]
                if tensor_of(source).device != tensor_of(node).device:
                    raise Refused(
                        Code.DEVICE, f"{self.describe(node)} moves an operand to another device"
                    )
                if tensor_of(source).dtype != tensor_of(node).dtype:
                    casts.insert(0, tensor_of(node).dtype)
                node = source
                continue
            seen = through_view(self.space, node, index)
            if seen is None:
                raise Refused(
                    Code.LAYOUT, f"an operand of a product is made by {self.describe(node)}"
                )
            node, index = seen
        return Operand(self.shadow.leaves[node], self.space.resolve_index(index), tuple(casts))


def _depends_on_product(shadow: Shadow) -> set[Node]:
    """Nodes that are made from a product, by the tensors that flow."""
    found: set[Node] = set()
    for node in shadow.nodes:
        fed = any(
            n in found
            for n in node.all_input_nodes
            if isinstance(n.meta.get("val"), (torch.Tensor, tuple, list))
        )
        if fed or facts.name(node) in _PRODUCTS:
            found.add(node)
    return found


def _has_places(x: Expr) -> bool:
    """A term of positions, and of no score."""
    leaves = {leaf.op for leaf in postorder([x]) if not leaf.args}
    return "index" in leaves and "s" not in leaves


def _read_number(leaf: Node | None) -> Node | None:
    """The tensor of no dims that `.item()` reads: a float that Dynamo keeps as an input."""
    if leaf is None or facts.name(leaf) != "item":
        return None
    (tensor,) = leaf.all_input_nodes
    return tensor if facts.tensors(tensor)[0].dim() == 0 else None
