"""The form of a call: all that its plan depends on (`plan`), without tensors.

`key_of` takes the form of a call. `example_of` gives operands on the meta device that have this
form. A plan is built from these, so it cannot depend on what a form lacks.
"""

import functools
import operator
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...operands import Operands
from ...program.score_mod import ScoreMod
from .config import KernelConfig

ALIGNMENT = 16  # bytes; TMA wants every address and stride to be a multiple
JAGGED = 3  # dims of a jagged matrix, [L, H, D]; a dense one has 4
# The rows of query, key, value and the gradient of O: 0 stands for queries, 1 for keys.
SIDES = (0, 1, 1, 0)
SEVERAL = 2  # a form tells 0, 1 and several rows of a jagged side apart: see `layout_key`

Kind = type[KernelConfig]


class Form(NamedTuple):
    """All that a plan depends on."""

    layout: tuple[Any, ...]  # the result of `layout_key` for query, key and value
    # For each tensor in the layout: its dtype, its device, and whether it begins at a multiple of
    # 16 bytes. Three times None for offsets that are absent.
    tensors: tuple[Any, ...]
    program: str  # the text of the score program
    scalars: int  # how many integers there are
    # fast, skip, kind: as in `launch.forward`
    fast: bool
    skip: bool
    kind: Kind | None
    paged: bool  # the last of the offsets is a page table

    @property
    def devices(self) -> list[torch.device]:
        return [device for device in self.tensors[1::3] if device is not None]


def key_of(o: Operands[Tensor], fast: bool, skip: bool, kind: Kind | None) -> tuple[Any, ...]:
    """The fields of the `Form` of a call, as a tuple: that is faster to make and to look up."""
    tensors: list[Any] = []
    for x in (o.query, o.key, o.value, *o.indices):
        if x is None:
            tensors += (None, None, None)
        else:
            tensors += (x.dtype, x.device, x.data_ptr() % ALIGNMENT == 0)
    # The elements of a table are read one by one, wherever they are.
    tables = [number for number, spec in enumerate(o.program.aux) if spec.is_table]
    for number, x in enumerate(o.aux):
        aligned = number in tables or x.data_ptr() % ALIGNMENT == 0
        tensors += (x.dtype, x.device, aligned)
    layout = layout_key((o.query, o.key, o.value), o.aux, (*o.indices, *o.lengths[2:]))
    paged = o.page_table is not None
    return layout, tuple(tensors), str(o.program), len(o.scalars), fast, skip, kind, paged


def layout_key(
    matrices: Sequence[Tensor], aux: Sequence[Tensor], lengths: Sequence[Any]
) -> tuple[Any, ...]:
    """Both `max_seqlen`, then sizes and strides of matrices, offsets and aux operands.

    The total rows of a jagged side vary from batch to batch. A plan depends only on whether there
    are 0, 1 or several, and on which other sizes equal them. So in the key other rows stand for
    them, for which the answers are the same. The matrices are query, key, value and, in a backward,
    the gradient of O.
    """
    counts: list[Any] = [x.shape[0] if x.dim() == JAGGED else None for x in matrices[:2]]
    rows: list[Any] = counts if counts == [None, None] else _rows_in_key(counts, aux)
    layout: list[Any] = list(lengths[2:])
    for x, side in zip(matrices, SIDES, strict=False):
        shape: Sequence[int] = x.shape
        count = rows[side]
        if count is not None and len(shape) == JAGGED:
            # If these are other rows than those of query or key, `check` complains.
            shape = (count + (shape[0] != counts[side]), shape[1], shape[2])
        layout += (shape, x.stride())
    for other in (*lengths[:2], *aux):
        layout += (None, None) if other is None else (other.shape, other.stride())
    return tuple(layout)


def _rows_in_key(counts: Sequence[Any], aux: Sequence[Tensor]) -> list[Any]:
    """Each number of rows if an aux operand has this size, else the least of its kind."""
    sizes = {size for x in aux for size in x.shape}
    # Any number of rows would do that equals no size of an aux operand: an equal one would look
    # like an operand by token.
    several = SEVERAL
    while several in sizes:
        several += 1
    return [n if n is None or n < SEVERAL or n in sizes else several for n in counts]


def rows_key(matrices: Sequence[Tensor], sizes: Container[int]) -> tuple[int, ...]:
    """What `layout_key` tells apart where only the total rows of query and key vary.

    sizes: The sizes of the aux operands.
    """
    counts = [x.shape[0] for x in matrices[:2] if x.dim() == JAGGED]
    return tuple([n if n < SEVERAL or n in sizes else SEVERAL for n in counts])


def example_of(form: Form) -> Operands[Tensor]:
    longest_q, longest_k, *layouts = form.layout
    dtypes, aligned = form.tensors[::3], form.tensors[2::3]
    tensors = map(_on_meta, layouts[::2], layouts[1::2], dtypes, aligned)
    query, key, value, cu_q, cu_k, *aux = tensors
    program, scalars = ScoreMod.parse(form.program), [0] * form.scalars
    lengths = (cu_q, cu_k, longest_q, longest_k, None)
    if form.paged:
        lengths = (cu_q, None, longest_q, longest_k, cu_k)
    return Operands(query, key, value, aux, scalars, program, *lengths)


def _on_meta(shape: Any, strides: Any, dtype: torch.dtype | None, aligned: Any) -> Any:
    """A meta tensor. Its address is its offset: 0, or that of one element if it is not aligned."""
    if dtype is None:
        return None
    if aligned:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    extent = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    storage = torch.empty(max(extent, 0) + 2, dtype=dtype, device="meta")
    return storage.as_strided(shape, strides, 1)


def off_alignment(addresses: Iterable[int]) -> bool:
    return functools.reduce(operator.or_, addresses, 0) % ALIGNMENT != 0
