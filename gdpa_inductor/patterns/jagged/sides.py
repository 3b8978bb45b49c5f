"""Find the sides of an attention whose padding can be removed, and read operands without padding.

In: the reading of a region, and the padding of its graph. Out: `Sides`, or Refused with a JAGGED_*
code. Then that side stays padded. A side can be jagged in two cases:

    rows   The output is unpadded by the offsets of Q. So nobody sees padded rows, and they get no
           gradient.
    keys   K and V are padded by the same offsets, V with zeros. So padded keys add nothing, and dP
           is zero there, which makes all their gradients zero.

Both need finite weights in the padding, since zero times infinity is NaN. So Q and K have to be
padded with ordinary numbers. The padding stays if the program is infinite at a score of zero (1/s,
log, the slope of a square root). It also stays if the program is infinite for the numbers with
which its operands are padded (s/p). docs/jagged.md says what follows for other operands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import Node

from ...program.expr import SCORE, Expr, element_kind, fold, torch_apply
from ...rejection import Code
from ..host import facts
from ..host.facts import may_want_gradients
from ..host.region import Sink
from ..host.sizes import Size, alike
from ..reading.frame import Digits, Index, flat
from ..reading.layout import Layout, layout_of, roles
from ..reading.reading import Operand, Reading
from ..result import Refused
from .padding import ORDINARY, GraphPadding
from .pads import Pad, length_of


@dataclass(frozen=True)
class JaggedSide:
    """One jagged side of an attention.

    tokens: The index variable of its values. It replaces `batch` and `positions` together.
    """

    pad: Pad
    batch: Digits
    positions: Digits
    tokens: Digits
    length: Size


@dataclass(frozen=True)
class Sides:
    """The jagged sides of one attention: rows, keys, both or none.

    end: The node of the attention's result.
    """

    padding: GraphPadding
    end: Node
    query: JaggedSide | None = None
    key: JaggedSide | None = None

    @property
    def jagged(self) -> list[JaggedSide]:
        return [side for side in (self.query, self.key) if side is not None]

    @property
    def share_offsets(self) -> bool:
        if self.query is None or self.key is None:
            return False
        return self.padding.offsets.one(self.query.pad.offsets, self.key.pad.offsets)

    def layout(self, reading: Reading) -> Layout:
        """The layout of a reading, with operands indexed by tokens on the sides that are jagged."""
        batches = [side.batch for side in self.jagged]
        rows = None if self.query is None else self.query.positions
        layout = layout_of(reading, batches[0] if batches else None, rows)
        if self.query is not None:
            query = self._tokens(self.query, layout.query)
            layout = replace(layout, query=query, query_tokens=self.query.tokens)
        if self.key is not None:
            key, value = (self._tokens(self.key, o) for o in (layout.key, layout.value))
            layout = replace(layout, key=key, value=value, key_tokens=self.key.tokens)
        return layout

    def operand(self, operand: Operand) -> Operand:
        """An operand of the program, indexed by tokens if it is padded as a side is."""
        for side in () if operand.summed or operand.is_seed else self.jagged:
            if operand.index[:2] == (side.batch, side.positions):
                # If its padding cannot go, it is read with its padding.
                with contextlib.suppress(Refused):
                    return self._tokens(side, operand)
        return operand

    def _tokens(self, side: JaggedSide, operand: Operand) -> Operand:
        pad = self.padding.usable("an operand", operand.leaf, self.end)
        if not self.padding.offsets.one(pad.offsets, side.pad.offsets):
            raise Refused(Code.JAGGED_OFFSETS, "an operand is padded by other offsets")
        if not alike(length_of(pad), side.length):  # the op checks it
            raise Refused(Code.JAGGED_LENGTH, "jagged values of one side differ in their number")
        return replace(operand, leaf=pad.values, index=(side.tokens, *operand.index[2:]))


def sides_of(
    padding: GraphPadding, reading: Reading, sink: Sink | None, keys: bool, end: Node
) -> Sides:
    """The jagged sides of a reading: the rows if there is a `sink`, the keys if `keys` is set.

    Raises Refused if such a side cannot be jagged.
    """
    if sink is not None or keys:
        _check_padding(padding, reading)
    query, key = roles(reading)
    query_side = key_side = None
    if sink is not None:
        query_side = _side(padding, {"Q": query}, query.index[1:2], reading, end)
        _check_sink(padding, query_side, reading, sink)
    if keys:
        operands = {"V": reading.value, "K": key}
        key_side = _side(padding, operands, (reading.keys,), reading, end)
        fill = key_side.pad.fill
        if not isinstance(fill, (int, float)) or fill != 0:
            raise Refused(Code.JAGGED_FILL, f"V is padded with {fill}")
        if query_side is not None and query_side.batch != key_side.batch:
            raise Refused(Code.JAGGED_LAYOUT, "Q and K are padded along different dimensions")
    return Sides(padding, end, query_side, key_side)


def _side(
    padding: GraphPadding,
    operands: Mapping[str, Operand],
    positions: Index,
    reading: Reading,
    end: Node,
) -> JaggedSide:
    # The first operand defines the side. They are named for reasons.
    known = padding.pads.keys() | padding.derived
    bare = [name for name, operand in operands.items() if operand.leaf not in known]
    if bare and len(bare) < len(operands):
        raise Refused(Code.JAGGED_OPERAND, f"{bare[0]} is not padded, but the other of K and V is")
    pads = {name: padding.usable(name, operand.leaf, end) for name, operand in operands.items()}
    (first, pad), *others = pads.items()
    batch = operands[first].index[0]
    for name, operand in operands.items():
        fill = pads[name].fill
        if not isinstance(fill, (int, float)) or not abs(fill) <= 1:  # 0·NaN would be lost
            raise Refused(Code.JAGGED_FILL, f"{name} is padded with {fill}")
        if operand.index[:2] != (batch, *positions) or len(positions[0]) != 1:
            reason = f"{name} is not padded along the batch and its positions"
            raise Refused(Code.JAGGED_LAYOUT, reason)
    for name, other in others:
        if not padding.offsets.one(pad.offsets, other.offsets):
            reason = f"{first} and {name} are padded by different offsets"
            raise Refused(Code.JAGGED_OFFSETS, reason)
    length = length_of(pad)
    return JaggedSide(pad, batch, positions[0], reading.space.fresh(length), length)


def _check_padding(padding: GraphPadding, reading: Reading) -> None:
    """Weights and gradients must be finite in the padding.

    Scores are zero there. Operands may be any ordinary numbers, or the numbers of their padding: on
    rows, on keys, and on both.
    """
    if not _is_finite(reading.weight, {}, set()):
        raise Refused(Code.JAGGED_FILL, "a score of zero has an infinite weight or slope")
    own = [(number, operand) for number, operand in enumerate(reading.aux) if not operand.is_seed]
    leaves = {number: operand.leaf for number, operand in own}
    known = {n: padding.absent(leaf) for n, leaf in leaves.items()}
    fills = {n: x for n, x in known.items() if x is not None}
    keys = {n for n in fills if {*reading.keys} <= {*flat(reading.aux[n].index)}}
    # Gradients that the padding itself gets are dropped with it.
    trained = {
        n for n, leaf in leaves.items() if leaf not in padding.pads and may_want_gradients(leaf)
    }
    for padded in (keys, fills.keys() - keys, fills.keys()):
        if not _is_finite(reading.weight, {n: fills[n] for n in padded}, trained):
            reason = "the padding of an operand makes an infinite weight or slope"
            raise Refused(Code.JAGGED_FILL, reason)


def _is_finite(weight: Expr, fills: Mapping[int, Tensor], trained: set[int]) -> bool:
    # fills: The numbers of operands that are not ordinary. trained: Operands whose gradients have
    # to be finite too.
    roots = [torch.zeros(4, dtype=torch.float64, requires_grad=True)]

    def leaf(node: Expr) -> Tensor:
        ordinary = ORDINARY[element_kind(node.kind)]
        if node is SCORE:
            return roots[0]
        if node.op == "const":
            return torch.full_like(ordinary, node.value)
        if node.op != "aux":
            return ordinary
        operand = fills.get(node.value, ordinary).to(ordinary.dtype).expand(4)
        if element_kind(node.kind) == "f" and node.value in trained:
            operand = operand.clone().requires_grad_()
            roots.append(operand)
        return operand

    apply = torch_apply(torch.float64)
    # An element of a table is an ordinary number, wherever it lies.
    looked_up = lambda node, values: values[0] if node.op == "lookup" else apply(node, values)
    (result,) = fold([weight], leaf, looked_up)
    slopes: tuple[Tensor | None, ...] = ()
    if result.requires_grad:
        slopes = torch.autograd.grad(result.sum(), roots, allow_unused=True)
    return all(bool(x.isfinite().all()) for x in (result, *slopes) if x is not None)


def _check_sink(padding: GraphPadding, side: JaggedSide, reading: Reading, sink: Sink) -> None:
    if reading.output[:2] != (side.batch, side.positions):
        raise Refused(Code.JAGGED_LAYOUT, "the output is unpadded along other dimensions")
    if not padding.offsets.one(side.pad.offsets, sink.offsets):
        reason = "Q is padded and the output unpadded by different offsets"
        raise Refused(Code.JAGGED_OFFSETS, reason)
    if not alike(facts.tensors(sink.result)[0].shape[0], side.length):
        reason = "the length that the output is unpadded to is not known to be that of Q"
        raise Refused(Code.JAGGED_LENGTH, reason)
