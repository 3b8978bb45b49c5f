"""Record the steps of a call once for its sizes and strides, and repeat them on other tensors.

Chunks are many and small, so the CPU must launch their kernels fast. Two calls with the same sizes
and strides differ only in addresses. So the steps are recorded once, with tensors without memory in
place of the call's. Later calls only make views and launch kernels.

`Immediate` has the same methods, but runs each step at once. It is for sizes that will not come
again, and for so many chunks that a list of steps is too long.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._compat.operators import strided_view

Function = Callable[..., Any]
Size = Sequence[int]
_ROOM = 1 << 56  # elements of the storage that all tensors without memory share


@dataclass(frozen=True)
class View:
    """A view of a base: its offset from the base's first element, sizes and strides."""

    base: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, base: Tensor) -> Tensor:
        if not self.offset and (base.shape, base.stride()) == (self.size, self.stride):
            return base
        return strided_view(base, self.size, self.stride, self.offset)


@dataclass
class Step:
    """A call, function(*views). Its results are new bases.

    born: The views of these bases. last: The views that no later step reads.
    """

    function: Function
    views: tuple[int, ...]
    made: tuple[int, ...] = ()
    born: list[tuple[int, int]] = field(default_factory=list)  # with the number of the result
    last: list[int] = field(default_factory=list)


class Immediate:
    """Runs each step at once. bases: The call's tensors."""

    def __init__(self, bases: Sequence[Tensor]) -> None:
        self.bases, self.device = list(bases), bases[0].device

    def do(self, function: Function, *tensors: Tensor) -> None:
        function(*tensors)

    def make(
        self, function: Function, tensors: Sequence[Tensor], *sizes: tuple[torch.dtype, Size]
    ) -> list[Tensor]:
        made = zip(function(*tensors), sizes, strict=True)
        return [tensor.view(size) for tensor, (_, size) in made]

    def empty(self, size: Size, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)


class Recording:
    """Recorded steps. Their bases are the call's tensors in order, then tensors that steps make.

    While steps are recorded, tensors without memory replace the bases (`bases`, `empty`, `make`).
    Their address tells which base they belong to.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self.device = like[0].device
        self._rooms: dict[torch.dtype, Tensor] = {}
        self._starts: dict[torch.dtype, list[int]] = {}
        self._numbers: dict[torch.dtype, list[int]] = {}
        self._count = 0
        self._views: dict[View, int] = {}
        self._steps: list[Step] = []
        self._maker: dict[int, tuple[Step, int]] = {}
        self.bases = [self._stand_in(t.dtype, t.shape, t.stride()) for t in like]

    def _stand_in(self, dtype: torch.dtype, size: Size, stride: Size | None = None) -> Tensor:
        if dtype not in self._rooms:
            self._rooms[dtype] = torch.empty(_ROOM, dtype=dtype, device="meta")
            self._starts[dtype], self._numbers[dtype] = [0], [-1]
        room = self._rooms[dtype]
        start = self._starts[dtype][-1] + (1 << 40)
        self._starts[dtype].append(start)
        self._numbers[dtype].append(self._count)
        self._count += 1
        given = torch.empty(size, device="meta").stride() if stride is None else stride
        return room.as_strided(tuple(size), tuple(given), start)

    def _view(self, tensor: Tensor) -> int:
        starts = self._starts[tensor.dtype]
        place = bisect.bisect_right(starts, int(tensor.storage_offset())) - 1
        found = View(
            self._numbers[tensor.dtype][place],
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()) - starts[place],
        )
        return self._views.setdefault(found, len(self._views))

    def do(self, function: Function, *tensors: Tensor) -> None:
        """Record a step that writes to some of its tensors."""
        self._steps.append(Step(function, tuple(map(self._view, tensors))))

    def make(
        self, function: Function, tensors: Sequence[Tensor], *sizes: tuple[torch.dtype, Size]
    ) -> list[Tensor]:
        """Record a step that returns new contiguous tensors of these dtypes and sizes."""
        first = self._count
        found = [self._stand_in(dtype, size) for dtype, size in sizes]
        step = Step(function, tuple(map(self._view, tensors)), tuple(range(first, self._count)))
        self._maker.update({base: (step, number) for number, base in enumerate(step.made)})
        self._steps.append(step)
        return found

    def empty(self, size: Size, dtype: torch.dtype) -> Tensor:
        """Record an allocation. It is freed after its last use."""
        device, size = self.device, tuple(size)

        def allocate() -> tuple[Tensor]:
            return (torch.empty(size, dtype=dtype, device=device),)

        return self.make(allocate, [], (dtype, size))[0]

    def close(self) -> Recording:
        """End the recording."""
        self._first: list[tuple[int, View]] = []
        for view, slot in self._views.items():
            if view.base in self._maker:
                step, number = self._maker[view.base]
                step.born.append((slot, number))
            else:
                self._first.append((slot, view))
        seen: set[int] = set()
        for step in reversed(self._steps):
            step.last = [slot for slot in dict.fromkeys(step.views) if slot not in seen]
            seen.update(step.views)
        self._by_slot = list(self._views)
        self._rooms.clear()
        return self

    def run(self, bases: Sequence[Tensor]) -> None:
        """Repeat the steps on the call's tensors."""
        views = self._by_slot
        slots: list[Any] = [None] * len(views)
        for slot, view in self._first:
            slots[slot] = view.of(bases[view.base])
        for step in self._steps:
            made = step.function(*[slots[slot] for slot in step.views])
            for slot, number in step.born:
                slots[slot] = views[slot].of(made[number])
            for slot in step.last:
                slots[slot] = None
            made = None


Steps = Immediate | Recording
