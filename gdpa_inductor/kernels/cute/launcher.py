"""A compiled kernel, and the words of its arguments in memory.

A kernel takes its arguments by the addresses of their words. They lie in two blocks. The words of a
call differ from call to call: addresses, scalars, the number of CTAs, the stream. The words of a
form follow from sizes and strides (`plan`). All have 64 bits; of a 32-bit argument the kernel reads
the low half, which comes first on the hosts of these GPUs.
"""

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cutlass import cute

from .config import LETTERS, KernelConfig
from .program import DTYPES

SIZES = 9


def pointer(dtype: str, align: int = 0, address: int = 16) -> Any:
    """To global memory. Where a kernel is compiled no address is read. align: of the addresses, in
    bytes; by default that of the dtype."""
    align, gmem = align or getattr(torch, dtype).itemsize, cute.AddressSpace.gmem
    return cute.runtime.make_ptr(DTYPES[dtype], address, gmem, assumed_align=align)


class Words:
    """Where the words of one argument lie, in place of the argument: CuTe DSL asks any object."""

    __slots__ = ("places",)

    def __init__(self, places: list[ctypes.c_void_p]) -> None:
        self.places = places

    def __c_pointers__(self) -> list[ctypes.c_void_p]:
        return self.places


class WordBlock:
    """Words in a row, dealt out in order."""

    def __init__(self, size: int) -> None:
        self.words = (ctypes.c_int64 * size)()
        self.dealt = 0

    def deal(self, count: int) -> list[ctypes.c_void_p]:
        first = ctypes.addressof(self.words) + 8 * self.dealt
        self.dealt += count
        return [ctypes.c_void_p(first + 8 * i) for i in range(count)]


class PackedLaunch:
    """`kernel.run_compiled_program(places)`, for places that stay.

    CuTe DSL lists the places anew in every launch, which takes the CPU longer than the launch. From
    the second launch on its list is used again, where this version of it has one.
    """

    def __init__(self, kernel: Any, places: list[Any]) -> None:
        self.kernel, self.places = kernel, places
        self.launch: Callable[[], None] = self.first

    def __call__(self) -> None:
        self.launch()

    def first(self) -> None:
        self.every()
        self.launch = self.listed() or self.every

    def every(self) -> None:
        self.kernel.run_compiled_program(self.places)

    def listed(self) -> Callable[[], None] | None:
        try:
            self.executor = self.kernel.to(None)  # it keeps the code loaded
            found = self.executor._get_invoke_packed_args(self.places)
            function, result = self.executor.capi_func, self.executor.cuda_result
        except AttributeError:
            return None
        kept = type(found)(*found)  # the list that it returns is reused

        def launch() -> None:
            function(kept)
            if result is not None and result.value:
                raise RuntimeError(f"the launch of a CuTe kernel failed: CUDA error {result.value}")

        return launch


class Launcher:
    """A compiled kernel that is launched by writing words. matrices: how many it takes.

    CuTe DSL looks at the arguments once. Plans of one configuration share a launcher.
    """

    def __init__(self, kernel: Any, config: KernelConfig, matrices: int = 4) -> None:
        sides = config.jagged_q + config.jagged_k
        operands, scalars = len(config.aux), config.mod.num_scalars
        call = WordBlock(matrices + sides + (sides > 0) + operands + scalars + 2)
        form = WordBlock(SIZES + 3 * matrices + operands * len(LETTERS))
        self.lock = threading.Lock()
        self.call, self.form = call.words, memoryview(form.words).cast("B")
        self.pack = struct.Struct(f"{len(call.words)}q").pack_into
        self.written = b""  # the words of the form that stand there
        places = (
            call.deal(matrices),
            form.deal(SIZES),
            form.deal(3 * matrices),
            call.deal(int(config.jagged_q)),
            call.deal(int(config.jagged_k)),
            call.deal(int(sides > 0)),
            [x for _ in range(operands) for x in call.deal(1) + form.deal(len(LETTERS))],
            call.deal(scalars),
            call.deal(1),
            call.deal(1),
        )
        arguments = [Words(found) if found else None for found in places]
        self.run = PackedLaunch(kernel, kernel.generate_execution_args(*arguments)[0])

    def __call__(self, call: Sequence[int], form: bytes) -> None:
        """The words of a call in the order above, and those of its form."""
        with self.lock:
            if form is not self.written:
                self.form[:] = form
                self.written = form
            self.pack(self.call, 0, *call)
            self.run()


class WordLauncher:
    """A compiled kernel whose arguments have a word each: addresses, integers, a stream."""

    def __init__(self, kernel: Any, count: int) -> None:
        self.block, self.lock = WordBlock(count), threading.Lock()
        arguments = [Words(self.block.deal(1)) for _ in range(count)]
        self.run = PackedLaunch(kernel, kernel.generate_execution_args(*arguments)[0])

    def __call__(self, *words: int) -> None:
        with self.lock:
            self.block.words[:] = list(words)  # type: ignore[call-overload]
            self.run()
