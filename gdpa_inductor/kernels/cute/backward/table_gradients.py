"""Gradients of tables that a program looks up.

The backward stores a 16-bit number for each score of a part of the call, as for biases (`biases`,
`jagged_biases`).
These numbers are summed by place before the next part is computed. There are two ways, both without
atomics, and with one order of each sum (`place_sums`):

- A place that is the distance of query and key. The scores are summed along diagonals, whatever the
  size of the table.
- Any other place, such as an operand with an integer for each score. Each thread has a table of its
  own in shared memory. A table that does not fit is summed in pieces, each of which reads all
  scores. If all batches have the same places, the scores are summed over the batches before.

Sums of sums are kept in fp32, for each head. When all parts are done they are added up. This module
runs on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import Operands, dtype_name, places_of, score_shape
from ....program.expr import Expr, call, fold, postorder, torch_apply
from ..config import SHARED_MEMORY, VECTOR, KernelConfig
from ..launcher import word_launcher
from ..plan import LaunchPlan, totals
from ..replay import Record
from ..tables import MOST, MOST_THREADS, RESERVED, threads_for
from .roots import factor_of, masked, table_keys

if TYPE_CHECKING:
    from .biases import Share
    from .jagged_biases import StoredScores
    from .launch import BackwardCall

STRIP = 256  # as in `place_sums`
ROOM_OF_SUMS = 64 << 20  # bytes for sums over all batches
OCTETS = 32  # the most of a row group
CTAS = 4  # that sum diagonals on a multiprocessor at a time


@dataclass(frozen=True)
class Distance:
    """A place that is sign · (query - key) + offset."""

    sign: int
    offset: Expr | None

    def offset_of(self, scalars: Sequence[int]) -> int:
        if self.offset is None:
            return 0
        values = [torch.tensor(x) for x in scalars]

        def leaf(node: Expr) -> Tensor:
            return values[node.value] if node.op == "scalar" else torch.tensor(node.value)

        (value,) = fold([self.offset], leaf, torch_apply(torch.float64))
        return int(value)


def distance(place: Expr) -> Distance | None:
    """The place as a distance of positions, if it is one."""
    parts = _coefficients(place)
    if parts is None or parts[0] != -parts[1] or abs(parts[0]) != 1:
        return None
    return Distance(parts[0], parts[2])


Coefficients = tuple[int, int, Expr | None]


def _coefficients(place: Expr) -> Coefficients | None:
    """(a, b, rest) with place = a · query + b · key + rest, and no positions in the rest."""
    leaves = {x.op for x in postorder([place]) if not x.args}
    if leaves <= {"const", "scalar"}:
        return 0, 0, place
    if place.op in ("q_idx", "kv_idx"):
        return int(place.op == "q_idx"), int(place.op == "kv_idx"), None
    if place.op not in ("add", "sub", "neg"):
        return None
    first: Coefficients | None = (0, 0, None)
    if place.op != "neg":
        first = _coefficients(place.args[0])
    second = _coefficients(place.args[-1])
    if first is None or second is None:
        return None
    (a, b, x), (c, d, y) = first, second
    sign = 1 if place.op == "add" else -1
    if y is not None and sign < 0:
        y = call("neg", y)
    rest = y if x is None else x if y is None else call("add", x, y)
    return a + sign * c, b + sign * d, rest


class TableSum:
    """How to compute the gradient of table `number` from that of operand `stored`.

    The sums of the parts have the shape [pieces, slots, H, ...]. A piece has some of the places.
    Slots are the parts of a call that is cut along the batches.

    If all batches have the same places, their scores are summed before. If there is room for the
    sums of all heads, these wait for the last part, as each sum by place clears many tables first.

    slots: How many. batches, heads: Those of a part. ctas: Of a launch. last: The last part of a
    dense call.
    """

    def __init__(
        self,
        o: Operands[Tensor],
        number: int,
        stored: int,
        *,
        slots: int,
        batches: int,
        heads: int,
        ctas: int,
        last: Share | None = None,
    ) -> None:
        program, (batch, all_heads, rows, cols) = o.program, score_shape(o)
        self.number, self.spec, self.stored = number, program.aux[number], stored
        self.factor = factor_of(str(program), stored) / factor_of(str(program), number)
        self.size = int(places_of(o.aux[number], self.spec))
        self.place = program.places[number]
        self.distance = distance(self.place)
        alike = self.distance is None and "b" not in program.place_axes(number)
        self.sums_batches = alike and batch > 1 and not o.jagged
        self.last, self.at_once = last, False
        if self.sums_batches and last is not None:
            fits = all_heads * rows * cols * 4 <= ROOM_OF_SUMS
            self.at_once = fits or last.axis == 0
        if self.at_once:
            slots, heads = 1, all_heads
        self.fixed = not any(x.op == "scalar" for x in postorder([program.weight]))
        self.empty = 0 in (batch, all_heads, rows, cols)
        self.slots, self.batches = slots, batches
        self.piece = self.pieces = 1
        if self.distance is None:
            self._cut_places(ctas, heads, rows if self.sums_batches else batches * rows)
            shape: tuple[int, ...] = (self.groups, self.piece)
        else:
            self._cut_diagonals(ctas, heads, rows, cols)
            shape = (self.groups, self.strips, STRIP + VECTOR * self.octets)
        self.shape = (self.pieces, slots, all_heads, *shape)

    def _cut_places(self, ctas: int, units: int, rows: int) -> None:
        self.pieces = -(-self.size // MOST)
        self.piece = -(-self.size // self.pieces)
        self.threads = threads_for(self.piece)
        each = (self.piece + 1) * self.threads * 4 + RESERVED
        resident = max(1, min(SHARED_MEMORY // each, MOST_THREADS // self.threads))
        self.groups = max(1, min(ctas * resident // max(units, 1), rows))

    def _cut_diagonals(self, ctas: int, units: int, rows: int, cols: int) -> None:
        self.strips, octets = -(-cols // STRIP), -(-rows // VECTOR)
        self.octets, items = 1, units * self.strips * octets
        while self.octets < OCTETS and items > 2 * CTAS * ctas * self.octets:
            self.octets *= 2
        self.groups = -(-octets // self.octets)

    def room(self, o: Operands[Tensor], record: Record, _: Any = ()) -> Tensor:
        """Memory for the sums of the parts."""
        return record.add_buffer(empty(self.shape, torch.float32, o.query.device))

    def add(self, share: Share, scores: Tensor, room: Tensor, part: BackwardCall) -> None:
        """Sum the scores of a share."""
        slot = share.first // self.batches if self.slots > 1 else 0
        first = share.first * share.group if share.axis == 1 and not share.whole else 0
        if self.sums_batches and not self.empty:
            scores = self._over_batches(share, first, scores, part)
        if self.at_once:
            if share != self.last:
                return
            assert part.whole
            part, first = part.whole, 0
        self.add_scores(scores, room[:, slot, first : first + scores.shape[1]], part)

    def _over_batches(self, share: Share, first: int, scores: Tensor, part: BackwardCall) -> Tensor:
        """The sums [1, H, M, N] of scores over the batches so far, in fp32.

        If those of all heads are kept, the result has them all. first: The first head of the share.
        Rows begin as in `scores`.
        """
        rows = scores.as_strided((*scores.shape[:3], scores.stride(2)), scores.stride())
        _, heads, *sizes = rows.shape
        shape = (1, self.shape[2] if self.at_once else heads, *sizes)
        sums = part.scratch(f"over batches {self.number}", shape, torch.float32)
        own = sums[:, first : first + heads] if self.at_once else sums
        adds = share.axis == 0 and share.first > 0
        done = part.total(rows, own, 1.0, own if adds else None)
        assert done
        return sums[..., : scores.shape[3]]

    def add_scores(
        self,
        scores: Tensor,
        room: Tensor,
        part: BackwardCall,
        stored: StoredScores | None = None,
    ) -> None:
        """Sum the scores of a part into its share of a room. stored: Those of jagged sequences."""
        if self.empty:
            return
        part.record.fails |= not self.fixed
        batch, heads, rows, cols = scores.shape
        o, config = part.read, part.plan.once(_kernel, self.stored)
        sizes = (batch, heads, rows, cols, scores.stride(2) // VECTOR)
        skips = masked(config) and not (o.jagged or self.sums_batches)
        bounds = [part.table(key) for key in table_keys(config)] if skips else []
        strides = part.plan.aux_strides + tuple(step for x in bounds for step in x.strides)
        numbers = (*strides, *o.scalars[: part.plan.scalars], *sizes)
        operands = [*o.aux, *[x.room for x in bounds]]
        hulls: Sequence[Tensor] = ()
        jagged: Sequence[int] = ()
        if stored is not None:
            hulls = (stored.hulls, stored.order)
            offsets = [x.data_ptr() for x in o.lengths[:2] if x is not None]
            jagged = (*offsets, *totals(o.query, o.key))
        for piece in range(self.pieces):
            addresses = [x.data_ptr() for x in (scores, room[piece], *operands, *hulls)]
            kernel, more = self._kernel(config, skips, piece, cols, dtype_name(scores.dtype))
            own = (*numbers, *more, *(stored.hulls.shape[1:3] if stored else ()))
            _launch(kernel, addresses, own, part.stream, part.record, jagged)

    def _kernel(
        self, config: KernelConfig, skips: bool, piece: int, cols: int, dtype: str
    ) -> tuple[Any, tuple[int, ...]]:
        """(the arguments of its compilation, its last sizes)."""
        if self.distance is not None:
            return ("diagonals", config, dtype, self.octets, skips), (self.strips, self.groups)
        flags = (skips, cols % VECTOR == 0, self.pieces == 1)
        kernel = ("places", config, dtype, self.number, self.piece, self.threads, *flags)
        return kernel, (self.groups, piece * self.piece)

    def finished(self, room: Tensor, o: Operands[Tensor], part: BackwardCall) -> Tensor:
        """The gradient, when all parts are added. part: Any of them."""
        table, access = o.aux[self.number], self.spec.access
        grad = part.record.add_buffer(empty(table.shape, table.dtype, table.device))
        if self.empty:
            part.record.fails = True
            return grad.zero_()
        steps = [grad.stride(access.index(x)) if x in access else 0 for x in "ht"]
        octets, sign, offset, width = None, 1, 0, self.piece
        if self.distance is not None:
            octets, sign, width = self.octets, self.distance.sign, self.strips
            offset = self.distance.offset_of(o.scalars)
        form = (dtype_name(grad.dtype), part.plan.config.arch)
        kernel = ("gathering", *form, self.factor, octets, sign, "h" in access)
        for piece in range(self.pieces):
            first = piece * self.piece
            count = self.size if octets else min(self.piece, self.size - first)
            sizes = (first, count, self.slots, self.shape[2], self.groups, width, offset)
            addresses = [room[piece].data_ptr(), grad.data_ptr()]
            _launch(kernel, addresses, (*sizes, *steps), part.stream, part.record)
        return grad


def _launch(
    kernel: Any,
    addresses: Sequence[int],
    numbers: Sequence[int],
    stream: int,
    record: Record,
    jagged: Sequence[int] = (),
) -> None:
    """jagged: As in `Record.add_sum`."""
    words = (*addresses, *jagged, *numbers, stream)
    launcher = word_launcher("backward.place_sums", len(words), *kernel)
    launcher(*words)
    record.add_sum(launcher, addresses, *numbers, jagged=jagged)


def _kernel(plan: LaunchPlan, stored: int) -> KernelConfig:
    return plan.backward_kernels(True, stored)[-1]
