"""Record the steps of a call once for its sizes and strides, and repeat them on other tensors.

Chunks are many and small, so the CPU must launch their kernels fast. Two calls with the same sizes
and strides differ only in addresses. So the steps are recorded once, with tensors without memory in
place of the call's. Later calls only make views and launch kernels.

`Immediate` has the methods of `StepRecorder`, but runs each step at once. It is for sizes that will
not come again, for so many chunks that a list of steps is too long, and for CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._compat.operators import strided_view

Function = Callable[..., Any]
Size = Sequence[int]
# Bits of the elements of a base, and of the storage that all tensors without memory share.
_BASE, _STORAGE = 40, 56


class Immediate:
    """Runs each step at once."""

    def __init__(self, bases: Sequence[Tensor], pool: dict[str, Tensor] | None = None) -> None:
        self.bases = list(bases)
        self._device = bases[0].device
        self._pool = pool  # buffers that further calls reuse; each grows to its largest request

    def do(self, function: Function, *tensors: Tensor) -> None:
        function(*tensors)

    def make(
        self, function: Function, tensors: Sequence[Tensor], *sizes: tuple[torch.dtype, Size]
    ) -> list[Tensor]:
        return list(function(*tensors))

    def empty(self, size: Size, dtype: torch.dtype, name: str) -> Tensor:
        if self._pool is None:
            return torch.empty(size, dtype=dtype, device=self._device)
        count = math.prod(size)
        buffer = self._pool.get(name)
        if buffer is None or buffer.numel() < count:
            buffer = self._pool[name] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(size)


@dataclass(frozen=True)
class View:
    """A view of a base."""

    base: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from the base's first element

    def of(self, base: Tensor) -> Tensor:
        if not self.offset and (base.shape, base.stride()) == (self.size, self.stride):
            return base
        return strided_view(base, self.size, self.stride, self.offset)


@dataclass
class Step:
    """A call, function(*views). Its results are new bases."""

    function: Function
    views: tuple[int, ...]
    results: range  # the numbers of the new bases
    born: list[tuple[int, int]] = field(default_factory=list)  # their views: (view, its result)
    last: list[int] = field(default_factory=list)  # the views that no later step reads


# The CPU takes 3.5 to 4 µs for a repeated step, and 9 to 11 for one at once (torch 2.15, an EPYC,
# chunks of 32 scores, so that products take no time).
@dataclass(frozen=True)
class Recording:
    """Recorded steps. Their bases are the call's tensors in order, then tensors that steps make."""

    views: list[View]
    first: list[tuple[int, View]]  # the numbers of the views of the call's tensors, and these
    steps: list[Step]

    def run(self, bases: Sequence[Tensor]) -> None:
        """Repeat the steps on the call's tensors."""
        views = self.views
        slots: list[Any] = [None] * len(views)
        for slot, view in self.first:
            slots[slot] = view.of(bases[view.base])
        for step in self.steps:
            results = step.function(*[slots[slot] for slot in step.views])
            for slot, number in step.born:
                slots[slot] = views[slot].of(results[number])
            for slot in step.last:
                slots[slot] = None
            results = None


class StepRecorder:
    """Records steps. Tensors without memory stand for the bases (`bases`, `empty`, `make`).

    Base n begins at element n << _BASE of a storage, so the offset of a view tells its base.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._device = like[0].device
        self._storages: dict[torch.dtype, Tensor] = {}
        self._count = 0
        self._views: dict[View, int] = {}
        self._steps: list[Step] = []
        self.bases = [self._stand_in(t.dtype, t.shape, t.stride()) for t in like]

    def _stand_in(self, dtype: torch.dtype, size: Size, stride: Size | None = None) -> Tensor:
        if dtype not in self._storages:
            # On the meta device a storage of any size takes no memory.
            self._storages[dtype] = torch.empty(1 << _STORAGE, dtype=dtype, device="meta")
        if stride is None:
            stride = torch.empty(size, device="meta").stride()
        start = self._count << _BASE
        self._count += 1
        return self._storages[dtype].as_strided(tuple(size), tuple(stride), start)

    def _view(self, tensor: Tensor) -> int:
        base, offset = divmod(int(tensor.storage_offset()), 1 << _BASE)
        view = View(base, tuple(tensor.shape), tensor.stride(), offset)
        return self._views.setdefault(view, len(self._views))

    def do(self, function: Function, *tensors: Tensor) -> None:
        self.make(function, tensors)

    def make(
        self, function: Function, tensors: Sequence[Tensor], *sizes: tuple[torch.dtype, Size]
    ) -> list[Tensor]:
        """Record a step that returns new contiguous tensors of these dtypes and sizes."""
        first = self._count
        outputs = [self._stand_in(dtype, size) for dtype, size in sizes]
        views = tuple(map(self._view, tensors))
        self._steps.append(Step(function, views, range(first, self._count)))
        return outputs

    def empty(self, size: Size, dtype: torch.dtype, name: str) -> Tensor:
        """Record an allocation. It is freed after its last use."""
        device, size = self._device, tuple(size)

        def allocate() -> tuple[Tensor]:
            return (torch.empty(size, dtype=dtype, device=device),)

        return self.make(allocate, [], (dtype, size))[0]

    def recording(self) -> Recording:
        """What was recorded."""
        makers = {base: step for step in self._steps for base in step.results}
        first: list[tuple[int, View]] = []
        for view, slot in self._views.items():
            if view.base in makers:
                step = makers[view.base]
                step.born.append((slot, view.base - step.results.start))
            else:
                first.append((slot, view))
        later: set[int] = set()
        for step in reversed(self._steps):
            step.last = [slot for slot in dict.fromkeys(step.views) if slot not in later]
            later.update(step.views)
        return Recording(list(self._views), first, self._steps)


Steps = Immediate | StepRecorder
