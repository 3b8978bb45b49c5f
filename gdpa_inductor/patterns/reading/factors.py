"""The factors of the two products: which tensors from outside they are, at which index."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...rejection import Code
from ..host import facts
from ..host.pages import kept
from ..result import Refused
from .frame import Digits, Index, Space
from .lookups import LOOKUPS, lookup_of
from .reading import Operand, Pages
from .shadow import Shadow
from .views import tensor_of, through_view

PRODUCTS = frozenset(["bmm", "mm", "baddbmm", "addmm"])
ADDED_PRODUCTS = frozenset(["baddbmm", "addmm"])


@dataclass(frozen=True)
class Factors:
    shadow: Shadow
    space: Space

    def of(self, product: Node) -> tuple[Node, Node]:
        """The two tensors that it multiplies, without what it adds."""
        at = 1 if facts.name(product) in ADDED_PRODUCTS else 0
        return product.args[at], product.args[at + 1]  # type: ignore[return-value]

    def contracted(self, product: Node) -> Digits:
        """The digits that a product sums over: the same ones in every pass."""
        return self.space.once((product.name,), tensor_of(self.of(product)[0]).shape[-1])

    def operands(self, product: Node, at: Index, inner: Digits) -> tuple[Operand, Operand]:
        """Both factors of the product whose element is `at`; `inner` is what it sums over."""
        left, right = self.of(product)
        return (
            self.operand(left, (*at[:-1], inner)),
            self.operand(right, (*at[:-2], inner, at[-1])),
        )

    def summed(self, node: Node, index: Index) -> Operand | None:
        """A tensor from outside, summed over whole dims of it; None where a sum is not that."""
        source: Node = node.args[0]  # type: ignore[assignment]
        at, rank = list(index), tensor_of(source).dim()
        dims = sorted(int(d) % rank for d in node.args[1])  # type: ignore[arg-type, union-attr]
        if len(index) != rank or tensor_of(node).dtype != tensor_of(source).dtype:
            return None
        over = [
            self.space.once((node.name, position), tensor_of(source).shape[dim])
            for position, dim in enumerate(dims)
        ]
        for dim, digits in zip(dims, over, strict=True):
            at[dim] = digits
        try:
            operand = self.operand(source, tuple(at))
        except Refused:
            return None
        wanted = {atom for digits in over for atom in self.space.resolve(digits)}
        summed = tuple(d for d, digits in enumerate(operand.index) if wanted & {*digits})
        # The sum must run over whole dims of the leaf, each once: else it is no sum of an operand.
        covered = [atom for dim in summed for atom in operand.index[dim]]
        if operand.casts or not summed or len(covered) != len(wanted) or {*covered} != wanted:
            return None
        left = tuple(() if dim in summed else digits for dim, digits in enumerate(operand.index))
        return Operand(operand.leaf, left, summed=summed)

    def operand(self, node: Node, index: Index) -> Operand:
        """A factor of a product: views and casts of one tensor from outside, or of rows that are
        copied from its pages.
        """
        behind = facts.walk([node], lambda n: n.all_input_nodes[:1])
        gather = next((n for n in behind if facts.name(n) in LOOKUPS), None)
        try:
            return self._operand(node, index)
        except Refused as refusal:
            source = gather and self.shadow.source(gather)
            if source is None or refusal.code is Code.PAGES_COPIED:
                raise
            raise kept(source, f"it is no view of whole pages, as {refusal.reason}") from refusal

    def _operand(self, node: Node, index: Index) -> Operand:
        casts: list[torch.dtype] = []
        while node.op != "placeholder":
            if facts.name(node) == "_to_copy":
                source: Node = node.args[0]  # type: ignore[assignment]
                if tensor_of(source).device != tensor_of(node).device:
                    reason = "moves an operand to another device"
                    raise self.shadow.refused(Code.DEVICE, node, reason)
                if tensor_of(source).dtype != tensor_of(node).dtype:
                    casts.insert(0, tensor_of(node).dtype)
                node = source
                continue
            if facts.name(node) in LOOKUPS:
                pages = self._pages(node, self.space.resolve_index(index))
                copy = self.shadow.source(node)
                assert copy is not None
                return Operand(copy, self.space.resolve_index(index), tuple(casts), pages=pages)
            viewed = through_view(self.space, node, index)
            if viewed is None:
                reason = f"an operand of a product is made by {self.shadow.describe(node)}"
                raise Refused(Code.LAYOUT, reason)
            node, index = viewed
        return Operand(self.shadow.leaves[node], self.space.resolve_index(index), tuple(casts))

    def _pages(self, gather: Node, index: Index) -> Pages:
        look = lookup_of(gather, index)
        if look is None or len(look.indices) != 1:
            raise Refused(Code.LAYOUT, "no look-up along one dim")
        ((dim, (listed, at)),) = look.indices.items()
        size = tensor_of(look.table).shape[dim]
        table = self._operand(listed, at)
        number = self.space.once(("page", table.leaf, table.index, str(size)), size, place=True)
        own = tuple(number if digits is None else digits for digits in look.dims)
        table = replace(table, places=size, wraps=look.wraps)
        return Pages(self._operand(look.table, own), table, number)
