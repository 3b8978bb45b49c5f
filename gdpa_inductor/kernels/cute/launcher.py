"""Launchers: a loaded kernel together with the memory of its arguments.

The runtime library takes the address of each argument. Each argument is a word of 64 bits in one of
two blocks of memory:

- Words of a call change from call to call: addresses, total rows, scalars, CTAs, stream.
- Words of a form depend on other sizes and on strides (`plan`). They are rewritten only when the
  form changes.

A kernel reads the low half of the word of a 32-bit argument. The low half comes first, as the hosts
of these GPUs are little-endian.
"""

import ctypes
import functools
import struct
import threading
from collections.abc import Hashable, Sequence

from . import disk, precompile
from .backward.roots import table_keys
from .config import LETTERS, KernelConfig
from .runtime import Kernel

SIZES = 6  # words of a form that come first: B, H, Hk, Hv, M, N
TOTALS = 2  # words of a call that come next: the total rows of queries and of keys


class WordBlock:
    """A block of memory for words, allotted in order."""

    def __init__(self, size: int) -> None:
        self.words = (ctypes.c_int64 * size)()
        self.dealt = 0

    def deal(self, count: int) -> list[int]:
        first = ctypes.addressof(self.words) + 8 * self.dealt
        self.dealt += count
        return [first + 8 * i for i in range(count)]


class Launcher:
    """Launches one attention kernel. Plans of the same configuration share it.

    tables: The tables of bounds that the kernel takes.
    """

    def __init__(self, kernel: Kernel, config: KernelConfig) -> None:
        matrices, sides = 3 + len(config.matrices), config.jagged_q + config.jagged_k
        indices = sides + (sides > 0) + (config.page > 0)  # offsets, their order, a page table
        tables = table_keys(config)
        operands, scalars = len(tables) + len(config.aux), config.mod.num_scalars
        call = WordBlock(matrices + TOTALS + indices + operands + scalars + 2)
        form = WordBlock(SIZES + 1 + 3 * matrices + operands * len(LETTERS))
        self.tables = tables
        self.lock = threading.Lock()
        self.call, self.form = call.words, memoryview(form.words).cast("B")
        self.pack = struct.Struct(f"{len(call.words)}q").pack_into
        self.written = b""  # the words of the form that are in the block now
        first = [
            *call.deal(matrices),
            *form.deal(SIZES),
            *call.deal(TOTALS),
            *form.deal(1),  # how many sequences the launch computes
            *form.deal(3 * matrices),
            *call.deal(indices),
        ]
        # In the blocks, words of tables precede those of aux operands. Kernels take them after.
        dealt = [call.deal(1) + form.deal(len(LETTERS)) for _ in range(operands)]
        aux = dealt[len(tables) :] + dealt[: len(tables)]
        places = (*first, *[x for words in aux for x in words], *call.deal(scalars + 2))
        self.run = kernel.at(places)

    def __call__(self, call: Sequence[int], form: bytes) -> None:
        """Launch. call, form: the results of `LaunchPlan.call_words` and `form_words`."""
        # The words of a form are the same object from call to call (`LaunchPlan.words`), so
        # comparing addresses is enough to leave them where they are.
        with self.lock:
            if form is not self.written:
                self.form[:] = form
                self.written = form
            self.pack(self.call, 0, *call)
            self.run()


class WordLauncher:
    """Launches a small kernel whose arguments are addresses, integers and a stream."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.block, self.lock = WordBlock(count), threading.Lock()
        self.run = kernel.at(self.block.deal(count))

    def __call__(self, *words: int) -> None:
        with self.lock:
            self.block.words[:] = list(words)  # type: ignore[call-overload]
            self.run()


def load(module: str, *arguments: Hashable) -> Kernel:
    precompile.finish(module, *arguments)
    return Kernel(disk.kernel_file(module, *arguments))


@functools.cache
def word_launcher(module: str, count: int, *arguments: Hashable) -> WordLauncher:
    """The launcher of a small kernel. count: How many arguments a launch has."""
    return WordLauncher(load(module, *arguments), count)
