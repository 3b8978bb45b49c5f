"""Read a shadow as product, score program, product.

The walk goes backwards from the region's result: through views to the second product, then through
the weights (`weights`) to the first product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...program.expr import SCORE, postorder
from ...rejection import Code
from ..host import facts
from ..result import Refused
from .factors import ADDED_PRODUCTS, PRODUCTS, Factors
from .frame import Index, Space
from .kinds import real
from .precision import in_fp32
from .reading import Reading, flat, kind_of
from .shadow import Shadow
from .views import tensor_of, through_view, value_of
from .weights import Element, Weights


def read(shadow: Shadow) -> Reading:
    """Read a shadow. Raises Refused where it is not product, point-wise program, product."""
    space = Space()
    shape = value_of(shadow.output).shape
    output = tuple(space.fresh(size) for size in shape)
    while True:  # again after a split: all indices are then in the same atoms
        splits = len(space.splits)
        try:
            reading = Matcher(shadow, space).region(output)
        except RecursionError:
            raise Refused(Code.ANALYSIS, "the program between the products is too long") from None
        if len(space.splits) == splits:
            return reading


@dataclass(frozen=True)
class Matcher:
    """One pass over a shadow."""

    shadow: Shadow
    space: Space

    def region(self, output: Index) -> Reading:
        """Read the whole region; `output` is the index of its result."""
        second, index, dtypes = self._second_product(self.space.resolve_index(output))
        if self.space.outer is None:
            self.space.outer = frozenset(self.space.splits)
        swapped = self._is_swapped(second)
        factors, weights = Factors(self.shadow, self.space), Weights(self.shadow, self.space)
        keys = factors.contracted(second)
        sides: list[Node] = list(second.args[:2])  # type: ignore[arg-type]
        weights_at, value_at = ((*index[:-1], keys), (*index[:-2], keys, index[-1]))
        if swapped:
            weights_at, value_at = value_at, weights_at
        weight = real(weights.read(sides[1 if swapped else 0], Element(weights_at)))
        if SCORE not in set(postorder([weight])) or weights.score is None:
            raise Refused(Code.CONTRACTION, "the weights do not depend on the first product")
        weights.precision.check_conditions(weight)
        value = factors.operand(sides[0 if swapped else 1], value_at)
        product, at = weights.score
        inner = factors.contracted(product)
        left, right = factors.operands(product, at, inner)
        dtype = tensor_of(factors.of(product)[0]).dtype
        weights.precision.check_dtypes(dtype, weight)
        weight = weight if dtype == torch.float64 else in_fp32(weight)
        resolve = self.space.resolve_index
        return Reading(
            weight, tuple(weights.operands), tuple(weights.scalars), tuple(weights.positions),
            left, right, value, resolve(output), resolve(weights_at), resolve(at),
            resolve(weights.scores or at), self.space.resolve(inner), self.space.resolve(keys),
            self.space, swapped, dtypes,
        )  # fmt: skip

    def _is_swapped(self, second: Node) -> bool:
        """Whether the weights are the right-hand operand of the second product."""
        depends = _depends_on_product(self.shadow)
        scored = [side in depends for side in second.args[:2]]
        if all(scored):
            reason = "both operands of the second product depend on the scores"
            raise Refused(Code.CROSS_ELEMENT, reason)
        if not any(scored):
            reason = "no operand of the second product is made from the scores"
            raise Refused(Code.CONTRACTION, reason)
        return scored[1]

    def _second_product(self, index: Index) -> tuple[Node, Index, tuple[torch.dtype, ...]]:
        """The product, its element that the element `index` of the result is, and its dtype,
        followed by those that this element is cast to.
        """
        node = self.shadow.output
        dtypes = [tensor_of(node).dtype]
        while facts.name(node) not in PRODUCTS:
            source = _through_cast(node, index) or through_view(self.space, node, index)
            if source is None:
                raise self._more(node)
            node, index = source
            if tensor_of(node).dtype != dtypes[0]:
                dtypes.insert(0, tensor_of(node).dtype)
        if facts.name(node) in ADDED_PRODUCTS:
            reason = f"the second product, {self.shadow.describe(node)}, adds to its result"
            raise Refused(Code.LAYOUT, reason)
        if any(a.is_fixed for a in flat(index)):
            raise Refused(Code.LAYOUT, "a part of the second product's result is used")
        return node, index, tuple(dtypes)

    def _more(self, node: Node) -> Refused:
        """The refusal of a second product that does more, as an einsum of three operands.

        Where nothing but a scale is between the products, the first one makes a state: linear
        attention, mamba.
        """
        depends = _depends_on_product(self.shadow)
        inner = [n for n in node.all_input_nodes if n in depends]
        if len(inner) == 1:
            try:
                rest = read(replace(self.shadow, output=inner[0]))
            except Refused as refusal:
                if refusal.code is Code.CONTRACTION:
                    return refusal
            else:
                if rest.swapped and {x.op for x in postorder([rest.weight])} <= _SCALING:
                    return Refused(Code.CONTRACTION, f"three matrices are multiplied, {_STATE}")
        reason = "does more than the second product: call the rest apart"
        return self.shadow.refused(Code.LAYOUT, node, reason)


_SCALING = frozenset([SCORE.op, "const", "mul", "div", "neg"])
_STATE = "the right-hand ones first: there are no weights"  # also what `profit.rank` says


def _through_cast(node: Node, index: Index) -> tuple[Node, Index] | None:
    """The source of a cast from reals to reals; None where `node` is none."""
    if facts.name(node) != "_to_copy" or kind_of(tensor_of(node).dtype) != "f":
        return None
    source: Node = node.args[0]  # type: ignore[assignment]
    return (source, index) if kind_of(tensor_of(source).dtype) == "f" else None


def _depends_on_product(shadow: Shadow) -> set[Node]:
    """Nodes that are made from a product, by the tensors that flow."""
    nodes: set[Node] = set()
    for node in shadow.nodes:
        tensors = (
            n for n in node.all_input_nodes if isinstance(value_of(n), (torch.Tensor, tuple, list))
        )
        if facts.name(node) in PRODUCTS or not nodes.isdisjoint(tensors):
            nodes.add(node)
    return nodes
