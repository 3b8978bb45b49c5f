"""Gradients of biases: of operands that are added to the score, up to a constant factor (`roots`).

The kernel stores the gradient of one of them, a number for each score, in 16 bits. The gradient of
each is a sum of these. To bound their memory, a call is launched in parts: some batches, or some
heads, at a time. Every sum has one order. What follows from the form of a call is a `Division`,
which its plan keeps. Host only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import Operands, aux_on_axes, score_shape
from ....program.expr import AXES, postorder
from ....program.score_mod import Aux
from ..memory import for_gradient
from .roots import factor_of

if TYPE_CHECKING:
    from ..replay import Record

ROOM = 256 << 20  # bytes of scores at a time, where a part has more than one batch or key head
GOOD = 0.95  # of the best use of the CTAs is as good
ALIGNED = 8  # scores: TMA stores rows that begin at multiples of 16 bytes
KEYS = AXES.index("kv_idx")

# Stores factor · the sum of scores, if it can: see `totals`.
Total = Callable[[Tensor, Tensor, float], bool]


@dataclass(frozen=True)
class Part:
    """One launch. rooms: for dQ, dK, dV, by letter. stored: the operand of the program whose
    gradient goes to `scores` [B, H, M, N]. whole: the operands are those of the call, so that its
    plan serves. keys: which part of the keys it has, as `KernelConfig.part`."""

    operands: Operands[Tensor]
    grad_out: Tensor
    rooms: dict[str, Tensor]
    stored: int
    scores: Tensor
    whole: bool
    keys: str = ""


@dataclass(frozen=True)
class Share:
    """`count` batches from `first` on (axis 0), or key heads (axis 1), each with `group` query
    heads. whole: all that there are. keys: (first, count), where it has some only. part: which."""

    axis: int
    first: int
    count: int
    group: int
    whole: bool
    keys: tuple[int, int] | None = None
    part: str = ""

    def matrix(self, matrix: Tensor, letter: str) -> Tensor:
        """Of a matrix with the heads of "q", "k" or "v"."""
        own = self._narrowed(matrix, self.axis, 1 if letter in "kv" else self.group)
        return own.narrow(2, *self.keys) if self.keys and letter in "kv" else own

    def operand(self, tensor: Tensor, spec: Aux) -> Tensor:
        """Of an operand of the program, or of its gradient."""
        letter, keys = AXES[self.axis], "kv_idx"
        if letter in spec.access:
            tensor = self._narrowed(tensor, spec.access.index(letter), self.group)
        if self.keys and keys in spec.access:
            tensor = tensor.narrow(spec.access.index(keys), *self.keys)
        return tensor

    def of(self, o: Operands[Tensor]) -> Operands[Tensor]:
        if self.whole:
            return o
        aux = [self.operand(x, spec) for x, spec in zip(o.aux, o.program.aux, strict=True)]
        query, key, value = (self.matrix(x, y) for x, y in zip((o.query, o.key, o.value), "qkv"))
        return replace(o, query=query, key=key, value=value, aux=aux)

    def cut(self, tile: int, tiles: int, cols: int) -> list[Share]:
        """The same with so many tiles of keys at a time, of all `cols` keys."""
        step = tile * tiles
        found = [(i, min(step, cols - i)) for i in range(0, cols, step)]
        parts = ["first", *["middle"] * (len(found) - 2), "last"]
        pairs = zip(found, parts, strict=True)
        return [replace(self, whole=False, keys=keys, part=part) for keys, part in pairs]

    def _narrowed(self, tensor: Tensor, dim: int, group: int) -> Tensor:
        step = group if self.axis else 1
        return tensor if self.whole else tensor.narrow(dim, self.first * step, self.count * step)


class BiasSum:
    """How the gradient of operand `number` follows from that of operand `stored`."""

    def __init__(
        self, o: Operands[Tensor], number: int, stored: int, shares: Sequence[Share]
    ) -> None:
        operand, program = o.aux[number], str(o.program)
        self.number, self.spec, self.dtype = number, o.program.aux[number], operand.dtype
        self.factor = factor_of(program, stored) / factor_of(program, number)
        self.summed = [d for d, letter in enumerate(AXES) if letter not in self.spec.axes]
        cut = shares[0].keys is not None
        several = len({share.first for share in shares}) > 1
        self.adds = (shares[0].axis in self.summed and several) or (KEYS in self.summed and cut)
        on_axes = _on_axes(o, number)
        self.shape = on_axes.shape if on_axes.is_contiguous() and shares[0].whole else None

    def room(self, operand: Tensor, spare: bool, record: Record) -> Tensor:
        """For the gradient, or for a sum of several parts, in fp32. spare: the operand may be
        overwritten, for each part has read its own before."""
        if self.adds:
            record.fails = True
            return operand.new_zeros(operand.shape, dtype=torch.float32)
        if spare and operand.is_contiguous():
            return operand.detach()
        return record.made(empty(operand.shape, operand.dtype, operand.device))

    def on_axes(self, share: Share, total: Tensor) -> Tensor:
        """What a share adds to, with a dimension for each of b, h, q_idx, kv_idx."""
        if self.shape is not None:
            return total.view(self.shape)
        return aux_on_axes(share.operand(total, self.spec), self.spec)

    def add(
        self, share: Share, scores: Tensor, total: Tensor, fast_total: Total, record: Record
    ) -> None:
        own = self.on_axes(share, total)
        if not self.adds and fast_total(scores, own, self.factor):
            return
        record.fails = True
        if self.summed:
            scores = scores.sum(self.summed, keepdim=True, dtype=torch.float32)
        if self.factor != 1.0:
            scores = scores.float() * self.factor
        (own.add_ if self.adds else own.copy_)(scores)


class Division:
    """The parts of a call, and what is summed. direct: the stored gradient is what is asked for, as
    it lies, and there is one part. keys: of a tile. cuts: a launch may have some of the keys."""

    def __init__(
        self, o: Operands[Tensor], wanted: Sequence[int], keys: int, ctas: int, cuts: bool = False
    ) -> None:
        self.batch, *_ = score_shape(o)
        self.shared = any(x.shape[0] != self.batch for x in (o.query, o.key, o.value))
        self.direct = len(wanted) == 1 and _is_the_scores(o, wanted[0])
        read = {node.op for node in postorder([o.program.weight])}
        axis = None if self.direct else _axis(o, wanted, read)
        self.shares = _shares(o, axis or 0, keys, ctas, None if axis is None else ROOM)
        if cuts and not self.direct and "kv_idx" not in read:
            self.shares = _cut(o, self.shares, keys, ctas)
        self.sums = [BiasSum(o, number, wanted[0], self.shares) for number in wanted]

    def scores(
        self, o: Operands[Tensor], first: Tensor, record: Record
    ) -> Iterator[tuple[Share, Tensor]]:
        """For each share, where the scores' gradient goes. first: the room of the first sum."""
        room: Tensor | None = None
        for share in self.shares:
            if self.direct:
                yield share, self.sums[0].on_axes(share, first)
                continue
            query, cols = share.matrix(o.query, "q"), share.matrix(o.key, "k").shape[2]
            shape = (*query.shape[:3], -(-cols // ALIGNED) * ALIGNED)
            if room is None or room.shape != shape:
                room = None  # before there is another
                room = record.made(empty(shape, query.dtype, query.device))
            yield share, room if room.shape[-1] == cols else room[..., :cols]


def gradients(
    grad_out: Tensor,
    given: Operands[Tensor],
    needs: Sequence[bool],
    division: Division,
    launch: Callable[[Part], None],
    fast_total: Total,
    record: Record,
    spare: Sequence[int] = (),
) -> list[Tensor]:
    """The asked ones of dQ, dK, dV and those of the operands. record: of what is done.
    spare: operands that may be overwritten."""
    o = unshared(given) if division.shared else given
    matrices, sums = (o.query, o.key, o.value), division.sums
    rooms = {x: record.made(for_gradient(y, empty)) for x, y in zip("qkv", matrices)}
    totals = [each.room(o.aux[each.number], each.number in spare, record) for each in sums]
    for share, scores in division.scores(o, totals[0], record):
        own = {x: share.matrix(y, x) for x, y in rooms.items()}
        grad, whole = share.matrix(grad_out, "q"), share.whole and not division.shared
        launch(Part(share.of(o), grad, own, sums[0].number, scores, whole, share.part))
        for each, total in zip(sums, totals) if not division.direct else ():
            each.add(share, scores, total, fast_total, record)
    asked = zip("qkv", (given.query, given.key, given.value), needs, strict=False)
    found = [_like(rooms[letter], x) for letter, x, need in asked if need]
    return found + [total.to(each.dtype) for each, total in zip(sums, totals)]


def unshared(o: Operands[Tensor]) -> Operands[Tensor]:
    """Each batch has matrices of its own."""
    batch = score_shape(o)[0]
    query, key, value = (
        x if x.shape[0] == batch else x.expand(batch, -1, -1, -1).contiguous()
        for x in (o.query, o.key, o.value)
    )  # fmt: skip
    return replace(o, query=query, key=key, value=value)


def _like(grad: Tensor, operand: Tensor) -> Tensor:
    """Summed over the batch where that shares the operand."""
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=True, dtype=torch.float32).to(operand.dtype)


def _on_axes(o: Operands[Tensor], number: int) -> Tensor:
    """The gradient of an operand with a dimension for each of b, h, q_idx, kv_idx; no memory."""
    return aux_on_axes(torch.empty(o.aux[number].shape, device="meta"), o.program.aux[number])


def _is_the_scores(o: Operands[Tensor], number: int) -> bool:
    """Whether the gradient of an operand is what the kernel stores, as it lies."""
    shape, on_axes = score_shape(o), _on_axes(o, number)
    alike = o.aux[number].dtype == o.query.dtype and on_axes.shape == shape
    return alike and on_axes.is_contiguous() and shape[-1] % ALIGNED == 0


def _axis(o: Operands[Tensor], wanted: Sequence[int], read: Collection[str]) -> int | None:
    """The axis that parts are cut along, 0 or 1: if it can be, one that no sum goes over. A kernel
    numbers the batches and the heads of a part from 0, so an axis whose number the program reads
    stays whole. None: both do."""
    first = 0 if any("b" in o.program.aux[number].axes for number in wanted) else 1
    return next((axis for axis in (first, 1 - first) if AXES[axis] not in read), None)


def _shares(o: Operands[Tensor], axis: int, keys: int, ctas: int, room: int | None) -> list[Share]:
    """As many batches or heads at a time as there is room for, if that keeps the CTAs busy."""
    (batch, heads, rows, cols), key_heads = score_shape(o), o.key.shape[1]
    units, group = (batch, key_heads)[axis], heads // max(key_heads, 1)
    tiles = batch * key_heads * -(-cols // keys) // max(units, 1)
    size = batch * heads * rows * cols * o.query.element_size() // max(units, 1)
    count = _at_a_time(units, tiles, size, ctas, room) if room else units
    starts = range(0, max(units, 1), max(count, 1))
    return [Share(axis, i, min(count, units - i), group, len(starts) == 1) for i in starts]


def _cut(o: Operands[Tensor], shares: list[Share], keys: int, ctas: int) -> list[Share]:
    """Some of the keys at a time, where all of them have no room for one batch or head."""
    (batch, heads, rows, cols), key_heads, first = score_shape(o), o.key.shape[1], shares[0]
    units = max((batch, key_heads)[first.axis], 1)
    size = batch * heads * first.count // units * rows * cols * o.query.element_size()
    if size <= ROOM or cols <= keys:
        return shares
    columns, tiles = -(-cols // keys), batch * key_heads * first.count // units
    count = _at_a_time(columns, tiles, size // columns, ctas, ROOM)
    return [each for share in shares for each in share.cut(keys, min(count, columns - 1), cols)]


def _at_a_time(units: int, tiles: int, size: int, ctas: int, room: int) -> int:
    """How many of these units a launch has. tiles, size: of one, in tiles of keys and in bytes."""

    def use(count: int) -> float:
        """The share of the CTAs that work, until the last has ended."""
        return count * tiles / (max(1, -(-count * tiles // ctas)) * ctas)

    counts = [n for n in range(1, units + 1) if n == 1 or n * size <= room]
    best = max(map(use, counts), default=0.0)
    return max((n for n in counts if use(n) >= GOOD * best), default=1)
