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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._compat.device import current_stream, empty_strided
from ...operands import Operands
from .form import JAGGED, off_alignment
from .launcher import TOTALS, Launcher, WordLauncher
from .memory import clear, is_dense
from .plan import totals

Place = tuple[int, int]  # (number of a value, offset)
Room = tuple[int | None, tuple[int, ...], tuple[int, ...], torch.dtype]  # see `Replay.rooms`
ROWS, NOTHING = (-3, -2), -1  # the numbers of the last values: rows of queries, of keys, and 0
# A function of the values, the scalars and the stream.
Step = Callable[[Sequence[int], Sequence[int], int], None]


@dataclass(frozen=True)
class KernelLaunch:
    """Launches an attention kernel.

    form:     The words of the form.
    places:   The arguments of the call before the scalars.
    scalars:  How many integers the score program reads.
    """

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
    """Launches a small kernel. Its arguments are addresses (`places`), `numbers` and the stream."""

    launcher: WordLauncher
    places: tuple[Place, ...]
    numbers: tuple[int, ...]

    def __call__(self, values: Sequence[int], _: Sequence[int], stream: int) -> None:
        words = [values[number] + offset for number, offset in self.places]
        self.launcher(*words, *self.numbers, stream)


@dataclass(frozen=True)
class Clear:
    """Sets memory to zero.

    words: How many words of 32 bits, in all or for each row of a side. side: 0 for queries, 1 for
    keys, or None.
    """

    place: Place
    words: int
    side: int | None

    def __call__(self, values: Sequence[int], _: Sequence[int], stream: int) -> None:
        number, offset = self.place
        rows = 1 if self.side is None else values[ROWS[self.side]]
        clear(values[number] + offset, self.words * rows, stream)


@dataclass(frozen=True)
class Replay:
    """The steps of a call.

    rooms:    (side, size, strides, dtype) of each room. If there is a side, its total rows precede
              the size.
    results:  The numbers of the tensors that the call returns. If one is an operand, the caller
              gets a new tensor on the same memory.
    device:   The index of the device. It has to be the current one.
    """

    rooms: tuple[Room, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    device: int

    def __call__(
        self, matrices: Sequence[Tensor], aux: Sequence[Tensor], scalars: Sequence[int],
        offsets: Sequence[Tensor] = (),
    ) -> list[Tensor] | None:  # fmt: skip
        """Run the call, and return its results.

        The result is None, and nothing has run, if an address is not a multiple of 16 bytes. Then
        TMA might need a copy.

        Args:
            matrices: Query, key, value and, in a backward, the gradient of O.
            aux, scalars: Those of the score program.
            offsets: `cu_seqlens` of the jagged sides.
        """
        tensors = [*matrices, *aux, *offsets]
        addresses = [x.data_ptr() for x in tensors]
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
    """Collects the steps of a first call while it runs.

    replay:   The result after `finish`, or None if the call cannot be replayed.
    fails:    The call did something that cannot be replayed, or nobody wants a replay. From then on
              nothing is collected.
    matrices, aux, offsets: The tensors of the call, after `begin`.
    """

    replay: Replay | None = None
    fails: bool = False
    matrices: Sequence[Tensor] = ()
    aux: Sequence[Tensor] = ()
    offsets: Sequence[Tensor] = ()
    _rooms: list[tuple[int | None, Tensor]] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)

    def begin(self, matrices: Sequence[Tensor], o: Operands[Tensor], plain: bool) -> None:
        """Begin a record. matrices: The caller's matrices. plain: Nothing is copied."""
        self.matrices, self.aux = matrices, o.aux
        self.fails = self.fails or not plain
        self.offsets = [x for x in o.lengths[:2] if x is not None]

    def add_buffer(self, room: Tensor, side: int | None = None) -> Tensor:
        """Record a room, and return it. It lives as long as the record.

        side: 0 if the first dim is the total rows of a jagged query, 1 if of jagged keys.
        """
        if not self.fails:
            jagged = side is not None and self.matrices[side].dim() == JAGGED
            self._rooms.append((side if jagged else None, room))
        return room

    def add_kernel(
        self, launcher: Launcher, words: Sequence[int], form: bytes, count: int, scalars: int
    ) -> None:
        """Record a launch of an attention kernel.

        Args:
            words: The result of `LaunchPlan.call_words`.
            form: The result of `LaunchPlan.form_words`.
            count: How many matrices the kernel takes. The caller's come first.
            scalars: How many integers the score program reads.
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
        self._steps.append(KernelLaunch(launcher, form, places, scalars, words[-2]))

    def add_sum(self, launcher: WordLauncher, addresses: Sequence[int], *numbers: int) -> None:
        """Record a launch that sums rooms. numbers: The arguments after the addresses."""
        if not self.fails:
            self._steps.append(WordLaunch(launcher, tuple(map(self._own, addresses)), numbers))

    def add_table(
        self, launcher: WordLauncher, operand: tuple[int, Tensor], room: Tensor, *numbers: int
    ) -> None:
        """Record the launch that makes a table of bounds.

        operand: (number of the aux operand, the part of it that was read). room: The table's
        memory. numbers: The arguments after the two addresses.
        """
        if self.fails:
            return
        number, part = operand
        place = number + len(self.matrices), part.data_ptr() - self.aux[number].data_ptr()
        places = (place, self._own(room.data_ptr()))
        self._steps.append(WordLaunch(launcher, places, numbers))

    def add_ranking(self, launcher: WordLauncher, room: Tensor, *numbers: int) -> None:
        """Record the launch that ranks the sequences. It reads the last of the offsets.

        room: The memory of the order.
        """
        if not self.fails:
            places = ((self._first_room - 1, 0), self._own(room.data_ptr()))
            self._steps.append(WordLaunch(launcher, places, numbers))

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
        self._steps.append(Clear(place, words // rows, side))

    def finish(self, results: Sequence[Tensor]) -> None:
        """End the record, and make the replay if there can be one.

        results: What the call returns. Each has to be a whole tensor of the call.
        """
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
        """How many tensors come before the rooms."""
        return len(self.matrices) + len(self.aux) + len(self.offsets)

    def _of(self, tensors: Sequence[Tensor], addresses: Sequence[int], first: int) -> list[Place]:
        """The places of addresses. Each address is that of a tensor here, or of a part of it.

        first: The number of the first tensor.
        """
        pairs = enumerate(zip(tensors, addresses, strict=False), first)
        return [(number, address - x.data_ptr()) for number, (x, address) in pairs]

    def _rows(self, side: int, count: int) -> Place:
        return (ROWS[side], 0) if self.matrices[side].dim() == JAGGED else (NOTHING, count)

    def _own(self, address: int) -> Place:
        """The place of an address in a room, or in an operand that the call may overwrite."""
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
        """The aux operands and the rooms, with their numbers."""
        yield from enumerate(self.aux, len(self.matrices))
        yield from enumerate((room for _, room in self._rooms), self._first_room)
