"""The gradient of a table: terms that a kernel has stored for scores, summed by place.

    terms [W, R], places [R]  ->  sums [W, size]  ->  the gradient

W are the axes of the table along which its place does not vary, and R are all others. A table may
also vary along some of R. Then each of their elements has places of its own.

What was looked up outside of the table goes to one more place, which is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._compat import lowering, shapes
from ...operands import Size, aux_on_axes, by_access, on_axis
from ...program.expr import AXES, POSITIONS, Expr, dtype_of, fold, postorder, torch_apply
from ...program.places import axes_of
from ...program.score_mod import Aux
from ...sequences import Padding, Sequences, padded_program
from .. import tables
from .inputs import Inputs
from .plan import Output


def padding_of(o: Inputs, extents: Sequence[Any]) -> Padding:
    """The jagged sides, in a formula that gets offsets, total rows and longest of each."""
    return Padding({s: Sequences(*extents[3 * i : 3 * i + 3]) for i, s in enumerate(o.offsets)})


# From what a kernel has stored to the terms [B|1,H|1,M|1,N|1].
Placed = Callable[[Tensor, Padding], Tensor]


@dataclass(frozen=True)
class PlaceSums:
    """The sums for a table. diagonal: The terms are [B|1,H|1,M+N-1,1], by q_idx - kv_idx + N-1."""

    number: int
    o: Inputs
    diagonal: bool = False

    def gradient(self, stored: Any, output: Output, placed: Placed) -> Any:
        """The gradient as IR, from what a kernel has stored."""
        o, like = self.o, self.o.fakes.aux[self.number]
        outer, own = self._outer, self._own
        extents = {axis: self._extent(axis) for axis in AXES}
        rows = math.prod(extents[axis] for axis in AXES if axis not in outer)
        count = math.prod(extents[axis] for axis in outer)
        size = (self._places + 1) * math.prod(extents[axis] for axis in own)

        def terms(part: Tensor, like: Tensor, *sides: Any) -> Tensor:
            order = [*outer, *(axis for axis in AXES if axis not in outer)]
            each = placed(part, padding_of(o, sides)).permute([AXES.index(x) for x in order])
            flat = each.flatten(len(outer))
            return flat.flatten(0, -2) if outer else flat.unsqueeze(0)

        def gradient(part: Tensor, like: Tensor, *sized: Any) -> Tensor:
            sides, (places, *counts) = (
                sized[: -1 - len(outer + own)],
                sized[-1 - len(outer + own) :],
            )
            each = part.reshape(*counts, places + 1).narrow(-1, 0, places)
            each = by_access(each, [*outer, *own, "t"], padded_program(o.program).aux[self.number])
            return padding_of(o, sides).unpad_aux(each, self._spec).to(like.dtype)

        given = lowering.finish(terms, stored, output.size, output.dtype, like, o.extents)
        kinds = (((count, rows), torch.float32), ((rows,), torch.int32))
        whole, read = (lowering.fake(shape, dtype, like.device) for shape, dtype in kinds)
        index = self._index()
        sums = tables.lower_sums(given, index, size, whole, read)
        sizes = [self._places, *(extents[axis] for axis in outer + own)]
        nodes, fakes = o.extents
        extra = [*nodes, *map(shapes.size_expr, sizes)], [*fakes, *sizes]
        return lowering.finish(gradient, sums, (count, size), torch.float32, like, extra)

    def _index(self) -> Any:
        """The place of each term, int32 [R], as IR."""
        o = self.o
        numbers = sorted({x.value for x in postorder([self._place]) if x.op == "aux"})
        sizes = [*(self._extent(axis) for axis in AXES), o.problem.cols, self._places]
        sizes += o.fakes.scalars
        nodes, extents = o.extents

        def formula(*flat: Any) -> Tensor:
            sides, rest = flat[: len(nodes)], flat[len(nodes) :]
            sized, operands = rest[: len(sizes)], rest[len(sizes) :]
            counts, (cols, places, *scalars) = dict(zip(AXES, sized)), sized[len(AXES) :]
            padding, specs = padding_of(o, sides), padded_program(o.program).aux
            elements = {
                i: aux_on_axes(padding.pad_aux(x, o.program.aux[i]), specs[i])
                for i, x in zip(numbers, operands, strict=True)
            }
            positions = {axis: on_axis(axis, self._arange(counts[axis])) for axis in AXES}
            if self.diagonal:
                apart = positions["q_idx"] - (cols - 1)
                positions |= {"q_idx": apart.clamp(min=0), "kv_idx": (-apart).clamp(min=0)}

            def leaf(node: Expr) -> Tensor:
                if node.op == "aux":
                    return elements[node.value].to(dtype_of(node.kind, torch.float32))
                if node.op in AXES:
                    return positions[node.op]
                value = scalars[node.value] if node.op == "scalar" else node.value
                dtype = dtype_of(node.kind, torch.float32)
                return torch.full((), value, dtype=dtype, device=self._device)

            (place,) = fold([self._place], leaf, torch_apply(torch.float32))
            place = torch.where((place >= 0) & (place < places), place, places)
            for axis in self._own:
                place = place + positions[axis] * self._step(axis, counts, places)
            shape = [1 if axis in self._outer else counts[axis] for axis in AXES]
            return place.expand(shape).reshape(-1).to(torch.int32)

        operands = [lowering.on_device(o.nodes.aux[i], self._device) for i in numbers]
        shaped = [o.fakes.aux[i] for i in numbers]
        fakes = [lowering.fake(x.shape, x.dtype, self._device) for x in shaped]
        read = [*nodes, *map(shapes.size_expr, sizes), *operands]
        return lowering.inline_formula(formula, read, [*extents, *sizes, *fakes])

    def _step(self, axis: str, counts: dict[str, Any], places: Any) -> Any:
        later = self._own[self._own.index(axis) + 1 :]
        return math.prod((counts[x] for x in later), start=places + 1)

    @property
    def _spec(self) -> Aux:
        return self.o.program.aux[self.number]

    @property
    def _place(self) -> Expr:
        return self.o.program.places[self.number]

    @property
    def _places(self) -> Size:
        """How many elements the table has for one of its other axes."""
        shape: Sequence[Size] = self.o.fakes.aux[self.number].shape
        return shape[self._spec.access.index("t")]

    @property
    def _outer(self) -> list[str]:
        """The axes W."""
        along = self._spec.axes - axes_of(self._place, self.o.program.aux)
        return [axis for axis in AXES if axis in along]

    @property
    def _own(self) -> list[str]:
        """The axes of R along which the table varies too."""
        return [axis for axis in AXES if axis in self._spec.axes and axis not in self._outer]

    def _extent(self, axis: str) -> Size:
        """The size of an axis in the terms."""
        p = self.o.problem
        if axis not in self.o.program.axes(self.number):
            return 1
        if self.diagonal and axis in POSITIONS:
            return p.rows + p.cols - 1 if axis == "q_idx" else 1
        return {"b": p.batch, "h": p.heads, "q_idx": p.rows, "kv_idx": p.cols}[axis]

    def _arange(self, size: Any) -> Tensor:
        return torch.arange(size, device=self._device)

    @property
    def _device(self) -> torch.device:
        return self.o.problem.device
