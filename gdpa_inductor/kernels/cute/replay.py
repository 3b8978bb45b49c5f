"""A static call again: the same launch at other addresses.

The generated code states every size and stride of a static call. So its first run settles the
kernel, the words of its form and the memory that it takes. Later runs allocate, clear and launch.
Only a run that launched one kernel, and neither copied nor ranked anything, can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty_strided
from .launcher import Launcher
from .memory import clear
from .plan import LaunchPlan, off_alignment


@dataclass(frozen=True)
class Replay:
    """launcher, form: as in the first run. rooms: (size, strides, dtype) of the kernel's own
    matrices, in its order. cleared: numbers of the rooms that begin as zeros, and their words of 32
    bits. results: the numbers of the rooms that are returned. scalars: how many the program reads.
    device: its index; it has to be the current one.
    """

    launcher: Launcher
    form: bytes
    rooms: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    cleared: tuple[tuple[int, int], ...]
    results: tuple[int, ...]
    scalars: int
    ctas: int
    device: int

    def __call__(
        self, given: Sequence[Tensor], aux: Sequence[Tensor], scalars: Sequence[int]
    ) -> list[Tensor] | None:
        """given: the matrices of the caller, which come first; aux, scalars: of the program. None
        where an address is no multiple of 16 bytes: then a matrix may have to be copied."""
        words = [x.data_ptr() for x in given]
        last = [x.data_ptr() for x in aux]
        if off_alignment(words + last):
            return None
        stream = current_stream(self.device)
        made = [empty_strided(*room) for room in self.rooms]
        own = [x.data_ptr() for x in made]
        for number, count in self.cleared:
            clear(own[number], count, stream)
        last += scalars[: self.scalars]
        self.launcher((*words, *own, *last, self.ctas, stream), self.form)
        return [made[number] for number in self.results]


@dataclass
class Record:
    """Of a first run. replay: how to run it again, if it can be."""

    replay: Replay | None = None

    def take(
        self, plan: LaunchPlan, launcher: Launcher, form: bytes, ctas: int, own: Sequence[Tensor],
        results: Sequence[int], cleared: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """One launch is all that the call did. own: the kernel's own matrices. results, cleared:
        numbers of them."""
        self.replay = Replay(
            launcher,
            form,
            tuple((tuple(x.shape), x.stride(), x.dtype) for x in own),
            tuple((number, own[number].nbytes // 4) for number in cleared),
            tuple(results),
            plan.scalars,
            ctas,
            own[0].device.index,
        )
