"""A kernel, and the words of its arguments in memory.

A kernel takes its arguments by the addresses of their words. They lie in two blocks. The words of
a call differ from call to call: addresses, rows, scalars, the number of CTAs, the stream. The words
of a form follow from other sizes and strides (`plan`). All have 64 bits; of a 32-bit argument the
kernel reads the low half, which comes first on the hosts of these GPUs.
"""

import ctypes
import struct
import threading
from collections.abc import Sequence

from .classes import TableKey
from .config import LETTERS, KernelConfig
from .runtime import Kernel

SIZES = 6  # of a form, in front of the rows of both sides
TOTALS = 2  # rows of queries and of keys, those of all sequences where a side is jagged


class WordBlock:
    """Words in a row, dealt out in order."""

    def __init__(self, size: int) -> None:
        self.words = (ctypes.c_int64 * size)()
        self.dealt = 0

    def deal(self, count: int) -> list[int]:
        """Where the next ones lie."""
        first = ctypes.addressof(self.words) + 8 * self.dealt
        self.dealt += count
        return [first + 8 * i for i in range(count)]


class Launcher:
    """A kernel that is launched by writing words. matrices: how many it takes. tables: those that
    it takes. Plans of one configuration share a launcher."""

    def __init__(
        self, kernel: Kernel, config: KernelConfig, matrices: int = 4,
        tables: Sequence[TableKey] = (),
    ) -> None:  # fmt: skip
        sides = config.jagged_q + config.jagged_k
        operands, scalars = len(tables) + len(config.aux), config.mod.num_scalars
        call = WordBlock(matrices + TOTALS + sides + (sides > 0) + operands + scalars + 2)
        form = WordBlock(SIZES + 1 + 3 * matrices + operands * len(LETTERS))
        self.tables = tables
        self.lock = threading.Lock()
        self.call, self.form = call.words, memoryview(form.words).cast("B")
        self.pack = struct.Struct(f"{len(call.words)}q").pack_into
        self.written = b""  # the words of the form that stand there
        first = [
            *call.deal(matrices),
            *form.deal(SIZES),
            *call.deal(TOTALS),
            *form.deal(1),  # how many sequences are dealt
            *form.deal(3 * matrices),
            *call.deal(sides + (sides > 0)),
        ]
        # Words of tables come before those of operands, but kernels take operands first.
        dealt = [call.deal(1) + form.deal(len(LETTERS)) for _ in range(operands)]
        aux = dealt[len(tables) :] + dealt[: len(tables)]
        places = (*first, *[x for found in aux for x in found], *call.deal(scalars + 2))
        self.run = kernel.at(places)

    def __call__(self, call: Sequence[int], form: bytes) -> None:
        """The words of a call in the order above, and those of its form."""
        with self.lock:
            if form is not self.written:
                self.form[:] = form
                self.written = form
            self.pack(self.call, 0, *call)
            self.run()


class WordLauncher:
    """A kernel whose arguments have a word each: addresses, integers, a stream."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.block, self.lock = WordBlock(count), threading.Lock()
        self.run = kernel.at(self.block.deal(count))

    def __call__(self, *words: int) -> None:
        with self.lock:
            self.block.words[:] = list(words)  # type: ignore[call-overload]
            self.run()
