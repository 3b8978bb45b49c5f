"""`run`: launches compiled CuTe kernels on the emulator, once per schedule."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from . import ptx, standin
from .faults import EmulatorError
from .machine import SCHEDULES, Block, Cta
from .memory import GlobalMemory
from .recording import LEDGER, PROBE
from .standin import Launch
from .translate import Translator


@dataclass
class Report:
    """What a run did: warnings (perhaps harmless on hardware), events by kind, addresses that were
    prefetched from global memory, seconds."""

    warnings: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    prefetched: set[int] = field(default_factory=set)
    seconds: float = 0.0


class Kernels:
    """Translated kernels by library and name. exact_fma, mutants: as Translator has them."""

    def __init__(self, *, exact_fma: bool = False, mutants: Any = None) -> None:
        self.options = {"exact_fma": exact_fma, "mutants": mutants}
        self.known: dict[tuple[int, str], Translator] = {}

    def of(self, launch: Launch) -> Translator:
        key = (launch.library, launch.kernel)
        if key not in self.known:
            if launch.library not in LEDGER.ptx:
                raise EmulatorError(f"{launch.kernel} was compiled outside recording()")
            kernel = ptx.parse(LEDGER.ptx[launch.library])[launch.kernel]
            if self.options["mutants"] is not None:
                self.options["mutants"].add(kernel)
            self.known[key] = Translator(kernel, **self.options)
        return self.known[key]


TRANSLATED = {exact: Kernels(exact_fma=exact) for exact in (False, True)}


def parameters(launch: Launch, kernel: ptx.Kernel) -> bytes:
    """The launch's arguments laid out as the kernel's .param list says."""
    data = bytearray()
    for index, parameter in enumerate(kernel.parameters):
        data += bytes(-len(data) % parameter.align)
        data += launch.argument(index, parameter.size)
    return bytes(data)


@dataclass
class Execution:
    """Runs launches on one schedule, cluster after cluster."""

    kernels: Kernels
    memory: GlobalMemory
    report: Report
    schedule: str
    seed: int
    strict: bool
    fences: bool

    def __call__(self, launch: Launch) -> None:
        if PROBE in launch.kernel:
            LEDGER.learn(launch)
            return
        translator = self.kernels.of(launch)
        raw = parameters(launch, translator.kernel)
        columns, rows, layers = launch.grid
        ranges = (range(layers), range(rows), range(0, columns, launch.cluster))
        for z, y, x in itertools.product(*ranges):
            size, cluster = launch.shared_bytes, launch.cluster
            block = Block((x, y, z), launch.grid, launch.block, size, cluster)
            cta = Cta(
                translator, block, self.memory, raw, LEDGER.maps,
                self.schedule, self.seed, self.strict, self.fences,
            )  # fmt: skip
            cta.run()
            self.report.warnings += cta.warnings
            self.report.counts += cta.counts


def storage(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor's storage, shared with it."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


def launched(launch: Callable[[], object], execute: Callable[[Launch], None]) -> None:
    """Calls `launch`; what `execute` raises is raised here."""
    with standin.launches(execute) as failures:
        try:
            launch()
        except Exception as error:
            if not failures:
                raise
            raise failures[0] from error
    if failures:
        raise failures[0]


def run(
    launch: Callable[[], object],
    tensors: Sequence[torch.Tensor | None],
    *,
    schedules: Sequence[str] = SCHEDULES,
    seed: int = 0,
    strict: bool = True,
    fences: bool = True,
    exact_fma: bool = False,
    kernels: Kernels | None = None,
) -> Report:
    """Calls `launch` once per schedule; the kernels that it launches run on the emulator.

    tensors: all the memory that kernels may touch. They are restored before each schedule, must end
    with the same bits on every schedule, and hold the result. strict: violations that may be
    harmless on hardware raise too, else they are warnings of the report. fences: a missing
    tcgen05.fence or wait::ld is a race. exact_fma: fused multiply-adds round once, which takes
    longer. Raises EmulatorError for any fault.
    """
    report, start = Report(), time.perf_counter()
    kernels = kernels or TRANSLATED[exact_fma]
    every = [storage(tensor) for tensor in tensors if tensor is not None]
    views = list({view.ctypes.data: view for view in every if view.size}.values())
    memory = GlobalMemory(views)
    before = [view.copy() for view in views]
    first: list[np.ndarray] = []
    for schedule in schedules:
        for view, saved in zip(views, before, strict=True):
            view[...] = saved
        launched(launch, Execution(kernels, memory, report, schedule, seed, strict, fences))
        if first and any((a != b).any() for a, b in zip(views, first, strict=True)):
            raise EmulatorError(f"schedule {schedule!r} gives other results than {schedules[0]!r}")
        first = first or [view.copy() for view in views]
    report.prefetched = memory.prefetched
    report.seconds = time.perf_counter() - start
    return report
