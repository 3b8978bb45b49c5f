"""A static call again: the same launches at other addresses.

The generated code states every size and stride of a static call. So its first run settles the
kernels, the words of their forms and the memory that they take. Later runs allocate, clear and
launch. A run can be replayed if it did nothing else: if it neither copied nor ranked anything.

    tensors of a call    the matrices of the caller, the operands of the program, rooms

Rooms are the memory that the call asks for. An address is noted as a place: which of the tensors,
and how many bytes from where it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty_strided
from .launcher import Launcher, WordLauncher
from .memory import clear, is_dense
from .plan import off_alignment

Place = tuple[int, int]
# Takes the addresses of the tensors, the scalars and the stream.
Step = Callable[[Sequence[int], Sequence[int], int], None]


@dataclass(frozen=True)
class KernelLaunch:
    """Of a kernel of a configuration. scalars: how many the program reads."""

    launcher: Launcher
    form: bytes
    places: tuple[Place, ...]
    scalars: int
    ctas: int

    def __call__(self, addresses: Sequence[int], scalars: Sequence[int], stream: int) -> None:
        words = [addresses[number] + offset for number, offset in self.places]
        self.launcher((*words, *scalars[: self.scalars], self.ctas, stream), self.form)


@dataclass(frozen=True)
class WordLaunch:
    """Of a kernel that takes addresses, numbers and the stream."""

    launcher: WordLauncher
    places: tuple[Place, ...]
    numbers: tuple[int, ...]

    def __call__(self, addresses: Sequence[int], _: Sequence[int], stream: int) -> None:
        words = [addresses[number] + offset for number, offset in self.places]
        self.launcher(*words, *self.numbers, stream)


@dataclass(frozen=True)
class Clear:
    """Words of 32 bits."""

    place: Place
    words: int

    def __call__(self, addresses: Sequence[int], _: Sequence[int], stream: int) -> None:
        number, offset = self.place
        clear(addresses[number] + offset, self.words, stream)


@dataclass(frozen=True)
class Replay:
    """rooms: (size, strides, dtype). results: which of the tensors are returned; an operand's
    memory is returned as a tensor of its own. device: its index; it has to be the current one."""

    rooms: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    device: int

    def __call__(
        self, given: Sequence[Tensor], aux: Sequence[Tensor], scalars: Sequence[int]
    ) -> list[Tensor] | None:
        """given: the matrices of the caller; aux, scalars: of the program. None where an address is
        no multiple of 16 bytes: then a matrix may have to be copied."""
        tensors = [*given, *aux]
        addresses = [x.data_ptr() for x in tensors]
        if off_alignment(addresses):
            return None
        stream = current_stream(self.device)
        made = [empty_strided(*room) for room in self.rooms]
        addresses += [x.data_ptr() for x in made]
        for step in self.steps:
            step(addresses, scalars, stream)
        count = len(tensors)
        return [made[i - count] if i >= count else tensors[i].detach() for i in self.results]


@dataclass
class Record:
    """Of a first run: what it does, as it does it. replay: how to run it again, if it can be.

    given, aux: the tensors of the call, once they are known. fails: it did something else too."""

    replay: Replay | None = None
    given: Sequence[Tensor] = ()
    aux: Sequence[Tensor] = ()
    fails: bool = False
    _rooms: list[Tensor] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)

    def begin(self, given: Sequence[Tensor], aux: Sequence[Tensor], plain: bool) -> None:
        """plain: kernels read them as they lie."""
        self.given, self.aux, self.fails = given, aux, not plain

    def made(self, room: Tensor) -> Tensor:
        """Memory that the call asked for. It lives as long as the record does."""
        self._rooms.append(room)
        return room

    def launched(self, launcher: Launcher, words: Sequence[int], form: bytes, scalars: int) -> None:
        """words: as in `LaunchPlan.call_words`. The matrices of the caller come first, the operands
        of the program last."""
        addresses, ctas = words[: len(words) - scalars - 2], words[-2]
        first = len(addresses) - len(self.aux)
        places = (
            *self._of(self.given, addresses, 0),
            *map(self._own, addresses[len(self.given) : first]),
            *self._of(self.aux, addresses[first:], len(self.given)),
        )
        self._steps.append(KernelLaunch(launcher, form, places, scalars, ctas))

    def summed(self, launcher: WordLauncher, addresses: Sequence[int], *numbers: int) -> None:
        self._steps.append(WordLaunch(launcher, tuple(map(self._own, addresses)), numbers))

    def bounded(
        self, launcher: WordLauncher, operand: tuple[int, Tensor], room: Tensor, *numbers: int
    ) -> None:
        """operand: its number in the program, and what of it was read. room: of its table."""
        number, part = operand
        place = number + len(self.given), part.data_ptr() - self.aux[number].data_ptr()
        places = (place, self._own(room.data_ptr()))
        self._steps.append(WordLaunch(launcher, places, numbers))

    def cleared(self, room: Tensor) -> None:
        """It was, whatever by."""
        self.fails |= not is_dense(room) or room.nbytes % 4 != 0
        self._steps.append(Clear(self._own(room.data_ptr()), room.nbytes // 4))

    def finish(self, results: Sequence[Tensor]) -> None:
        """That was all. Each result is one of the tensors, whole."""
        found = [self._whole(x) for x in results]
        if self.fails or None in found:
            return
        rooms = tuple((tuple(x.shape), x.stride(), x.dtype) for x in self._rooms)
        numbers = tuple(x for x in found if x is not None)
        device = self.given[0].device.index
        self.replay = Replay(rooms, tuple(self._steps), numbers, device)

    def _of(self, tensors: Sequence[Tensor], addresses: Sequence[int], first: int) -> list[Place]:
        """Each address is that of the tensor of its number, or of a part of it."""
        pairs = enumerate(zip(tensors, addresses, strict=False), first)
        return [(number, address - x.data_ptr()) for number, (x, address) in pairs]

    def _own(self, address: int) -> Place:
        """A place in a room, or in an operand whose memory the call was given."""
        for number, x in enumerate((*self.aux, *self._rooms), len(self.given)):
            offset = address - x.data_ptr()
            if 0 <= offset < max(x.nbytes, 1) and is_dense(x):
                return number, offset
        self.fails = True
        return 0, 0

    def _whole(self, result: Tensor) -> int | None:
        alike = (result.data_ptr(), result.shape, result.stride(), result.dtype)
        for number, x in enumerate((*self.aux, *self._rooms), len(self.given)):
            if (x.data_ptr(), x.shape, x.stride(), x.dtype) == alike:
                return number
        return None


class Unrecorded(Record):
    """Of a call that nobody will replay."""

    def begin(self, given: Sequence[Tensor], aux: Sequence[Tensor], plain: bool) -> None:
        pass

    def made(self, room: Tensor) -> Tensor:
        return room

    def launched(self, launcher: Launcher, words: Sequence[int], form: bytes, scalars: int) -> None:
        pass

    def summed(self, launcher: WordLauncher, addresses: Sequence[int], *numbers: int) -> None:
        pass

    def bounded(
        self, launcher: WordLauncher, operand: tuple[int, Tensor], room: Tensor, *numbers: int
    ) -> None:
        pass

    def cleared(self, room: Tensor) -> None:
        pass

    def finish(self, results: Sequence[Tensor]) -> None:
        pass
