"""A call again: the same launches at other addresses.

The first run of a form settles the kernels, the words of their forms and the memory that they take.
Later runs allocate, clear and launch. A run can be replayed if it did nothing else: if it copied
nothing, and torch summed or sorted nothing.

    tensors of a call    the matrices of the caller, the operands of the program, offsets, rooms
    values of a call     the addresses of the tensors; the rows of queries and of keys; 0

Rooms are the memory that the call asks for. A word is noted as a place: which of the values, and
how far from it. So an address lies some bytes behind the beginning of a tensor. How many rows a
jagged side has varies from call to call, and so does the memory of what has as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty_strided
from ...operands import Operands
from .launcher import TOTALS, Launcher, WordLauncher
from .memory import clear, is_dense
from .plan import JAGGED, off_alignment, totals

Place = tuple[int, int]
Room = tuple[int | None, tuple[int, ...], tuple[int, ...], torch.dtype]
ROWS, NOTHING = (-3, -2), -1  # values behind the addresses
# Takes the values, the scalars and the stream.
Step = Callable[[Sequence[int], Sequence[int], int], None]


@dataclass(frozen=True)
class KernelLaunch:
    """Of a kernel of a configuration. scalars: how many the program reads."""

    launcher: Launcher
    form: bytes
    places: tuple[Place, ...]
    scalars: int
    ctas: int

    def __call__(self, values: Sequence[int], scalars: Sequence[int], stream: int) -> None:
        words = [values[number] + offset for number, offset in self.places]
        self.launcher((*words, *scalars[: self.scalars], self.ctas, stream), self.form)


@dataclass(frozen=True)
class WordLaunch:
    """Of a kernel that takes addresses, numbers and the stream."""

    launcher: WordLauncher
    places: tuple[Place, ...]
    numbers: tuple[int, ...]

    def __call__(self, values: Sequence[int], _: Sequence[int], stream: int) -> None:
        words = [values[number] + offset for number, offset in self.places]
        self.launcher(*words, *self.numbers, stream)


@dataclass(frozen=True)
class Clear:
    """Words of 32 bits, so many for each row of a side, or in all."""

    place: Place
    words: int
    side: int | None

    def __call__(self, values: Sequence[int], _: Sequence[int], stream: int) -> None:
        number, offset = self.place
        rows = 1 if self.side is None else values[ROWS[self.side]]
        clear(values[number] + offset, self.words * rows, stream)


@dataclass(frozen=True)
class Replay:
    """rooms: (side, size, strides, dtype); one of a side has its rows in front of the size.
    results: which of the tensors are returned; an operand's memory is returned as a tensor of its
    own. device: its index; it has to be the current one."""

    rooms: tuple[Room, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    device: int

    def __call__(
        self, given: Sequence[Tensor], aux: Sequence[Tensor], scalars: Sequence[int],
        offsets: Sequence[Tensor] = (),
    ) -> list[Tensor] | None:  # fmt: skip
        """given: the matrices of the caller; aux, scalars: of the program. None where an address is
        no multiple of 16 bytes: then a matrix may have to be copied."""
        tensors = [*given, *aux, *offsets]
        addresses = [x.data_ptr() for x in tensors]
        if off_alignment(addresses):
            return None
        stream = current_stream(self.device)
        rows = totals(*given[:2])
        made = [
            empty_strided(size if side is None else (rows[side], *size), strides, dtype)
            for side, size, strides, dtype in self.rooms
        ]
        values = [*addresses, *[x.data_ptr() for x in made], *rows, 0]
        for step in self.steps:
            step(values, scalars, stream)
        count = len(tensors)
        return [made[i - count] if i >= count else tensors[i].detach() for i in self.results]


@dataclass
class Record:
    """Of a first run: what it does, as it does it. replay: how to run it again, if it can be.

    given, aux, offsets: the tensors of the call, once they are known. fails: it did something else
    too."""

    replay: Replay | None = None
    given: Sequence[Tensor] = ()
    aux: Sequence[Tensor] = ()
    offsets: Sequence[Tensor] = ()
    fails: bool = False
    _rooms: list[tuple[int | None, Tensor]] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)

    def begin(self, given: Sequence[Tensor], o: Operands[Tensor], plain: bool) -> None:
        """given: the matrices of the caller. plain: kernels read everything as it lies."""
        self.given, self.aux, self.fails = given, o.aux, not plain
        self.offsets = [x for x in o.lengths[:2] if x is not None]

    def made(self, room: Tensor, side: int | None = None) -> Tensor:
        """Memory that the call asked for. It lives as long as the record does. side: 0 or 1 if its
        first dim is the rows of queries or of keys where that side is jagged."""
        jagged = side is not None and self.given[side].dim() == JAGGED
        self._rooms.append((side if jagged else None, room))
        return room

    def launched(
        self, launcher: Launcher, words: Sequence[int], form: bytes, matrices: int, scalars: int
    ) -> None:
        """words: as in `LaunchPlan.call_words`, of so many matrices. Those of the caller come
        first, the operands of the program last."""
        given, behind = len(self.given), matrices + TOTALS
        last = len(words) - scalars - 2
        first = last - len(self.aux)
        places = (
            *self._of(self.given, words, 0),
            *map(self._own, words[given:matrices]),
            *map(self._rows, (0, 1), words[matrices:behind]),
            *self._of(self.offsets, words[behind:], given + len(self.aux)),
            *map(self._own, words[behind + len(self.offsets) : first]),
            *self._of(self.aux, words[first:last], given),
        )
        self._steps.append(KernelLaunch(launcher, form, places, scalars, words[-2]))

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

    def ranked(self, launcher: WordLauncher, room: Tensor, *numbers: int) -> None:
        """The order is made from the last of the offsets. room: where it lies."""
        places = ((self._taken - 1, 0), self._own(room.data_ptr()))
        self._steps.append(WordLaunch(launcher, places, numbers))

    def cleared(self, room: Tensor) -> None:
        """It was, whatever by."""
        place, words, side = self._own(room.data_ptr()), room.nbytes // 4, None
        number = place[0] - self._taken
        if number >= 0:
            side, whole = self._rooms[number]
            self.fails |= side is not None and room.shape != whole.shape
        rows = 1 if side is None else max(room.shape[0], 1)
        self.fails |= not is_dense(room) or room.nbytes % (4 * rows) != 0
        self._steps.append(Clear(place, words // rows, side))

    def finish(self, results: Sequence[Tensor]) -> None:
        """That was all. Each result is one of the tensors, whole."""
        found = [self._whole(x) for x in results]
        if self.fails or None in found:
            return
        rooms = tuple(
            (side, tuple(x.shape[side is not None :]), x.stride(), x.dtype)
            for side, x in self._rooms
        )
        numbers = tuple(x for x in found if x is not None)
        device = self.given[0].device.index
        self.replay = Replay(rooms, tuple(self._steps), numbers, device)

    @property
    def _taken(self) -> int:
        """Tensors in front of the rooms."""
        return len(self.given) + len(self.aux) + len(self.offsets)

    def _of(self, tensors: Sequence[Tensor], addresses: Sequence[int], first: int) -> list[Place]:
        """Each address is that of the tensor of its number, or of a part of it."""
        pairs = enumerate(zip(tensors, addresses, strict=False), first)
        return [(number, address - x.data_ptr()) for number, (x, address) in pairs]

    def _rows(self, side: int, count: int) -> Place:
        return (ROWS[side], 0) if self.given[side].dim() == JAGGED else (NOTHING, count)

    def _own(self, address: int) -> Place:
        """A place in a room, or in an operand whose memory the call was given."""
        for number, x in self._writable():
            offset = address - x.data_ptr()
            if 0 <= offset < max(x.nbytes, 1) and is_dense(x):
                return number, offset
        self.fails = True
        return 0, 0

    def _whole(self, result: Tensor) -> int | None:
        alike = (result.data_ptr(), result.shape, result.stride(), result.dtype)
        for number, x in self._writable():
            if (x.data_ptr(), x.shape, x.stride(), x.dtype) == alike:
                return number
        return None

    def _writable(self) -> Iterator[tuple[int, Tensor]]:
        """Operands of the program and rooms, with their numbers."""
        yield from enumerate(self.aux, len(self.given))
        yield from enumerate((room for _, room in self._rooms), self._taken)


class Unrecorded(Record):
    """Of a call that nobody will replay."""

    def begin(self, given: Sequence[Tensor], o: Operands[Tensor], plain: bool) -> None:
        pass

    def made(self, room: Tensor, side: int | None = None) -> Tensor:
        return room

    def launched(
        self, launcher: Launcher, words: Sequence[int], form: bytes, matrices: int, scalars: int
    ) -> None:
        pass

    def summed(self, launcher: WordLauncher, addresses: Sequence[int], *numbers: int) -> None:
        pass

    def bounded(
        self, launcher: WordLauncher, operand: tuple[int, Tensor], room: Tensor, *numbers: int
    ) -> None:
        pass

    def ranked(self, launcher: WordLauncher, room: Tensor, *numbers: int) -> None:
        pass

    def cleared(self, room: Tensor) -> None:
        pass

    def finish(self, results: Sequence[Tensor]) -> None:
        pass
