"""The operands of a call in blocks, and the tensors that its score program reads.

Notation
    B, H, M, N   Batches, query heads, rows (queries) and columns (keys) of the scores.
    block        A slice of each of these.
    unit         One matrix of a batched product of a block.
    region       The part of a matrix that a block reads or adds to.

All tensors have four dims. Those of query, key and value are as in `ops`; aux tensors are
[B|1, H|1, M|1, N|1], and tables [B|1, H|1, M|1, N|1, T].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...operands import on_axis
from ...program.expr import AXES, Expr, compute_dtype
from ...program.score_mod import ScoreMod
from .block_pass import storable
from .fused import fuses, stores

WHOLE = slice(None)
Region = tuple[int, ...]


class Block(NamedTuple):
    """A block: a slice of each axis of the scores."""

    b: slice
    h: slice
    rows: slice
    cols: slice

    @property
    def shape(self) -> tuple[int, ...]:
        b, h, rows, cols = self  # a generator takes twice as long, and small blocks ask often
        return (
            b.stop - b.start,
            h.stop - h.start,
            rows.stop - rows.start,
            cols.stop - cols.start,
        )

    def shape_along(self, axes: Collection[str]) -> tuple[int, ...]:
        """The sizes of what varies along these axes alone."""
        if len(axes) == len(AXES):
            return self.shape
        return tuple(
            size if axis in axes else 1 for axis, size in zip(AXES, self.shape, strict=True)
        )

    def cut(self, operand: Tensor) -> Tensor:
        """The part of an aux operand that the block reads, of a table with all places; a view."""
        sizes = operand.shape[: len(self)]
        return operand[
            tuple(span if size != 1 else WHOLE for span, size in zip(self, sizes, strict=True))
        ]


def spans(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, max(step, 1)))


@dataclass(frozen=True)
class MatrixSpec:
    """A matrix operand, or the gradient of one: [B|1, H/group, M|N, width]."""

    name: str
    along: str  # the axis of the scores along which it varies: "rows" or "cols"
    width: int
    group: int = 1  # how many query heads read each of its heads
    shared: bool = False  # by all batches
    exact: bool = True  # its gradient may be summed in its own dtype
    # How many query heads read a head of the key (or value) that it is multiplied with. On the CPU
    # the rows of these heads are one matrix. None for chunks: there a unit is one (batch, head),
    # and `chunks` chooses them so that the matrices are views with one stride for each dim.
    folded: int | None = None

    def span(self, block: Block) -> slice:
        return block.rows if self.along == "rows" else block.cols

    def region(self, block: Block) -> Region:
        """Blocks with equal regions are summed before they are stored."""
        # Chunks add whole matrices to a buffer; heads of a group that follow each other share it.
        if self.folded is None:
            first = 0 if self.shared else block.b.start
            return first, block.h.start // self.group, self.span(block).start
        # Those of a band are, if they add to its rows. They follow each other.
        axes = block[:3] if self.along == "rows" else block
        return tuple(span.start for span in axes)

    def is_shared_in(self, block: Block) -> bool:
        if self.folded is not None:
            return False
        units = block.shape
        return (self.shared and units[0] > 1) or (self.group > 1 and units[1] > 1)

    def elements(self, block: Block) -> int:
        """How many elements a block uses, if no units share them."""
        span = self.span(block)
        return math.prod(block.shape[:2]) * (span.stop - span.start) * self.width

    def matrices(self, operand: Tensor, block: Block) -> Tensor:
        """The matrices [units, rows, width] of the operand that the block reads."""
        if self.folded is not None:
            heads = (block.h.stop - 1) // self.folded - block.h.start // self.folded + 1
            units = (block.b.stop - block.b.start) * heads
            return self._part(operand, block).reshape(units, -1, self.width)
        batches, heads, *_ = block.shape
        span = self.span(block)
        by_batch, by_head, by_row, by_column = operand.stride()
        per_batch = 0 if self.shared else by_batch
        per_head = by_head if self.group == 1 else 0
        start = operand.storage_offset() + per_batch * block.b.start
        start += by_head * (block.h.start // self.group) + by_row * span.start
        size = (batches * heads, span.stop - span.start, self.width)
        stride = (per_head if heads > 1 else per_batch, by_row, by_column)
        return operand.as_strided(size, stride, start)

    def _part(self, operand: Tensor, block: Block) -> Tensor:
        """What the block reads, with four dims; a view."""
        batches, first, span = operand.shape[0], block.h.start // self.group, self.span(block)
        heads = slice(first, (block.h.stop - 1) // self.group + 1)
        size = (block.b.stop - block.b.start, heads.stop - first, span.stop - span.start)
        if batches in (1, size[0]) and size[1:] == operand.shape[1:3]:
            return operand  # sooner than a view of all of it
        return operand[block.b if batches != 1 else WHOLE, heads, span]

    def target(self, operand: Tensor, block: Block) -> Tensor:
        """The view to which the block adds: one matrix if its units share it."""
        if self.folded is not None:
            return self._part(operand, block)
        matrices = self.matrices(operand, block)
        return matrices[:1] if self.is_shared_in(block) else matrices


@dataclass(frozen=True, eq=False)
class Specs:
    """What the shapes and dtypes of query, key and value decide; one object for equal ones."""

    sizes: tuple[int, int, int, int]  # [B, H, M, N]
    sides: Mapping[str, MatrixSpec]  # of the operands, which are those of gradients; of "out"

    @staticmethod
    @functools.lru_cache(maxsize=1024)  # jagged calls ask for each sequence
    def of(shapes: tuple[Sequence[int], ...], exact: tuple[bool, ...], on_cpu: bool) -> Specs:
        query, key, _ = shapes
        batch = next((shape[0] for shape in shapes if shape[0] != 1), 1)
        groups = [query[1] // max(shape[1], 1) for shape in shapes]
        sides: dict[str, MatrixSpec] = {}
        alongs = {"query": "rows", "key": "cols", "value": "cols"}
        for number, (name, along) in enumerate(alongs.items()):
            batches, *_, width = shapes[number]
            folded = groups[number or 1] if on_cpu else None
            sharing = groups[number], batches != batch
            sides[name] = MatrixSpec(name, along, width, *sharing, exact[number], folded)
        sides["out"] = replace(sides["value"], name="out", along="rows", group=1, shared=False)
        return Specs((batch, query[1], query[2], key[2]), sides)


@dataclass(eq=False)  # frozen, it would take three times as long to build
class BlockOperands:
    """The dense problem that a loop over blocks runs."""

    query: Tensor  # [B|1,H,M,D]
    key: Tensor  # [B|1,Hk,N,D]
    value: Tensor  # [B|1,Hv,N,Dv]
    aux: Sequence[Tensor]  # on four axes
    scalars: Sequence[int]
    program: ScoreMod
    only: Expr | None = None  # scores exist only where it holds
    wide: bool = False  # scores are stored in fp32, whatever the operands are
    lengths_vary: bool = False  # many sizes will come, so nothing is compiled for a single one
    options: str = ""  # of the kernel of `StoredPass`
    # From a `StoredPass`, matrices, operands and the device: its kernel, if Inductor compiles none.
    # It is a function of matrices, P, dS and operands, and fills P and dS.
    direct: Callable[..., Callable[..., object] | None] | None = None
    numbers: Tensor | None = None  # of the sequences of a jagged call, [batch]
    pool: dict[str, Tensor] | None = None  # buffers of the CPU kernel; None for chunks
    specs: Specs = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # no cached_property: before Python 3.12 it takes a lock, which a fork may find taken
        q, k, v = self.query, self.key, self.value
        exact = (q.itemsize >= 4, k.itemsize >= 4, v.itemsize >= 4)
        self.specs = Specs.of((q.shape, k.shape, v.shape), exact, self.pool is not None)

    @staticmethod
    def on_cpu(query: Tensor, key: Tensor, value: Tensor, **others: Any) -> BlockOperands:
        """The operands of the CPU kernel, in the compute dtype."""
        dtype = compute_dtype(query.dtype)
        query, key, value = [_multipliable(t, dtype) for t in (query, key, value)]
        return BlockOperands(query, key, value, **others)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.specs.sizes

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def compute(self) -> torch.dtype:
        return compute_dtype(self.query.dtype)

    @property
    def score_dtype(self) -> torch.dtype:
        return self.compute if self.wide else self.query.dtype

    @property
    def in_place(self) -> bool:
        """P may overwrite S, and dS may overwrite dP."""
        return self.score_dtype == self.query.dtype == self.value.dtype

    def fused(self, sums: bool) -> bool:
        """Whether one kernel computes S and the program. sums: Aux gradients are wanted."""
        return not sums and not self.lengths_vary and fuses(self.query, self.value)

    def stores(self, sums: bool) -> bool:
        """Whether one kernel computes P and dS in a backward. sums: As of `fused`."""
        tables = sums and any(spec.is_table for spec in self.program.aux)
        # Its kernel numbers scores from the chunk's first on, and random bits are of the call's.
        plain = not (tables or self.program.seeds or self.lengths_vary) and self.only is None
        return plain and stores(self.query, self.value)

    def index(self, name: str) -> Tensor:
        if name == "b" and self.numbers is not None:
            return on_axis(name, self.numbers)
        return on_axis(name, torch.arange(self.sizes[AXES.index(name)], device=self.device))

    def leaf(self, node: Expr) -> Tensor:
        """The tensor that a leaf of the program stands for, for the whole problem."""
        number = node.value
        if node.op == "aux":
            return storable(self.aux[number].to(self.device))
        if node.op == "scalar":
            literal = self.scalars[number]
            return torch.full((1, 1, 1, 1), literal, dtype=torch.int64, device=self.device)
        return self.index(node.op)


def _multipliable(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """The operand in `dtype`, with contiguous rows or columns, so that torch.bmm makes no copy."""
    converted = operand.to(dtype)
    return converted if 1 in converted.stride()[-2:] else converted.contiguous()
