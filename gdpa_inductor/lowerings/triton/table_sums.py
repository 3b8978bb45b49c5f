"""The gradient of a table: terms that a kernel has stored for scores, summed by place.

    terms [W, R], places [R]  ->  sums [W, size]  ->  the gradient

W are the axes of the table along which its place does not vary, and R are all others. A table may
also vary along some of R. Then each of their elements has places of its own.

What was looked up outside of the table goes to one more place, which is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._compat import lowering, shapes
from ...operands import Size, by_access, on_axis, places_of
from ...program.expr import AXES, POSITIONS, Expr, fold, postorder, torch_apply
from ...reference import program_leaves
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
class ScoreShare:
    """A part of the batch and of the heads."""

    first: Any  # its first (batch, head), int32 [2], as IR
    batch: Size
    heads: Size

    @staticmethod
    def start(o: Inputs, along_batch: int, along_heads: int) -> ScoreShare:
        """The first of so many."""
        p = o.problem
        batch = p.batch // along_batch if along_batch > 1 else p.batch
        heads = p.heads // along_heads if along_heads > 1 else p.heads
        return ScoreShare(lowering.zeroed((2,), torch.int32, p.device), batch, heads)

    def following(self, o: Inputs, sums: Any, shape: Sequence[Size]) -> ScoreShare:
        """The next one. It waits for these sums, so that nothing of it is in memory before.

        All have the same formula, so that it is compiled once.
        """
        one = shapes.statically_known_true(self.heads == o.problem.heads)

        def formula(first: Tensor, sums: Tensor) -> Tensor:
            batch, head = first.unbind(0)
            nothing = (sums.reshape(-1).narrow(0, 0, 1) > torch.inf).sum()  # always 0
            after = head + (0 if one else self.heads)
            ends = torch.ones_like(head) if one else after >= o.problem.heads
            following = batch + ends * self.batch, torch.where(ends > 0, 0, after)
            return (torch.stack(following) + nothing).to(torch.int32)

        kinds = ((2,), torch.int32), (shape, torch.float32)
        fakes = [lowering.fake(*kind, o.problem.device) for kind in kinds]
        return replace(self, first=lowering.inline_formula(formula, [self.first, sums], fakes))


class TermSums:
    """The sums for a table.

    diagonal: The terms are [B|1,H|1,M+N-1,1], by q_idx - kv_idx + N - 1. share: The terms are those
    of a share.
    """

    def __init__(
        self, number: int, o: Inputs, diagonal: bool = False, share: ScoreShare | None = None
    ) -> None:
        self.number, self.o, self.diagonal, self.share = number, o, diagonal, share
        self.spec, self.device = o.program.aux[number], o.problem.device
        self.place = o.program.places[number]
        # How many elements the table has for one of its other axes.
        self.places = places_of(o.fakes.aux[number], self.spec)
        along = self.spec.axes - o.program.place_axes(number)
        self.outer = [axis for axis in AXES if axis in along]  # the axes W
        # The axes of R along which the table varies too.
        self.own = [axis for axis in AXES if axis in self.spec.axes - along]

    def sums(self, stored: Any, output: Output, placed: Placed) -> Any:
        """The sums [W, size] in fp32 as IR, from what a kernel has stored."""
        o, outer, like = self.o, self.outer, self.o.fakes.aux[self.number]

        def terms(part: Tensor, _: Tensor, *sides: Any) -> Tensor:
            order = [*outer, *(axis for axis in AXES if axis not in outer)]
            each = placed(part, padding_of(o, sides)).permute([AXES.index(x) for x in order])
            flat = each.flatten(len(outer))
            return flat.flatten(0, -2) if outer else flat.unsqueeze(0)

        lies = output.size, output.dtype, like, o.extents, output.strides
        matrix = lowering.finish(terms, stored, *lies)
        rows = math.prod(self._extent(axis) for axis in AXES if axis not in outer)
        kinds = (((self.shape[0], rows), torch.float32), ((rows,), torch.int32))
        whole, read = (lowering.fake(shape, dtype, like.device) for shape, dtype in kinds)
        return tables.lower_sums(matrix, self._index(), self.shape[1], whole, read)

    def gradient(self, sums: Any) -> Any:
        """The gradient as IR, from all sums."""
        o, outer, own = self.o, self.outer, self.own
        letters, spec = [*outer, *own, "t"], o.program.aux[self.number]
        padded = padded_program(o.program).aux[self.number]

        def finished(part: Tensor, like: Tensor, *sized: Any) -> Tensor:
            sides, (*counts, places) = sized[: -len(letters)], sized[-len(letters) :]
            each = part.reshape(*counts, places + 1).narrow(-1, 0, places)
            each = by_access(each, letters, padded)
            return padding_of(o, sides).unpad_aux(each, spec).to(like.dtype)

        sizes = [*(self._extent(axis) for axis in outer + own), self.places]
        nodes, fakes = o.extents
        extra = [*nodes, *map(shapes.size_expr, sizes)], [*fakes, *sizes]
        like = o.fakes.aux[self.number]
        return lowering.finish(finished, sums, self.shape, torch.float32, like, extra)

    @property
    def shape(self) -> tuple[Size, Size]:
        """[W, size] of the sums."""
        outer, own = ([self._extent(x) for x in axes] for axes in (self.outer, self.own))
        return math.prod(outer), (self.places + 1) * math.prod(own)

    def _index(self) -> Any:
        """The place of each term, int32 [R], as IR."""
        o, nodes, extents = self.o, *self.o.extents
        numbers = sorted({x.value for x in postorder([self.place]) if x.op == "aux"})
        sizes = [*(self._extent(axis) for axis in AXES), o.problem.cols, self.places]
        sizes += o.fakes.scalars

        def formula(*flat: Any) -> Tensor:
            sides, rest = flat[: len(nodes)], flat[len(nodes) :]
            sized, operands = rest[: len(sizes)], rest[len(sizes) :]
            counts, (cols, places, *scalars) = dict(zip(AXES, sized)), sized[len(AXES) :]
            own = {x: on_axis(x, torch.arange(counts[x], device=self.device)) for x in AXES}
            positions, padding = self._positions(own, cols, operands[-1:]), padding_of(o, sides)
            pairs = zip(numbers, operands, strict=False)
            aux = {i: padding.pad_aux(x, o.program.aux[i]) for i, x in pairs}
            real = torch.zeros((), device=self.device)  # places depend on no score
            of_all = program_leaves(real, aux, scalars, padded_program(o.program))

            def leaf(node: Expr) -> Tensor:
                if node.op in AXES:
                    return positions[node.op]
                value = of_all(node)
                return self._part(value, positions) if node.op == "aux" else value

            (place,) = fold([self.place], leaf, torch_apply(torch.float32))
            place = torch.where((place >= 0) & (place < places), place, places)
            step = places + 1
            for axis in reversed(self.own):
                place, step = place + own[axis] * step, step * counts[axis]
            shape = [1 if axis in self.outer else counts[axis] for axis in AXES]
            return place.expand(shape).reshape(-1).to(torch.int32)

        operands = [lowering.on_device(o.nodes.aux[i], self.device) for i in numbers]
        like = [((*o.fakes.aux[i].shape,), o.fakes.aux[i].dtype) for i in numbers]
        if self.share:
            operands.append(self.share.first)
            like.append(((2,), torch.int32))
        fakes = [lowering.fake(shape, dtype, self.device) for shape, dtype in like]
        read = [*nodes, *map(shapes.size_expr, sizes), *operands]
        return lowering.inline_formula(formula, read, [*extents, *sizes, *fakes])

    def _positions(
        self, own: dict[str, Tensor], cols: Any, first: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """The indices of the terms, each along its axis."""
        if self.share:
            begins = dict(zip(AXES, first[0].unbind(0), strict=False))
            return own | {axis: own[axis] + begin for axis, begin in begins.items()}
        if self.diagonal:
            apart = own["q_idx"] - (cols - 1)
            return own | {"q_idx": apart.clamp(min=0), "kv_idx": (-apart).clamp(min=0)}
        return own

    def _part(self, elements: Tensor, positions: dict[str, Tensor]) -> Tensor:
        """The elements that belong to the share."""
        for dim, axis in enumerate(AXES[:2] if self.share else ()):
            if elements.shape[dim] != 1:
                elements = elements.index_select(dim, positions[axis].flatten())
        return elements

    def _extent(self, axis: str) -> Size:
        """The size of an axis in the terms."""
        p = self.o.problem
        if axis not in self.o.program.axes(self.number):
            return 1
        if self.diagonal and axis in POSITIONS:
            return p.rows + p.cols - 1 if axis == "q_idx" else 1
        if self.share is not None and axis in "bh":
            return self.share.batch if axis == "b" else self.share.heads
        return p.sizes[axis]
