"""Tables of tile bounds: the smallest and the largest element of an aux operand on each tile.

An attention kernel reads them to learn which tiles a mask tensor empties, and which it leaves
whole.

    table    [batch, heads, query tiles, key tiles, 2]

A dim is 1 where the operand does not vary along it. The device makes the table before the attention
kernel runs (`bounding.py`). The host reads nothing of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._compat.device import empty
from ...operands import Operands
from ...program.expr import AXES
from ...program.score_mod import Aux
from .config import ENDS, LETTERS, TableKey, TileSize, table_dtype
from .launcher import WordLauncher, word_launcher
from .plan import LaunchPlan, name
from .replay import Record

WORDS = 11  # arguments of a launch of `bounding.Bounding`


@dataclass(frozen=True)
class Table:
    """A table as kernels take it. room: its memory. strides: in the order of `LETTERS`."""

    room: Tensor
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TableForm:
    """What the form of an operand decides about its table."""

    launcher: WordLauncher  # launches the kernel that makes the table
    # The arguments of this launch after the two addresses: sizes and strides.
    words: tuple[int, ...]
    # shape, dtype: those of the table
    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(operand: Tensor, spec: Aux, size: TileSize, arch: str) -> "TableForm":
        steps, sizes = (
            dict(zip(spec.access, x, strict=True)) for x in (operand.stride(), operand.shape)
        )
        strides = [steps.get(x, 0) for x in AXES]
        extents = [sizes[x] if steps.get(x) else 1 for x in AXES]
        heights = [1, 1, size.rows, size.cols]
        heights = [height if step else 1 for height, step in zip(heights, strides, strict=True)]
        shape = [-(-extent // height) for extent, height in zip(extents, heights, strict=True)]
        kind = table_dtype(spec.kind, name(operand.dtype))
        source = name(operand.dtype)
        launcher = word_launcher("bounding", WORDS, source, kind, *heights[2:], arch)
        words = (*extents, *strides)
        return TableForm(launcher, words, (*shape, len(ENDS)), getattr(torch, kind))

    def build(self, operand: Tensor, number: int, stream: int, record: Record) -> Table:
        room = record.add_buffer(empty(self.shape, self.dtype, operand.device))
        self.launcher(operand.data_ptr(), room.data_ptr(), *self.words, stream)
        record.add_table(self.launcher, (number, operand), room, *self.words)
        steps = [
            step if extent > 1 else 0
            for step, extent in zip(room.stride(), self.shape, strict=True)
        ]
        known = dict(zip(AXES, steps, strict=False))
        return Table(room, tuple(known.get(x, 0) for x in LETTERS))


def table(
    plan: LaunchPlan, o: Operands[Tensor], key: TableKey, stream: int, record: Record
) -> Table:
    number, size = key
    form = plan.once(_table_form, number, size)
    return form.build(o.aux[number], number, stream, record)


def _table_form(plan: LaunchPlan, number: int, size: TileSize) -> TableForm:
    o = plan.example
    return TableForm.of(o.aux[number], o.program.aux[number], size, plan.config.arch)
