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
from . import row_sums
from .factors import ADDED_PRODUCTS, PRODUCTS
from .frame import Index, Space, flat
from .kinds import real
from .precision import in_fp32
from .reading import LINEAR_ATTENTION, Reading, kind_of
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
        second, index, dtypes = self._second_product(self.space.resolve_index(output))
        if self.space.outer is None:
            self.space.outer = frozenset(self.space.splits)
        swapped = self._is_swapped(second)
        weights = Weights(self.shadow, self.space)
        factors = weights.factors
        keys = factors.contracted(second)
        indices = (*index[:-1], keys), (*index[:-2], keys, index[-1])
        sides = tuple(zip(factors.of(second), indices, strict=True))
        (weights_side, weights_at), value_side = reversed(sides) if swapped else sides
        weight = real(weights.read(weights_side, Element(weights_at)))
        if SCORE not in set(postorder([weight])) or weights.score is None:
            raise Refused(Code.CONTRACTION, "the weights do not depend on the first product")
        weight, sums, factor = row_sums.read(weights, weight, keys, dtypes[0])
        if sums is not None and any(operand.is_seed for operand in weights.operands):
            raise Refused(Code.DROPOUT, "random numbers are drawn beside row sums")
        terms = [weight] if sums is None else [weight, sums.term]
        terms = list(map(weights.precision.checked, terms))
        value = factors.operand(*value_side)
        product, at = weights.score
        inner = factors.contracted(product)
        left, right = factors.operands(product, at, inner)
        dtype = tensor_of(factors.of(product)[0]).dtype
        for term in terms:
            weights.precision.check_dtypes(dtype, term)
        resolve = self.space.resolve_index
        reading = Reading(
            weight=weight,
            aux=tuple(weights.operands),
            scalars=tuple(weights.scalars),
            positions=tuple(weights.positions),
            left=left,
            right=right,
            value=value,
            output=resolve(output),
            weights=resolve(weights_at),
            score=resolve(at),
            scores=resolve(weights.scores or at),
            inner=self.space.resolve(inner),
            keys=self.space.resolve(keys),
            space=self.space,
            swapped=swapped,
            dtypes=dtypes,
            sums=sums,
            factor=factor,
        )
        return reading.with_terms(terms if dtype == torch.float64 else list(map(in_fp32, terms)))

    def _is_swapped(self, second: Node) -> bool:
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
        """(the product, the index of its element, its dtype and those that it is cast to)"""
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
        """The second product does more, as an einsum of three operands.

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
                    return Refused(Code.CONTRACTION, LINEAR_ATTENTION)
        reason = "does more than the second product: call the rest apart"
        return self.shadow.refused(Code.LAYOUT, node, reason)


_SCALING = frozenset([SCORE.op, "const", "mul", "div", "neg"])


def _through_cast(node: Node, index: Index) -> tuple[Node, Index] | None:
    # From reals to reals only.
    if facts.name(node) != "_to_copy" or kind_of(tensor_of(node).dtype) != "f":
        return None
    source: Node = node.args[0]  # type: ignore[assignment]
    return (source, index) if kind_of(tensor_of(source).dtype) == "f" else None


def _depends_on_product(shadow: Shadow) -> set[Node]:
    nodes: set[Node] = set()
    for node in shadow.output.graph.nodes:
        is_tensor = isinstance(value_of(node), (torch.Tensor, tuple, list))
        depends = facts.name(node) in PRODUCTS or not nodes.isdisjoint(node.all_input_nodes)
        if is_tensor and depends:
            nodes.add(node)
    return nodes
