"""Gradients of biases where a side is jagged, some sequences at a time.

The kernel stores the gradient of one aux operand: a 16-bit number for each score. A sequence gets
memory for as many scores as the longest one may have (`max_seqlen`), so the host reads no length.
Each launch takes as many sequences as there is memory for, the longest first. After each launch the
stored numbers are summed over the dims that a bias lacks. Each sum has a fixed order. This module
runs on the host. Stored are:

    scores   [slots, H, M, N], 16 bits
    hulls    [slots, Hk, key tiles, 2] or [slots, H, query tiles, 2], int32, half open

A slot is the memory of one sequence; `order` says of which. The hull of a key tile is the range of
query tiles that it has met, or the other way round. Only tiles within hulls were written, and only
these are read. Within them, scores past the end of a sequence are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...._compat.device import empty
from ....operands import Operands, aux_from_axes, dtype_name, score_shape
from ....sequences import Padding, padded_program
from ..config import VECTOR, StoredTiling, whole_vectors
from ..launcher import word_launcher
from ..replay import Record
from .biases import ROOM, room_beside_tables
from .roots import factor_of
from .table_gradients import TableSum

if TYPE_CHECKING:
    from .launch import BackwardCall

SUMMED = (torch.bfloat16, torch.float16, torch.float32)  # dtypes in which sums may be stored
# A sum over all rows is cut into chunks, so that the device has enough threads. torch adds the
# sums of the chunks. First for an operand with a batch dim, then for one without.
CHUNKS, SHARED_CHUNKS = 8, 64
MOST = 65535  # heads or slots: the most CTAs along the second or third dim of a grid


@dataclass(frozen=True)
class StoredScores:
    """Where one launch stores gradients of scores.

    If no side is jagged there are scores only. The launch computes all sequences, and scores that
    it may not store are set to zero before.
    """

    scores: Tensor  # [slots, H, M, N]; rows begin at multiples of 16 bytes
    hulls: Any = None  # see above
    order: Any = None  # the number of the sequence in each slot, int64
    count: int | None = None  # how many sequences the launch computes
    tiling: Any = None  # a `StoredTiling`
    sparse: bool = False  # whoever sums them knows which are not stored, so that none is cleared

    @property
    def matrices(self) -> list[Tensor]:
        return [self.scores] if self.hulls is None else [self.scores, self.hulls]

    @property
    def sizes(self) -> tuple[int, ...]:
        _, heads, rows, _ = self.scores.shape
        assert self.count is not None
        return (self.count, heads, *self.hulls.shape[1:3], rows, self.scores.stride(2) // VECTOR)


class JaggedSum:
    """How to compute the gradient of aux operand `number` from that of operand `stored`.

    The shape of the sum depends on the dims of the operand:

    - [B, H, M], the sums of rows, if it does not vary along the keys.
    - [B or 1, H or 1, C, N] otherwise: sums over C chunks of rows. If it varies along the queries,
      each row is a chunk.
    """

    def __init__(self, o: Operands[Tensor], number: int, stored: int, launches: int) -> None:
        program, batch_heads = str(o.program), score_shape(o)
        self.number, self.spec = number, o.program.aux[number]
        self.padded = padded_program(o.program).aux[number]
        self.axes, self.cols = self.spec.axes, batch_heads[3]
        self.factor = factor_of(program, stored) / factor_of(program, number)
        self.of_rows = "kv_idx" not in self.axes
        self.adds = "b" not in self.axes and launches > 1
        self.dtype, self.shape = torch.float32, self._shape(*batch_heads)
        whole = "q_idx" in self.axes and not self.adds and not self.of_rows
        if whole and o.aux[number].dtype in SUMMED:
            self.dtype = o.aux[number].dtype

    def _shape(self, batch: int, heads: int, rows: int, cols: int) -> tuple[int, ...]:
        if self.of_rows:
            return batch, heads, rows
        own = [size if axis in self.axes else 1 for axis, size in (("b", batch), ("h", heads))]
        height = 1
        if "q_idx" not in self.axes:
            height = -(-rows // (CHUNKS if "b" in self.axes else SHARED_CHUNKS))
        return (*own, -(-rows // height), whole_vectors(cols))

    def add(self, stored: StoredScores, total: Tensor, later: bool, arch: str, stream: int) -> None:
        if self.of_rows:
            add_rows(stored, total, self.factor, arch=arch, stream=stream)
        else:
            adds = self.adds and later
            add_tiles(stored, total, self.axes, self.factor, adds, arch=arch, stream=stream)

    def finished(self, total: Tensor, o: Operands[Tensor]) -> Tensor:
        whole = total.unsqueeze(3) if self.of_rows else total[..., : self.cols]
        extents = zip(("b", "h", "q_idx"), whole.shape, strict=False)
        left = [d for d, (axis, size) in enumerate(extents) if axis not in self.axes and size > 1]
        whole = whole.sum(left, keepdim=True) if left else whole
        grad = aux_from_axes(whole, self.padded)
        if {"q", "k"} & set(self.spec.access):
            grad = Padding.of(o).unpad_aux(grad, self.spec)
        return grad.to(o.aux[self.number].dtype).contiguous()


class JaggedDivision:
    """The launches of a call, and the sums.

    wanted: The numbers of the aux operands that need a gradient. tiling: The tiles that the kernel
    stores. skips: As in `Division`.
    """

    def __init__(
        self,
        o: Operands[Tensor],
        wanted: Sequence[int],
        tiling: StoredTiling,
        ctas: int,
        skips: bool = False,
    ) -> None:
        self.tiling, self.stored = tiling, wanted[0]
        batch, heads, rows, cols = score_shape(o)
        width, self.most, self.cols = whole_vectors(cols), batch, cols
        size = heads * rows * width * o.query.element_size()
        tables = any(o.program.aux[number].is_table for number in wanted)
        room = room_beside_tables(skips) if tables else ROOM
        launches = -(-batch // max(1, min(room // max(size, 1), MOST)))
        self.slots = -(-batch // max(launches, 1))
        self.scores = (self.slots, heads, rows, width)
        self.hulls = (self.slots, *tiling.units(o.key.shape[1], heads, rows, cols), 2)
        own = {"slots": launches, "batches": self.slots, "heads": heads, "ctas": ctas}
        self.sums = [
            TableSum(o, number, wanted[0], **own)
            if o.program.aux[number].is_table
            else JaggedSum(o, number, wanted[0], launches)
            for number in wanted
        ]

    def launches(
        self, order: Tensor, rooms: Sequence[Tensor], part: BackwardCall
    ) -> Iterator[StoredScores]:
        """The memory for each launch. Between launches its content is summed into `rooms`."""
        dtype, arch, stream = part.read.query.dtype, part.plan.config.arch, part.stream
        scores = part.record.add_buffer(empty(self.scores, dtype, order.device))
        hulls = part.record.add_buffer(empty(self.hulls, torch.int32, order.device))
        for first in range(0, self.most, self.slots):
            count = min(self.slots, self.most - first)
            stored = StoredScores(scores, hulls, order[first:], count, self.tiling)
            yield stored
            for each, room in zip(self.sums, rooms, strict=True):
                if isinstance(each, TableSum):
                    own = scores[:count, ..., : self.cols]
                    each.add_scores(own, room[:, first // self.slots], part, stored)
                else:
                    part.record.fails = True
                    each.add(stored, room, first > 0, arch, stream)

    def rooms(self, o: Operands[Tensor], record: Record) -> list[Tensor]:
        return [
            each.room(o, record)
            if isinstance(each, TableSum)
            else empty(each.shape, each.dtype, o.query.device)
            for each in self.sums
        ]

    def finished(
        self, rooms: Sequence[Tensor], o: Operands[Tensor], part: BackwardCall
    ) -> list[Tensor]:
        return [
            each.finished(room, o, part) if isinstance(each, TableSum) else each.finished(room, o)
            for each, room in zip(self.sums, rooms, strict=True)
        ]


def add_tiles(
    stored: StoredScores,
    total: Tensor,
    axes: frozenset[str],
    factor: float,
    adds: bool,
    arch: str,
    stream: int,
) -> None:
    """total [B or 1, H or 1, C, N'] = factor · the sum of each of C chunks of rows.

    N' is N rounded up to a multiple of 8. The axes have "b" if `total` has a batch dim, and "h" if
    it has a head dim. adds: Add to what `total` holds. It is fp32 then.
    """
    arguments = (factor, "b" in axes, "h" in axes, stored.tiling)
    chunks, rows = total.shape[2], stored.scores.shape[2]
    numbers = (chunks, -(-rows // chunks), int(adds), stream)
    _launch("tiles", arguments, stored, total, arch, *numbers)


def add_rows(stored: StoredScores, total: Tensor, factor: float, arch: str, stream: int) -> None:
    """total [B, H, M] = factor · the sum of each row, in fp32, for the stored sequences."""
    _launch("rows", (factor, stored.tiling), stored, total, arch, stream)


def _launch(
    kind: str, arguments: Any, stored: StoredScores, total: Tensor, arch: str, *numbers: int
) -> None:
    words = [x.data_ptr() for x in (stored.scores, total, stored.hulls, stored.order)]
    words += (*stored.sizes, *numbers)
    form = (kind, arguments, dtype_name(stored.scores.dtype), dtype_name(total.dtype), arch)
    word_launcher("backward.jagged_sums", len(words), *form)(*words)
