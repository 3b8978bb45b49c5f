"""`run`: launches compiled CuTe kernels on the emulator, once per schedule."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from . import jit, ptx, standin
from .machine import Cta, EmulatorError, GlobalMemory
from .recording import LEDGER, PROBE
from .standin import Launch

SCHEDULES = ("lazy", "random", "eager")


@dataclass
class Report:
    """What a run did: warnings (benign on hardware), counts by kind of event, seconds."""

    warnings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


_entries: dict[tuple[int, str], tuple] = {}


def kernel_of(launch: Launch) -> tuple:
    """The translated kernel of a launch."""
    key = (launch.library, launch.kernel)
    if key not in _entries:
        if launch.library not in LEDGER.ptx:
            raise EmulatorError(f"{launch.kernel} was compiled outside recording()")
        for name, kernel in ptx.parse(LEDGER.ptx[launch.library]).items():
            if name == launch.kernel:
                _entries[key] = (kernel, jit.Translator(kernel))
    kernel, translator = _entries[key]
    return kernel, translator


def parameters(launch: Launch, kernel) -> bytes:
    """The launch's arguments laid out as the kernel's .param list says."""
    data = bytearray()
    for index, (_, size, align) in enumerate(kernel.params):
        data += bytes(-len(data) % align)
        data += launch.argument(index, size)
    return bytes(data)


class Execution:
    """Runs launches on one schedule."""

    def __init__(self, memory, schedule, seed, strict, report):
        self.memory, self.schedule, self.seed = memory, schedule, seed
        self.strict, self.report = strict, report

    def __call__(self, launch: Launch) -> None:
        if PROBE in launch.kernel:
            LEDGER.learn(launch)
            return
        kernel, translator = kernel_of(launch)
        params = parameters(launch, kernel)
        entry = translator.translate_once()
        gx, gy, gz = launch.grid
        for z in range(gz):
            for y in range(gy):
                for x in range(gx):
                    cta = Cta(
                        kernel,
                        self.memory,
                        params,
                        (x, y, z),
                        launch.grid,
                        launch.block,
                        self.schedule,
                        self.seed,
                        self.strict,
                    )
                    cta.maps = LEDGER.maps
                    cta.run(entry)
                    self.report.warnings += cta.warnings
                    for name, count in cta.stats.items():
                        self.report.counts[name] = self.report.counts.get(name, 0) + count


def storage(tensor: torch.Tensor) -> np.ndarray:
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return flat.numpy()


def run(
    launch: Callable[[], object],
    tensors: Sequence[torch.Tensor],
    *,
    schedules: Sequence[str] = SCHEDULES,
    seed: int = 0,
    strict: bool = True,
) -> Report:
    """Calls `launch` once per schedule; the kernels that it launches run on the emulator.

    tensors: all the memory that kernels may touch. They are restored before each schedule, must end
    with the same bits on every schedule, and hold the result. Raises EmulatorError for any fault.
    """
    memory, report, start = GlobalMemory(), Report(), time.perf_counter()
    views = {view.ctypes.data: view for view in map(storage, tensors) if view.size}
    for view in views.values():
        memory.add(view)
    before = {address: view.copy() for address, view in views.items()}
    results = None
    for schedule in schedules:
        for address, view in views.items():
            view[...] = before[address]
        with standin.launches(Execution(memory, schedule, seed, strict, report)) as failures:
            try:
                launch()
            except Exception as error:
                if not failures:
                    raise
                raise failures[0] from error
        if failures:
            raise failures[0]
        now = {address: view.copy() for address, view in views.items()}
        if results is not None and any((now[a] != results[a]).any() for a in now):
            raise EmulatorError(
                f"the result on schedule {schedule!r} differs from {schedules[0]!r}"
            )
        results = now
    report.seconds = time.perf_counter() - start
    return report
