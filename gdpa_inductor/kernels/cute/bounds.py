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
from ...operands import Operands, dtype_name
from ...program.expr import AXES
from .config import ENDS, LETTERS, TableKey, TileSize, table_dtype
from .launcher import WordLauncher, word_launcher
from .plan import LaunchPlan
from .replay import Record

WORDS = 11  # arguments of a launch of `bounding.Bounding`


@dataclass(frozen=True)
class TileBounds:
    """A table as kernels take it. room: its memory. strides: in the order of `LETTERS`."""

    room: Tensor
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TableForm:
    """What the form of an operand decides about its table."""

    launcher: WordLauncher  # launches the kernel that makes the table
    # The arguments of this launch after the two addresses: sizes and strides.
    words: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]  # in the order of `LETTERS`


def table(
    plan: LaunchPlan, o: Operands[Tensor], key: TableKey, stream: int, record: Record
) -> TileBounds:
    """Make a table that a kernel of this call asks for. The device does it."""
    number, size = key
    form, operand = plan.once(_table_form, number, size), o.aux[number]
    room = record.add_buffer(empty(form.shape, form.dtype, operand.device))
    form.launcher(operand.data_ptr(), room.data_ptr(), *form.words, stream)
    record.add_table(form.launcher, (number, operand), room, *form.words)
    return TileBounds(room, form.strides)


def _table_form(plan: LaunchPlan, number: int, size: TileSize) -> TableForm:
    operand, spec = plan.example.aux[number], plan.example.program.aux[number]
    steps, sizes = (
        dict(zip(spec.access, x, strict=True)) for x in (operand.stride(), operand.shape)
    )
    strides = [steps.get(x, 0) for x in AXES]
    extents = [sizes[x] if steps.get(x) else 1 for x in AXES]
    heights = [1, 1, size.rows, size.cols]
    heights = [height if step else 1 for height, step in zip(heights, strides, strict=True)]
    shape = [-(-extent // height) for extent, height in zip(extents, heights, strict=True)]
    shape.append(len(ENDS))
    own = zip(torch.empty(shape, device="meta").stride(), shape, strict=True)
    known = dict(zip(AXES, [step if extent > 1 else 0 for step, extent in own], strict=False))
    source, kind = dtype_name(operand.dtype), table_dtype(spec.kind, dtype_name(operand.dtype))
    launcher = word_launcher("bounding", WORDS, source, kind, *heights[2:], plan.config.arch)
    by_letter = tuple(known.get(x, 0) for x in LETTERS)
    words, dtype = (*extents, *strides), getattr(torch, kind)
    return TableForm(launcher, words, tuple(shape), dtype, by_letter)
