"""Gradients of biases, for dense calls. A bias is an operand that is added to the score (`roots`).

A bias may have a constant factor. The kernel stores the gradient of one bias: a 16-bit number for
each score. The gradient of every bias is a sum of these numbers over the dims that it lacks. Each
sum has a fixed order, so results do not vary from run to run.

All scores at once may need too much memory. So a call is launched in parts, each with some of the
batches, heads or keys. A `Division` says which parts and which sums there are. It depends on the
form of the call only, and the plan keeps it. This module runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import Operands, aux_on_axes, dtype_name, score_shape
from ....program.expr import AXES, postorder
from ....program.score_mod import Aux
from ..bounds import TileBounds
from ..config import VECTOR, TileSize
from ..form import off_alignment
from ..launcher import word_launcher
from ..replay import Record
from ..runtime import for_gradient
from .roots import factor_of
from .table_gradients import TableSum

if TYPE_CHECKING:
    from .launch import BackwardCall

ROOM = 256 << 20  # bytes of stored scores for a part; a single batch or key head may need more
# The same if gradients of tables are wanted. They stay in the L2 cache until they are summed.
TABLE_ROOM = 32 << 20
GOOD = 0.95  # a part may be larger if it still uses the CTAs this well, relative to the best
ALIGNED = 8  # scores; TMA stores rows that begin at multiples of 16 bytes
KEYS = AXES.index("kv_idx")
MOST_OUTER = 65535  # the most CTAs along the second dim of a grid
MOST_APART = 1 << 31  # vectors; `Summation` with `apart` counts them in 32 bits

# Launches a share: its operands, gradient of O, memory for dQ, dK and dV, and for stored scores.
Launch = Callable[["Share", Operands[Tensor], Tensor, dict[str, Tensor], Tensor], "BackwardCall"]


@dataclass(frozen=True)
class Share:
    """The batches, heads and keys of one part."""

    axis: int  # 0 if the call is cut along the batches, 1 if along the key heads
    first: int  # the first batch or key head
    count: int  # how many batches or key heads
    group: int  # how many query heads there are for each key head
    whole: bool  # the part is the whole call
    # (first, count) if the part has only some of the keys, else None
    keys: tuple[int, int] | None = None
    part: str = ""  # Which part of the keys this is: see `KernelConfig.part`.

    def matrix(self, matrix: Tensor, letter: str) -> Tensor:
        own = self._narrowed(matrix, self.axis, 1 if letter in "kv" else self.group)
        return own.narrow(2, *self.keys) if self.keys and letter in "kv" else own

    def operand(self, tensor: Tensor, spec: Aux) -> Tensor:
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

    def bounds(self, whole: TileBounds, size: TileSize) -> TileBounds:
        """The part of a table of bounds of the whole call."""
        room = whole.room
        if room.shape[self.axis] > 1:
            room = self._narrowed(room, self.axis, self.group)
        if self.keys and room.shape[KEYS] > 1:
            first, count = self.keys
            room = room.narrow(KEYS, first // size.cols, -(-count // size.cols))
        return replace(whole, room=room)

    def cut(self, tile: int, tiles: int, cols: int) -> list[Share]:
        step = tile * tiles
        ranges = [(i, min(step, cols - i)) for i in range(0, cols, step)]
        parts = ["first", *["middle"] * (len(ranges) - 2), "last"]
        pairs = zip(ranges, parts, strict=True)
        return [replace(self, whole=False, keys=keys, part=part) for keys, part in pairs]

    def _narrowed(self, tensor: Tensor, dim: int, group: int) -> Tensor:
        step = group if self.axis else 1
        return tensor if self.whole else tensor.narrow(dim, self.first * step, self.count * step)


class BiasSum:
    """How to compute the gradient of aux operand `number` from that of operand `stored`."""

    def __init__(
        self, o: Operands[Tensor], number: int, stored: int, shares: Sequence[Share]
    ) -> None:
        program = str(o.program)
        self.number, self.spec = number, o.program.aux[number]
        self.factor = factor_of(program, stored) / factor_of(program, number)
        self.summed = [d for d, letter in enumerate(AXES) if letter not in self.spec.axes]
        # The shares that are the first, and the last, to add to an element.
        regions = {share: self._region(share) for share in shares}
        self.first = set({region: x for x, region in reversed(regions.items())}.values())
        self.last = set({region: x for x, region in regions.items()}.values())
        on_axes = _on_axes(o, number)
        self.shape = on_axes.shape if on_axes.is_contiguous() and shares[0].whole else None

    def _region(self, share: Share) -> tuple[Any, ...]:
        """Which elements of the gradient a share adds to."""
        first = None if share.axis in self.summed else share.first
        return first, None if KEYS in self.summed else share.keys

    def room(self, o: Operands[Tensor], record: Record, donated: Collection[int] = ()) -> Tensor:
        """Memory for the gradient."""
        # It may be that of a donated operand, as each part has read its share before.
        operand = o.aux[self.number]
        if self.number in donated and operand.is_contiguous():
            return operand.detach()
        return record.add_buffer(empty(operand.shape, operand.dtype, operand.device))

    def on_axes(self, share: Share, total: Tensor) -> Tensor:
        """What a share adds to, as a view with a dim for each of b, h, q_idx, kv_idx."""
        if self.shape is not None:
            return total.view(self.shape)
        return aux_on_axes(share.operand(total, self.spec), self.spec)

    def add(self, share: Share, scores: Tensor, room: Tensor, part: BackwardCall) -> None:
        """Sum the scores that the launch of a share has stored. The last share of an element writes
        it to `room`. Those before keep its sum in fp32.

        Where `total` cannot sum, torch does.
        """
        is_first, is_last = share in self.first, share in self.last
        target, before = self.on_axes(share, room), None
        if not (is_first and is_last):
            sums = part.scratch(f"sums {self.number}", room.shape, torch.float32)
            own = self.on_axes(share, sums)
            target, before = target if is_last else own, None if is_first else own
        if part.total(scores, target, self.factor, before):
            return
        part.record.fails = True
        if self.summed:
            scores = scores.sum(self.summed, keepdim=True, dtype=torch.float32)
        if self.factor != 1.0:
            scores = scores.float() * self.factor
        target.copy_(scores if before is None else before + scores)

    def finished(self, room: Tensor, *_: Any) -> Tensor:
        return room


class Division:
    """The parts of a call, and the sums.

    `direct` says that the stored numbers are the gradient itself, so there is one part and no sum.

    Args:
        wanted: The aux operands that need a gradient.
        keys: Those of a tile.
        cuts: A launch may have some of the keys only.
        skips: It skips tiles that a mask empties.
    """

    def __init__(
        self,
        o: Operands[Tensor],
        wanted: Sequence[int],
        keys: int,
        ctas: int,
        cuts: bool = False,
        skips: bool = False,
    ) -> None:
        self.batch, *_ = score_shape(o)
        self.shared = any(x.shape[0] != self.batch for x in (o.query, o.key, o.value))
        self.direct = len(wanted) == 1 and _is_the_scores(o, wanted[0])
        read = {node.op for node in postorder([o.program.weight])}
        axis = None if self.direct else _axis(o, wanted, read)
        tables = any(o.program.aux[number].is_table for number in wanted)
        room = room_beside_tables(skips) if tables else ROOM
        self.shares = _shares(o, axis or 0, keys, ctas, None if axis is None else room)
        if cuts and not self.direct and not tables and "kv_idx" not in read:
            self.shares = _cut(o, self.shares, keys, ctas)
        self.sums = [self._sum(o, number, wanted[0], ctas) for number in wanted]

    def _sum(self, o: Operands[Tensor], number: int, stored: int, ctas: int) -> BiasSum | TableSum:
        if o.program.aux[number].is_table:
            batch, heads, *_ = score_shape(o)
            first, parts = self.shares[0], len(self.shares)
            slots = parts if first.axis == 0 else 1
            batches = batch if first.axis else first.count
            heads = first.count * first.group if first.axis and not first.whole else heads
            own = {"slots": slots, "batches": max(batches, 1), "heads": heads}
            return TableSum(o, number, stored, **own, ctas=ctas, last=self.shares[-1])
        return BiasSum(o, number, stored, self.shares)

    @property
    def sparse(self) -> bool:
        """Whether the sums leave out tiles of scores that a mask empties."""
        return all(isinstance(each, TableSum) and not each.sums_batches for each in self.sums)

    def scores(
        self, o: Operands[Tensor], first: Tensor, record: Record
    ) -> Iterator[tuple[Share, Tensor]]:
        """Each share, and the memory for its stored scores. first: The room of the first sum."""
        room: Tensor | None = None
        for share in self.shares:
            only = self.sums[0]
            if self.direct and isinstance(only, BiasSum):
                yield share, only.on_axes(share, first)
                continue
            query, cols = share.matrix(o.query, "q"), share.matrix(o.key, "k").shape[2]
            shape = (*query.shape[:3], -(-cols // ALIGNED) * ALIGNED)
            if room is None or room.shape != shape:
                room = None  # free it before the next is allocated
                room = record.add_buffer(empty(shape, query.dtype, query.device))
            yield share, room if room.shape[-1] == cols else room[..., :cols]


def gradients(
    grad_out: Tensor,
    operands: Operands[Tensor],
    needs: Sequence[bool],
    division: Division,
    launch: Launch,
    record: Record,
    donated: Sequence[int] = (),
    clears: bool = False,
) -> list[Tensor]:
    """Run a backward part by part: the wanted ones of dQ, dK and dV, then those of aux operands.

    The record gets the steps. The `donated` aux operands may be overwritten. clears: A launch may
    not write all of dQ, which is set to zero before.
    """
    o = unshared(operands) if division.shared else operands
    matrices, sums = (o.query, o.key, o.value), division.sums
    rooms = {x: record.add_buffer(for_gradient(y, empty)) for x, y in zip("qkv", matrices)}
    if clears:
        record.add_clear(rooms["q"].zero_())
    totals = [each.room(o, record, donated) for each in sums]
    for share, scores in division.scores(o, totals[0], record):
        own = {x: share.matrix(y, x) for x, y in rooms.items()}
        part = launch(share, share.of(o), share.matrix(grad_out, "q"), own, scores)
        for each, total in zip(sums, totals) if not division.direct else ():
            each.add(share, scores, total, part)
    requested = zip("qkv", (operands.query, operands.key, operands.value), needs, strict=False)
    grads = [like(rooms[letter], x) for letter, x, need in requested if need]
    return grads + [x.finished(total, o, part) for x, total in zip(sums, totals)]


def unshared(o: Operands[Tensor]) -> Operands[Tensor]:
    """Copy matrices with a batch of 1, so that each batch has its own."""
    batch = score_shape(o)[0]

    def own(x: Tensor) -> Tensor:
        return x if x.shape[0] == batch else x.expand(batch, -1, -1, -1).contiguous()

    return replace(o, query=own(o.query), key=own(o.key), value=own(o.value))


def like(grad: Tensor, operand: Tensor) -> Tensor:
    """The gradient of an operand, summed over the batch if all batches share the operand."""
    # The order of the sum is fixed.
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=True, dtype=torch.float32).to(operand.dtype)


def _on_axes(o: Operands[Tensor], number: int) -> Tensor:
    return aux_on_axes(torch.empty(o.aux[number].shape, device="meta"), o.program.aux[number])


def _is_the_scores(o: Operands[Tensor], number: int) -> bool:
    """Whether the kernel stores exactly the gradient of this operand: the same shape and layout."""
    if o.program.aux[number].is_table:
        return False
    shape, on_axes = score_shape(o), _on_axes(o, number)
    alike = o.aux[number].dtype == o.query.dtype and on_axes.shape == shape
    return alike and on_axes.is_contiguous() and shape[-1] % ALIGNED == 0


def _axis(o: Operands[Tensor], wanted: Sequence[int], read: Collection[str]) -> int | None:
    """The axis along which to cut the call: 0 for batches, 1 for heads, None if neither may be cut.

    If possible, no sum goes over this axis. A kernel counts the batches and heads of a part from 0.
    So an axis must stay whole if the program reads its index.
    """
    first = 0 if any("b" in o.program.aux[number].axes for number in wanted) else 1
    return next((axis for axis in (first, 1 - first) if AXES[axis] not in read), None)


def _shares(o: Operands[Tensor], axis: int, keys: int, ctas: int, room: int | None) -> list[Share]:
    """Shares with as many batches or heads as `room` bytes allow, if that keeps the CTAs busy."""
    (batch, heads, rows, cols), key_heads = score_shape(o), o.key.shape[1]
    units, group = (batch, key_heads)[axis], heads // max(key_heads, 1)
    tiles = batch * key_heads * -(-cols // keys) // max(units, 1)
    size = batch * heads * rows * cols * o.query.element_size() // max(units, 1)
    count = _at_a_time(units, tiles, size, ctas, room) if room else units
    starts = range(0, max(units, 1), max(count, 1))
    return [Share(axis, i, min(count, units - i), group, len(starts) == 1) for i in starts]


def room_beside_tables(skips: bool) -> int:
    """Bytes of stored scores for a part beside gradients of tables. skips: See `Division`."""
    # Key tiles under a mask differ in length. With two for each CTA a long one goes with a short
    # one. Half of the memory is never touched then.
    return TABLE_ROOM * (2 if skips else 1)


def _cut(o: Operands[Tensor], shares: list[Share], keys: int, ctas: int) -> list[Share]:
    """Cut the shares along the keys, if all keys of one batch or head need more than `ROOM`."""
    (batch, heads, rows, cols), key_heads, first = score_shape(o), o.key.shape[1], shares[0]
    units = max((batch, key_heads)[first.axis], 1)
    size = batch * heads * first.count // units * rows * cols * o.query.element_size()
    if size <= ROOM or cols <= keys:
        return shares
    columns, tiles = -(-cols // keys), batch * key_heads * first.count // units
    count = _at_a_time(columns, tiles, size // columns, ctas, ROOM)
    return [each for share in shares for each in share.cut(keys, min(count, columns - 1), cols)]


def _at_a_time(units: int, tiles: int, size: int, ctas: int, room: int) -> int:
    """How many units (batches, heads or key tiles) to launch at a time, if a unit has `tiles` key
    tiles and `size` bytes of scores.
    """

    def use(count: int) -> float:
        """The share of the CTAs' time that is used, from the first tile to the last."""
        return count * tiles / (max(1, -(-count * tiles // ctas)) * ctas)

    counts = [n for n in range(1, units + 1) if n == 1 or n * size <= room]
    best = max(map(use, counts), default=0.0)
    return max((n for n in counts if use(n) >= GOOD * best), default=1)


def total(
    scores: Tensor,
    own: Tensor,
    factor: float,
    arch: str,
    stream: int,
    record: Record | None = None,
    before: Tensor | None = None,
) -> bool:
    """own = factor · the sum of scores [B, H, M, N] over the dims in which `own` has size 1.

    before: What is added to it, in fp32.

    Returns False, and does nothing, if torch has to sum: rows or columns are summed too, or the
    layout does not fit. The rows of `own` may have gaps between them, all of the same size.

    record: Gets the launch, so that the call can be replayed.
    """
    outer, count, inner = _divided(scores.shape, own.shape)
    step, width = _step(own), own.shape[-1]
    lies = scores.is_contiguous() and step % VECTOR == 0 < step
    adds, before = before is not None, own if before is None else before
    addresses = (scores.data_ptr(), own.data_ptr(), before.data_ptr())
    lies = lies and not off_alignment(addresses) and before.stride() == own.stride()
    if not (count and inner and lies) or width % VECTOR or outer > MOST_OUTER:
        return False
    apart = step != width
    if apart and (outer > 1 or inner // VECTOR >= MOST_APART):
        return False
    dtypes = (dtype_name(scores.dtype), dtype_name(own.dtype))
    launcher = word_launcher("backward.summation", 9, *dtypes, factor, arch, apart, adds)
    rows = (width // VECTOR, step // VECTOR) if apart else (1, 1)
    numbers = (inner // VECTOR, count, outer, *rows)
    launcher(*addresses, *numbers, stream)
    if record is not None:
        record.add_sum(launcher, addresses, *numbers)
    return True


def _step(own: Tensor) -> int:
    """The stride from row to row, if it is the same for all rows; else 0."""
    if own.is_contiguous():
        return own.shape[-1]
    rows, step = 1, own.stride(-2)
    for size, stride in zip(own.shape[-2::-1], own.stride()[-2::-1], strict=True):
        if size > 1 and stride != rows * step:
            return 0
        rows *= size
    return step if own.stride(-1) == 1 else 0


def _divided(whole: torch.Size, own: torch.Size) -> tuple[int, int, int]:
    """The sizes (outer, summed, inner), or (0, 0, 0) if rows or columns are summed."""
    batch, heads, rows, cols = whole
    inner = rows * cols
    if own[2:] != whole[2:]:
        return 0, 0, 0
    if own[:2] == whole[:2]:
        return 1, 1, batch * heads * inner
    if own[1] == heads:
        return 1, batch, heads * inner
    return (batch, heads, inner) if own[0] == batch else (1, batch * heads, inner)
