"""Replay a call: repeat its launches for a later call of the same form, at other addresses.

The first call of a form (plan.py) chooses kernels, computes their arguments and allocates memory.
It writes these steps into a `Record`. The `Replay` of a record only allocates, clears and launches,
which saves time of the CPU. A call can be replayed if it did nothing else. So it must not copy an
operand, and torch must not sum or sort anything.

A step refers to the data of a call by number:

    tensors of a call    The caller's matrices, the aux operands, the offsets, the rooms.
    values of a call     The addresses of these tensors, the total rows of queries and keys, and 0.

A room is memory that the call allocates. An argument is recorded as a `Place`: the number of a
value, and an offset that is added to it. For example, an address is that of a tensor plus some
bytes. The total rows of a jagged side vary from call to call, and the sizes of some rooms with
them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty_strided
from ...operands import Operands
from .form import JAGGED, off_alignment
from .launcher import TOTALS, Launcher, WordLauncher
from .plan import totals
from .runtime import clear, is_dense

Tensors = Sequence[Tensor]
Place = tuple[int, int]  # (number of a value, offset)
Room = tuple[int | None, tuple[int, ...], tuple[int, ...], torch.dtype]  # see `Replay.rooms`
ROWS, NOTHING = (-3, -2), -1  # the numbers of the last values: rows of queries, of keys, and 0
# A function of the values, the scalars and the stream.
Step = Callable[[Sequence[int], Sequence[int], int], None]


def _reader(places: Sequence[Place]) -> Callable[[Sequence[int]], Iterable[int]]:
    """A function from the values of a call to the arguments at two or more places."""
    numbers, offsets = zip(*places, strict=True)
    read = operator.itemgetter(*numbers)
    return read if not any(offsets) else lambda values: map(operator.add, read(values), offsets)


def _kernel_step(
    launcher: Launcher, form: bytes, places: Sequence[Place], count: int, ctas: int
) -> Step:
    read = _reader(places)

    def launch(values: Sequence[int], scalars: Sequence[int], stream: int) -> None:
        launcher((*read(values), *scalars[:count], ctas, stream), form)

    return launch


def _word_step(launcher: WordLauncher, places: Sequence[Place], numbers: Sequence[int]) -> Step:
    read = _reader(places)

    def launch(values: Sequence[int], _: Sequence[int], stream: int) -> None:
        launcher(*read(values), *numbers, stream)

    return launch


def _clear_step(place: Place, words: int, side: int | None) -> Step:
    """Sets memory to zero: `words` words of 32 bits, in all or for each row of a side."""
    number, offset = place

    def run(values: Sequence[int], _: Sequence[int], stream: int) -> None:
        rows = 1 if side is None else values[ROWS[side]]
        clear(values[number] + offset, words * rows, stream)

    return run


@dataclass(frozen=True)
class Replay:
    """The steps of a call."""

    # (side, size, strides, dtype) of each room. If there is a side, its total rows precede the
    # size.
    rooms: tuple[Room, ...]
    steps: tuple[Step, ...]
    # The numbers of the tensors that the call returns. If one is an operand, the caller gets a new
    # tensor on the same memory.
    results: tuple[int, ...]
    device: int  # The index of the device. It has to be the current one.

    def __call__(
        self, matrices: Tensors, aux: Tensors, scalars: Sequence[int], offsets: Tensors = ()
    ) -> list[Tensor] | None:
        """Run the call, and return its results. matrices: As in `Record.begin`.

        The result is None, and nothing has run, if an address is not a multiple of 16 bytes. Then
        TMA might need a copy.
        """
        tensors = [*matrices, *aux, *offsets]
        addresses = [x.data_ptr() for x in tensors]
        # One or of all addresses: a step in Python for each would cost more than the launch.
        if off_alignment(addresses):
            return None
        stream = current_stream(self.device)
        rows = totals(*matrices[:2])
        rooms = [
            empty_strided(size if side is None else (rows[side], *size), strides, dtype)
            for side, size, strides, dtype in self.rooms
        ]
        values = [*addresses, *[x.data_ptr() for x in rooms], *rows, 0]
        for step in self.steps:
            step(values, scalars, stream)
        count = len(tensors)
        return [rooms[i - count] if i >= count else tensors[i].detach() for i in self.results]


@dataclass
class Record:
    """Collects the steps of a first call while it runs."""

    # the result after `finish`, or None if the call cannot be replayed
    replay: Replay | None = None
    # The call did something that cannot be replayed, or nobody wants a replay. From then on nothing
    # is collected.
    fails: bool = False
    # matrices, aux, offsets: the tensors of the call, after `begin`
    matrices: Sequence[Tensor] = ()
    aux: Sequence[Tensor] = ()
    offsets: Sequence[Tensor] = ()
    _rooms: list[tuple[int | None, Tensor]] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)

    def begin(self, matrices: Sequence[Tensor], o: Operands[Tensor], plain: bool) -> None:
        """Begin a record. matrices: The caller's matrices. plain: Nothing is copied."""
        self.matrices, self.aux = matrices, o.aux
        self.fails = self.fails or not plain
        self.offsets = [x for x in o.indices if x is not None]

    def add_buffer(self, room: Tensor, side: int | None = None) -> Tensor:
        """Record a room, and return it. It lives as long as the record."""
        # side: 0 if the first dim is the total rows of a jagged query, 1 if of jagged keys.
        if not self.fails:
            jagged = side is not None and self.matrices[side].dim() == JAGGED
            self._rooms.append((side if jagged else None, room))
        return room

    def add_kernel(
        self, launcher: Launcher, words: Sequence[int], form: bytes, count: int, scalars: int
    ) -> None:
        """Record a launch of an attention kernel with the results of `LaunchPlan.call_words` and
        `form_words`. It takes `count` matrices, of which the caller's come first.
        """
        if self.fails:
            return
        own, behind = len(self.matrices), count + TOTALS
        last = len(words) - scalars - 2
        first = last - len(self.aux)
        places = (
            *self._of(self.matrices, words, 0),
            *map(self._own, words[own:count]),
            *map(self._rows, (0, 1), words[count:behind]),
            *self._of(self.offsets, words[behind:], own + len(self.aux)),
            *map(self._own, words[behind + len(self.offsets) : first]),
            *self._of(self.aux, words[first:last], own),
        )
        self._steps.append(_kernel_step(launcher, form, places, scalars, words[-2]))

    def add_sum(
        self,
        launcher: WordLauncher,
        addresses: Sequence[int],
        *numbers: int,
        jagged: Sequence[int] = (),
    ) -> None:
        """jagged: The words between addresses and numbers: the addresses of the offsets, and the
        total rows of queries and keys.
        """
        if self.fails:
            return
        places = (
            *map(self._own, addresses),
            *self._of(self.offsets, jagged, len(self.matrices) + len(self.aux)),
            *map(self._rows, (0, 1), jagged[-TOTALS:]),
        )
        self._steps.append(_word_step(launcher, places, numbers))

    def add_table(
        self, launcher: WordLauncher, operand: tuple[int, Tensor], room: Tensor, *numbers: int
    ) -> None:
        """Record the launch that makes a table of bounds."""
        # operand: (number of the aux operand, the part of it that was read). numbers: The arguments
        # after the two addresses.
        if self.fails:
            return
        number, part = operand
        place = number + len(self.matrices), part.data_ptr() - self.aux[number].data_ptr()
        places = (place, self._own(room.data_ptr()))
        self._steps.append(_word_step(launcher, places, numbers))

    def add_ranking(
        self, launcher: WordLauncher, offsets: Tensor, room: Tensor, *numbers: int
    ) -> None:
        """Record the launch that ranks the sequences by these offsets."""
        if self.fails:
            return
        known = enumerate(self.offsets, len(self.matrices) + len(self.aux))
        number = next(number for number, x in known if x.data_ptr() == offsets.data_ptr())
        places = ((number, 0), self._own(room.data_ptr()))
        self._steps.append(_word_step(launcher, places, numbers))

    def add_clear(self, room: Tensor) -> None:
        """Record that a room, or an operand that may be overwritten, was set to zero."""
        if self.fails:
            return
        place, words, side = self._own(room.data_ptr()), room.nbytes // 4, None
        number = place[0] - self._first_room
        if number >= 0:
            side, whole = self._rooms[number]
            self.fails |= side is not None and room.shape != whole.shape
        rows = 1 if side is None else max(room.shape[0], 1)
        self.fails |= not is_dense(room) or room.nbytes % (4 * rows) != 0
        self._steps.append(_clear_step(place, words // rows, side))

    def finish(self, results: Sequence[Tensor]) -> None:
        """End the record, and make the replay, if results are whole tensors of the call."""
        numbers = [] if self.fails else [self._whole(x) for x in results]
        if self.fails or None in numbers:
            return
        rooms = tuple(
            (side, tuple(x.shape[side is not None :]), x.stride(), x.dtype)
            for side, x in self._rooms
        )
        whole = tuple(x for x in numbers if x is not None)
        device = self.matrices[0].device.index
        self.replay = Replay(rooms, tuple(self._steps), whole, device)

    @property
    def _first_room(self) -> int:
        return len(self.matrices) + len(self.aux) + len(self.offsets)

    def _of(self, tensors: Sequence[Tensor], addresses: Sequence[int], first: int) -> list[Place]:
        pairs = enumerate(zip(tensors, addresses, strict=False), first)
        return [(number, address - x.data_ptr()) for number, (x, address) in pairs]

    def _rows(self, side: int, count: int) -> Place:
        return (ROWS[side], 0) if self.matrices[side].dim() == JAGGED else (NOTHING, count)

    def _own(self, address: int) -> Place:
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
        yield from enumerate(self.aux, len(self.matrices))
        yield from enumerate((room for _, room in self._rooms), self._first_room)
