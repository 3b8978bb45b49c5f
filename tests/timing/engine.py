"""Discrete events of one CTA: roles that wait for each other, and units that serve them.

A role is an iterator of operations (`Wait`, `Signal`, `Run`, `Multiply`, ...). A unit is a server:
it serves requests one after the other, each for some clocks. All times are in clocks.
"""

import functools
import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# Watts at 1 GHz: of a clock, and more where the tensor core, and shared memory, work all the time.
ENERGY = (204.0, 19.0, 163.0)


@dataclass(frozen=True)
class Machine:
    """One multiprocessor and its share of the device. Rates are per clock."""

    name: str
    processors: int
    tensor: float  # bf16 operations of the tensor core
    shared: float  # bytes of shared memory
    mufu: float  # special functions
    l2: float  # bytes from the L2 cache to one multiprocessor
    adds: float  # bytes that it adds to sums there
    hbm: float  # bytes per second of the whole memory
    latency: float  # of a load by TMA that hits the L2 cache
    far: float  # more of a load from memory
    cpi: float  # clocks per instruction of a warp that runs alone on its scheduler
    signal: float  # from an arrival to the warp that waits for it
    drain: float  # from the last operation of a product to its signal
    held: float = 0.0  # share of a product from registers after which its warps go on
    operand: float = 0.0  # least clocks of a part of a product whose operand is in registers
    gap: float = 0.0  # clocks of the tensor core between two products
    fills: float = 1.0  # the share of what TMA writes that takes shared memory from other accesses
    tmem: float = 0.0  # bytes per clock that one warpgroup moves to or from tensor memory
    launch: float = 3e-6  # seconds of a kernel without work
    dirty: float = 0.0  # bytes of the L2 cache that were written before the kernel
    mhz: float = 0.0  # the clock, the highest one if `power` is given
    power: float = 0.0  # watts, as `clock` takes them; 0: the clock does not depend on the work

    def clock(self, tensor: float, shared: float) -> float:
        """In MHz, where these units work for such shares of the time.

        The watts of a clock grow with its square, by what is done in it: `ENERGY`.
        """
        if not self.power:
            return self.mhz
        base, of_tensor, of_shared = ENERGY
        energy = base + of_tensor * tensor + of_shared * shared
        return min(self.mhz, 1e3 * (self.power / energy) ** 0.5)

    def hbm_share(self) -> float:
        """Bytes per clock that memory has for one multiprocessor."""
        return self.hbm / self.processors / (self.mhz * 1e6)


# Operations.
@dataclass(frozen=True)
class Wait:
    """For the next completion of a signal that this role has not waited for."""

    name: str


@dataclass(frozen=True)
class Signal:
    """One arrival."""

    name: str


@dataclass(frozen=True)
class Run:
    """Instructions of a warpgroup. Counts are of one of its warps; bytes are of all."""

    issue: float = 0.0
    mufu: float = 0.0
    fma: float = 0.0  # clocks of the pipe, as `alu`
    alu: float = 0.0
    shared: float = 0.0  # bytes of shared memory
    tmem: float = 0.0  # bytes of tensor memory


@dataclass(frozen=True)
class Multiply:
    """Issues a product: operations, and the bytes of shared memory that its operands take.

    held: its first operand is in registers, so the warps that issue it wait with it. into: names
    sums that are added to in several parts. joined: it adds to the same sums as the product before,
    without a pause.
    """

    flops: float
    shared: float = 0.0
    held: bool = False
    parts: int = 8
    into: str = ""
    joined: bool = False


@dataclass(frozen=True)
class Commit:
    """An arrival when all products of this role so far are complete."""

    name: str


@dataclass(frozen=True)
class Done:
    """Waits until at most so many of the last products of this role are in flight."""

    left: int = 0


@dataclass(frozen=True)
class Load:
    """A load by TMA. fresh: which share of it comes from memory, not from the L2 cache."""

    bytes: float
    name: str
    fresh: float = 0.0


@dataclass(frozen=True)
class Store:
    """A store by TMA, which is in flight afterwards. adds: it adds to sums in the L2 cache."""

    bytes: float
    adds: bool = False


@dataclass(frozen=True)
class Stored:
    """Waits until the stores of this role have read shared memory, or are complete."""

    complete: bool = False


@dataclass(frozen=True)
class Sleep:
    clocks: float


Operation = Wait | Signal | Run | Multiply | Commit | Done | Load | Store | Stored | Sleep


@dataclass
class Barrier:
    """Completes when `arrivals` have come. A wait passes `ahead` times at the start."""

    arrivals: int = 1
    ahead: int = 0
    came: int = 0
    completed: int = 0
    waiting: list[tuple[int, "Actor"]] = field(default_factory=list)


@dataclass
class Actor:
    """A role while it runs."""

    name: str
    operations: Iterator[Operation]
    waits: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    products: list["Product"] = field(default_factory=list)
    until: "Product | None" = None  # what it waits for
    read: float = 0.0  # when its stores have read shared memory
    stored: float = 0.0  # when they are complete


@dataclass
class Product:
    """A product that an actor has issued."""

    actor: Actor
    operation: Multiply
    parts: int = 0  # so many have begun
    commits: list[str] = field(default_factory=list)
    done: bool = False


class Unit:
    """A server."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def serve(self, at: float, clocks: float) -> float:
        """When a request that comes at that time is served."""
        self.free = max(self.free, at) + clocks
        self.busy += clocks
        return self.free


UNITS = ("tensor", "shared", "mufu", "fma", "alu", "issue", "l2", "adds", "hbm", "tmem")
LANDING = 2048  # bytes that land at once
PIECES = 8  # a piece of a `Run` is served at once


class Deadlock(Exception):
    pass


class Simulation:
    """Runs the roles of one CTA."""

    def __init__(self, machine: Machine, barriers: dict[str, Barrier]) -> None:
        self.machine, self.barriers = machine, barriers
        self.units = {name: Unit() for name in UNITS}
        self.queue: deque[Product] = deque()
        self.events: list = []
        self.count = itertools.count()
        self.end = 0.0

    def at(self, time: float, action: "str | Actor | Callable[[float], object]") -> None:
        heapq.heappush(self.events, (time, next(self.count), action))

    def run(self, roles: dict[str, Iterator[Operation]]) -> float:
        """Runs all to the end. Returns the clocks it took."""
        self.actors = [Actor(name, operations) for name, operations in roles.items()]
        for actor in self.actors:
            self.at(0.0, actor)
        while self.events:
            time, _, action = heapq.heappop(self.events)
            self.end = max(self.end, time)
            if isinstance(action, str):
                self.arrive(action, time)
            elif isinstance(action, Actor):
                self.advance(action, time)
            else:
                action(time)
        stuck = {name: len(b.waiting) for name, b in self.barriers.items() if b.waiting}
        if stuck:
            raise Deadlock(f"roles wait for {stuck}")
        return self.end

    def arrive(self, name: str, time: float) -> None:
        barrier = self.barriers[name]
        barrier.came += 1
        if barrier.came < barrier.arrivals:
            return
        barrier.came, barrier.completed = 0, barrier.completed + 1
        left = []
        for needed, actor in barrier.waiting:
            if barrier.completed >= needed:
                self.at(time + self.machine.signal, actor)
            else:
                left.append((needed, actor))
        barrier.waiting = left

    def advance(self, actor: Actor, time: float) -> None:
        """Goes on with a role until it has to wait."""
        operation = next(actor.operations, None)
        if operation is None:
            return
        later = getattr(self, "_" + type(operation).__name__.lower())(actor, operation, time)
        if later is not None:
            self.at(later, actor)

    # What each operation does. The result is when the role goes on, or None if an event says it.
    def _wait(self, actor: Actor, x: Wait, time: float) -> float | None:
        barrier = self.barriers[x.name]
        needed = actor.waits[x.name] + 1 - barrier.ahead
        actor.waits[x.name] += 1
        if barrier.completed >= needed:
            return time
        barrier.waiting.append((needed, actor))
        return None

    def _signal(self, actor: Actor, x: Signal, time: float) -> float:
        self.at(time, x.name)
        return time

    def _sleep(self, actor: Actor, x: Sleep, time: float) -> float:
        return time + x.clocks

    def _run(self, actor: Actor, x: Run, time: float) -> None:
        m = self.machine
        work = {"mufu": x.mufu * 128 / m.mufu, "fma": x.fma, "alu": x.alu, "issue": x.issue}
        work |= {"shared": x.shared / m.shared, "tmem": x.tmem / m.tmem if x.tmem else 0.0}
        work = {name: clocks / PIECES for name, clocks in work.items() if clocks}
        alone = (x.issue - x.mufu) * m.cpi / PIECES

        def pieces():
            now = time
            for _ in range(PIECES):
                ends = {name: self.units[name].serve(now, each) for name, each in work.items()}
                # What follows a special function waits for it.
                after = ends.get("mufu", now) + alone
                self.at(max([after, *ends.values()]), run.send)
                now = yield
            self.at(now, actor)
            yield

        run = pieces()
        next(run)

    def _multiply(self, actor: Actor, x: Multiply, time: float) -> float | None:
        product = Product(actor, x)
        actor.products.append(product)
        self.queue.append(product)
        if len(self.queue) == 1:
            self.at(max(time, self.units["tensor"].free + self.pause()), self.next_part)
        return None if x.held else time

    def pause(self) -> float:
        """Before the first product of the queue."""
        return 0.0 if self.queue[0].operation.joined else self.machine.gap

    def next_part(self, time: float) -> None:
        """The tensor core begins the next part of its first product."""
        m, product = self.machine, self.queue[0]
        x = product.operation
        clocks = max(x.flops / m.tensor / x.parts, m.operand if x.held else 0.0)
        begun = self.units["tensor"].serve(time, clocks)
        read = self.units["shared"].serve(time, x.shared / m.shared / x.parts) if x.shared else 0.0
        product.parts += 1
        if x.held and product.parts == max(1, round(m.held * x.parts)):
            self.at(time, product.actor)
        self.at(max(begun, read), self.next_part if product.parts < x.parts else self.multiplied)

    def multiplied(self, time: float) -> None:
        product = self.queue.popleft()
        self.at(time + self.machine.drain, functools.partial(self.completed, product))
        if self.queue:
            self.at(time + self.pause(), self.next_part)

    def completed(self, product: "Product", time: float) -> None:
        product.done = True
        for name in product.commits:
            self.arrive(name, time)
        actor = product.actor
        if actor.until is product:
            actor.until = None
            self.at(time, actor)

    def _commit(self, actor: Actor, x: Commit, time: float) -> float:
        if not actor.products or actor.products[-1].done:
            self.at(time, x.name)
        else:
            actor.products[-1].commits.append(x.name)
        return time

    def _done(self, actor: Actor, x: Done, time: float) -> float | None:
        waited = actor.products[: len(actor.products) - x.left]
        if not waited or waited[-1].done:
            return time
        actor.until = waited[-1]
        return None

    def _load(self, actor: Actor, x: Load, time: float) -> float:
        m, count = self.machine, max(1, round(x.bytes / LANDING))
        part = x.bytes / count
        for number in range(count):
            end = self.units["l2"].serve(time, part / m.l2) + m.latency
            if x.fresh:
                served = self.units["hbm"].serve(time, part * x.fresh / m.hbm_share())
                end = max(end, served + m.latency + m.far)
            name = x.name if number == count - 1 else ""
            self.at(end, functools.partial(self.landed, part, name))
        return time

    def landed(self, size: float, name: str, time: float) -> None:
        """What lands is written to shared memory. The last part is signalled."""
        m = self.machine
        end = self.units["shared"].serve(time, m.fills * size / m.shared)
        if name:
            self.at(end, name)

    def _store(self, actor: Actor, x: Store, time: float) -> float:
        m = self.machine
        sent = self.units["shared"].serve(time, x.bytes / m.shared)
        rate = m.adds if x.adds else m.l2
        taken = self.units["adds" if x.adds else "l2"].serve(time, x.bytes / rate)
        actor.read = max(sent, taken) + m.latency / 2
        actor.stored = actor.read + m.latency / 2
        if not x.adds:
            self.units["hbm"].serve(time, x.bytes / m.hbm_share())
        self.end = max(self.end, actor.stored)
        return time

    def _stored(self, actor: Actor, x: Stored, time: float) -> float:
        return max(time, actor.stored if x.complete else actor.read)


def simulate(
    machine: Machine, barriers: dict[str, Barrier], roles: dict[str, Iterator[Operation]]
) -> Simulation:
    simulation = Simulation(machine, barriers)
    simulation.run(roles)
    return simulation


def ring(name: str, stages: int, readers: int = 1, writers: int = 1) -> dict[str, Barrier]:
    """`name` says that a buffer is full, `-name` that it is empty again."""
    return {name: Barrier(writers), f"-{name}": Barrier(readers, stages)}
