"""One CTA, or those of a cluster: memories, asynchronous work, and the scheduler of their gangs.

Schedules: `lazy` completes asynchronous work only when no gang can run, in random order; `eager`
completes it at once; `random` runs every warp by itself, in random order, and completes work at
random moments.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from . import gangs
from .clocks import Clocks
from .copies import Copies
from .faults import EmulatorError
from .gangs import Gang
from .memory import GlobalMemory
from .ptx import SHARED_BASE, WINDOW
from .shared import GRANULE, SharedMemory
from .sync import Sync
from .tensor import Tensor
from .tensormap import TensorMap
from .translate import PARAMETER_BASE, SPIN, Translator
from .warpgroup import Products

SCHEDULES = ("lazy", "random", "eager")
IDLE = 64  # rounds in which all warps only poll: one may look at many words, one after the other
Vector = np.ndarray


@dataclass(frozen=True)
class Block:
    """Where a CTA stands: its index, the grid, its threads, its bytes of dynamic shared memory. Of
    a cluster, of so many CTAs side by side: the first one."""

    index: tuple[int, int, int]
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int
    cluster: int = 1

    @property
    def thread_count(self) -> int:
        return int(np.prod(self.threads))

    @property
    def warps(self) -> int:
        """Of a CTA."""
        return -(-self.thread_count // 32)


@dataclass
class Running:
    """A gang, its generator, and what it waits for."""

    gang: Gang
    generator: Generator
    waits: tuple | None = None


@dataclass
class Cta:
    """Runs one CTA of a translated kernel, or a cluster: then warps are numbered through its CTAs,
    and each CTA has its window of shared memory.

    memory: global memory; parameter_bytes: as the .param list lays them out; maps: tensor maps by
    the bytes that stand for them; strict: what may be harmless on hardware is an error too; fences:
    tcgen05.fence must be where the PTX manual asks for it.
    """

    translator: Translator
    block: Block
    memory: GlobalMemory
    parameter_bytes: bytes
    maps: dict[bytes, TensorMap]
    schedule: str = "lazy"
    seed: int = 0
    strict: bool = True
    fences: bool = True
    warnings: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r}; there are {', '.join(SCHEDULES)}")
        self.rng = random.Random(self.seed)
        warps = self.block.warps * self.block.cluster
        static = max(self.translator.kernel.shared.values(), default=SHARED_BASE) - SHARED_BASE
        size = static + self.block.shared_bytes
        granules = -(-(SHARED_BASE + size) // 128) * 128 // GRANULE
        granules += (self.block.cluster - 1) * WINDOW // GRANULE
        self.clocks = Clocks(warps, granules, self.report, self.fences, self.block.cluster)
        self.shared = SharedMemory(self, self.clocks, size, self.block.cluster)
        rng = self.rng if self.schedule == "random" else None
        self.sync = Sync(self, self.clocks, 32 * self.block.warps, rng)
        self.left = [self.block.warps] * self.block.cluster  # warps that have not ended
        ranks = range(self.block.cluster)
        self.tensors = [Tensor(self, rank) for rank in ranks]
        self.copies, self.products = Copies(self), Products(self)
        # in order, those of a pair on the pipe of the CTA that issued them
        self.pipes: list[deque[Callable[[], None]]] = [deque() for _ in ranks]
        self.in_flight: list[Callable[[], None]] = []  # copies complete in any order
        self.running: list[Running] = []

    def report(self, text: str) -> None:
        """A violation that may be harmless on hardware."""
        if self.strict:
            raise EmulatorError(text)
        self.warnings.append(text)

    def parameters(self, address: Vector, count: int, size: int) -> list[Vector]:
        start = int(address[0]) - PARAMETER_BASE
        raw = self.parameter_bytes[start : start + count * size]
        values = np.frombuffer(raw, f"u{size}")
        return [np.full(address.size, value) for value in values]

    # Asynchronous work.
    def submit_copy(self, complete: Callable[[], None]) -> None:
        self.counts["copies"] += 1
        if self.schedule == "eager":
            complete()
        else:
            self.in_flight.append(complete)

    def submit_tensor(self, complete: Callable[[], None], rank: int) -> None:
        if self.schedule == "eager":
            complete()
        else:
            self.pipes[rank].append(complete)

    def complete_one(self) -> bool:
        """Completes one piece of asynchronous work. False if there is none."""
        pipes = [pipe for pipe in self.pipes if pipe]
        choices = len(self.in_flight) + len(pipes)
        if not choices:
            return False
        chosen = self.rng.randrange(choices)
        if chosen < len(self.in_flight):
            self.in_flight.pop(chosen)()
        else:
            pipes[chosen - len(self.in_flight)].popleft()()
        return True

    # Gangs.
    def start(self, gang: Gang, state: tuple) -> None:
        entry = self.translator.entry(gang.size)
        self.running.append(Running(gang, entry(self, gang, state)))

    def start_all(self) -> None:
        threads, each = self.block.thread_count, self.block.warps
        for rank in range(self.block.cluster):
            warps = list(range(rank * each, (rank + 1) * each))
            for group in [[w] for w in warps] if self.schedule == "random" else [warps]:
                gang = Gang(group, self.block)
                lanes = 32 * (group[0] - rank * each) + np.arange(gang.size) < threads
                self.start(gang, gangs.state({0: lanes}, None))

    def run(self) -> None:
        """Runs to the end. EmulatorError for whatever goes wrong."""
        with np.errstate(all="ignore"):
            self.run_gangs()

    def run_gangs(self) -> None:
        self.start_all()
        idle = 0
        while self.running:
            progress = False
            order = list(self.running)
            if self.schedule == "random":
                self.rng.shuffle(order)
            for one in order:
                if one.waits is None or one.waits is SPIN or self.ready(one.waits):
                    progress |= self.step(one)
                    if self.schedule == "random" and self.rng.random() < 0.3:
                        progress |= self.complete_one()
            idle = 0 if progress or self.complete_one() else idle + 1
            if idle == IDLE:
                raise self.deadlock()
        # Commits may be: NVIDIA's forward, which is right on hardware, ends before its last one.
        if left := len(self.in_flight):
            self.report(f"{left} copies are in flight when the last warp ends")
        if any(np.count_nonzero(x.writes) for x in self.tensors) or self.products.left():
            self.report("products are in flight when the last warp ends")
        while self.complete_one():
            pass
        self.check_exit()

    def step(self, one: Running) -> bool:
        """Runs a gang to its next wait. False if it only spins."""
        before = one.waits
        try:
            one.waits = next(one.generator)
        except StopIteration as end:
            self.running.remove(one)
            if end.value is not None:
                parts = gangs.split(one.gang, *end.value)
                for gang, state in parts:
                    self.start(gang, state)
            else:
                parts = []
            self.left[one.gang.rank] -= len(one.gang.warps) - sum(len(g.warps) for g, _ in parts)
            return True
        except EmulatorError as error:
            place = f"CTA {self.block.index}, {one.gang}, PTX line {failed_line(error)}"
            raise EmulatorError(f"{place}: {error}") from error
        self.translator.blocked.add(current_line(one.generator))
        return not (one.waits is SPIN and before is SPIN)

    def ready(self, waits: tuple) -> bool:
        kind, *what = waits
        if kind == "mbar":
            return what[0].complete(what[1])
        if kind == "bar":
            return all(barrier.generation != generation for barrier, generation in what[0])
        return self.copies.done(*what)

    def reach(self, address: int) -> None:
        """A CTA at whose shared memory another one, or a copy, arrives has to be there."""
        rank = address // WINDOW
        if rank >= len(self.left):
            raise EmulatorError(f"CTA {rank}, a CTA that the cluster lacks")
        if not self.left[rank]:
            raise EmulatorError(f"CTA {rank} of the cluster has ended")

    def deadlock(self) -> EmulatorError:
        lines = [f"deadlock in CTA {self.block.index}"]
        for one in self.running:
            line = current_line(one.generator)
            lines.append(f"  {one.gang} at PTX line {line} waits for {described(one.waits)}")
        return EmulatorError("\n".join(lines))

    def check_exit(self) -> None:
        self.sync.check_exit()
        if columns := sum(int(x.allocated.sum()) for x in self.tensors):
            raise EmulatorError(f"{columns} columns of tensor memory are still allocated at exit")


def described(waits: tuple | None) -> str:
    if waits is None or waits is SPIN:
        return "something it polls"
    kind, *what = waits
    if kind == "mbar":
        return f"{what[0]}, parity {what[1]}"
    if kind == "bar":
        return ", ".join(str(barrier) for barrier, _ in what[0])
    return "its bulk stores"


def current_line(generator: Generator) -> int | None:
    frame = generator.gi_frame
    return frame.f_globals["PTX_LINE"].get(frame.f_lineno) if frame else None


def failed_line(error: BaseException) -> int | None:
    """The PTX line of the generated code that an error came through."""
    trace, line = error.__traceback__, None
    while trace:
        if trace.tb_frame.f_code.co_filename.startswith("<ptx"):
            line = trace.tb_frame.f_globals["PTX_LINE"].get(trace.tb_lineno)
        trace = trace.tb_next
    return line
