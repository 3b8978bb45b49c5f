"""Plan one Triton kernel: which tiles it visits, what it reads, and the subgraphs that it inlines.

In: the terms to compute (`Output`) and the operands. Out: a `Plan`, which the template reads, and
the subgraphs in its order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._compat import shapes
from ...kernels.triton.device_tables import WORK_TILE
from ...kernels.triton.template import AuxRead, Plan, loop_axis
from ...operands import Size, places_of
from ...program.expr import AXES, POSITIONS, Expr, const, postorder
from ...program.integers import ANY, Range, ranges
from ...program.loop_bounds import closed
from ...program.places import elements
from ...program.tails import still
from ...program.tile_classes import TileClasses, boundable, classify_by_tables
from ..backends import hint
from . import emit
from .inputs import Inputs

# Up to so many sequences are sorted by counting (see `tile_order`). For 1152 sequences that takes
# 35 to 70 µs on an H200, far more than a search. And the more sequences there are, the less an
# order saves.
FEW = 256
# Bytes of an aux operand that all batches read, which the L2 cache holds. ALiBi in fp32, 128 MiB
# for 8 heads of 2048 rows: a forward on an H100 takes 0.30 ms if the batches of a tile are
# neighbours, else 0.45. A bias of 32 MiB stays in the cache anyway: 0.26 and 0.25.
CACHED = 32 << 20


@dataclass(frozen=True)
class Output:
    """One term that a kernel computes, and the buffer that it fills."""

    name: str
    term: Expr
    size: tuple[Size, ...]
    dtype: torch.dtype
    strides: tuple[Size, ...] | None = None  # None if contiguous
    room: Any = None  # the buffer, if the caller has it; the first output of a kernel has none


def plan_kernel(
    kernel: str, outputs: list[Output], o: Inputs, **fields: Any
) -> tuple[Plan, list[Any]]:
    """The plan of a kernel with these `fields`, and the subgraphs in its order."""
    classes = None if kernel == "one_tile" else _classes(outputs, o)
    ends: Mapping[str, Expr] | None = None  # None: the kernel classifies its tiles
    if classes and kernel != "tiles":
        axis = loop_axis(kernel)
        inside = [number for number in classes.bounds if axis in o.program.aux[number].axes]
        ends = closed(classes, axis, inside)
    names, terms = [output.name for output in outputs], [output.term for output in outputs]
    whole = classes.full_terms if classes else ()
    base = Plan(
        kernel=kernel,
        names=tuple(names),
        reads=_reads(terms, o),
        flat=_flat(names, terms),
        skips=classes is not None,
        bounds=None if ends is None else tuple(ends),
        tables=tuple(_read(i, o) for i in classes.bounds) if classes else (),
        whole_reads=_reads(whole, o),
        whole_flat=_flat(names, whole),
        keeps=classes is not None and classes.keep is not None,
        # The forward keeps its mask at the ends. It is no faster without, and its two loops spill.
        still=frozenset() if kernel == "forward" else still(names, [terms, whole or terms]),
        shared=o.shared,
        grouped=o.grouped,
        jagged=frozenset(o.offsets),
        alike=o.alike,
        paged=o.pages is not None,
        **fields,
    )
    direct = bool(base.listed) and _direct(base.listed, o)
    planned = replace(base, direct=direct, batch_first=_batch_first(base, o))
    device = o.problem.device
    lengths = [emit.size(o.longest(side), device) for side in planned.measured]
    places = [o.program.places[a.number] for a in planned.reads if a.place]
    subgraphs = [*_emitted(terms, o), *lengths]
    # The fast forms of functions are too inexact to choose an element of a table.
    subgraphs += [emit.subgraph(x, x, o.scalars, device, fast=False) for x in places]
    if classes:
        chosen = [classes.zero, classes.full] if ends is None else ends.values()
        keep = [] if classes.keep is None else [classes.keep]
        subgraphs += _emitted([*chosen, *classes.full_terms, *keep], o)
    return planned, subgraphs


def _classes(outputs: list[Output], o: Inputs) -> TileClasses | None:
    """Which tiles of a kernel are empty or whole, or None if it computes all tiles alike."""
    if not o.options.skip:
        return None
    terms, operands = [output.term for output in outputs], o.fakes.aux
    bounded = [  # tables of tile bounds need sizes that are known
        number
        for number in boundable(o.program.aux)
        if all(shapes.size_hint(size) for size in operands[number].shape)
    ]
    classes = classify_by_tables(terms, o.program.aux, bounded)
    if not classes.skips:
        return None
    if classes.full.is_const and not classes.full.value:  # no tile is known to be whole
        return replace(classes, full=const(True), full_terms=tuple(terms), keep=const(True))
    return classes


def skips(outputs: list[Output], o: Inputs) -> bool:
    """Whether a kernel with these outputs skips tiles."""
    return _classes(outputs, o) is not None


def _emitted(terms: Iterable[Expr], o: Inputs) -> list[Any]:
    weight, *read = elements([o.program.weight, *terms])
    return [emit.subgraph(term, weight, o.scalars, o.problem.device, o.fast) for term in read]


def _reads(terms: Sequence[Expr], o: Inputs) -> tuple[AuxRead, ...]:
    """The operands that terms and places of tables read. Tables are last, as places read others."""
    numbers = sorted({int(x.value or 0) for x in postorder(terms) if x.op == "aux"})
    reads = [_read(i, o) for i in numbers]
    return tuple(sorted(reads, key=lambda a: bool(a.place)))


def _read(number: int, o: Inputs) -> AuxRead:
    spec = o.program.aux[number]
    if number in o.program.seeds:
        return AuxRead(number, spec, AXES)
    if not spec.is_table:
        return AuxRead(number, spec)
    along = o.program.place_axes(number)
    return AuxRead(number, spec, tuple(x for x in AXES if x in along), _inside(number, o))


def _inside(number: int, o: Inputs) -> bool:
    """Whether the place of a table is inside of it, as far as sizes and dtypes tell."""

    def leaf(node: Expr) -> Range:
        if node.op == "aux":
            info = torch.iinfo(o.problem.aux_dtypes[node.value])
            return info.min, info.max
        value = o.scalars[node.value] if node.op == "scalar" else o.problem.sizes[node.op]
        if not isinstance(value, int):
            return ANY
        return (value, value) if node.op == "scalar" else (0, max(0, value - 1))

    place, table = o.program.places[number], o.fakes.aux[number]
    count = places_of(table, o.program.aux[number])
    known = ranges([place], leaf)[place]
    return isinstance(count, int) and known[0] >= 0 and known[1] < count


def _flat(names: Sequence[str], terms: Sequence[Expr]) -> frozenset[str]:
    """The names of terms that do not depend on the score."""
    named = zip(names, terms, strict=False)
    return frozenset(
        name for name, term in named if not any(x.op in ("s", "g") for x in postorder([term]))
    )


def _batch_first(planned: Plan, o: Inputs) -> bool:
    """Whether all batches read an operand of [H, M, N] that is too large for the L2 cache."""
    if planned.jagged or planned.split or planned.kernel not in ("forward", "rows", "keys"):
        return False
    numbers = [a.number for a in planned.reads if a.axes >= POSITIONS and "b" not in a.axes]
    operands = [o.fakes.aux[number] for number in numbers]
    return any(t.dtype.itemsize * math.prod(hint(n, 1) for n in t.shape) > CACHED for t in operands)


def few(o: Inputs, most: int) -> bool:
    """Whether there are at most `most` sequences. An unknown number counts as many."""
    count = shapes.size_hint(o.problem.batch)
    return count is not None and count <= most


def _direct(side: str, o: Inputs) -> bool:
    """Whether a table would have no fewer work tiles than if all sequences were the longest."""
    batch, total, longest = map(shapes.size_hint, (o.problem.batch, o.total(side), o.longest(side)))
    # Few sequences always have a table, because it sorts them.
    if few(o, FEW) or batch is None or total is None or longest is None:
        return False
    return batch * max(1, -(-longest // WORK_TILE)) <= total // WORK_TILE + batch
