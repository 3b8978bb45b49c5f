"""mbarriers with phases and transaction bytes, and named barriers."""

import random
from typing import TYPE_CHECKING

import numpy as np

from .clocks import Clocks
from .faults import EmulatorError, shared_name
from .gangs import Gang, Vector, uniform

if TYPE_CHECKING:
    from .machine import Cta

MAX_ARRIVALS = (1 << 20) - 1
MAX_TRANSACTION = (1 << 20) - 1
Ticket = list[tuple["NamedBarrier", int]]


class MBarrier:
    """A phase completes when no arrival is pending and no transaction byte is outstanding."""

    def __init__(self, address: int, count: int, clocks: Clocks, warp: int) -> None:
        self.address, self.count = address, count
        self.pending, self.bytes, self.phase = count, 0, 0
        self.gathered, self.published = clocks.fresh(), clocks.fresh()
        self.owner = (warp, int(clocks.clock[warp, warp]))
        self.fenced = False  # may copies and the tensor core signal it?

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count
            np.maximum(self.published, self.gathered, out=self.published)

    def arrive(self, count: int, who: str) -> None:
        if count > self.pending:
            raise EmulatorError(
                f"{self}: {count} arrivals by {who}, {self.pending} pending in this phase"
            )
        self.pending -= count
        self.settle()

    def transact(self, count: int) -> None:
        """Expects more bytes, or (negative) completes some; either may come first."""
        self.bytes += count
        if abs(self.bytes) > MAX_TRANSACTION:
            raise EmulatorError(f"{self}: transaction count out of range")
        if count < 0:
            self.settle()

    def complete(self, parity: int) -> bool:
        """Whether the phase of this parity is: parity 1 passes on a fresh barrier."""
        return (self.phase & 1) != parity

    def __str__(self) -> str:
        return (
            f"mbarrier {shared_name(self.address)} (phase {self.phase}, pending {self.pending} of "
            f"{self.count}, {self.bytes} bytes outstanding)"
        )


class NamedBarrier:
    def __init__(self, name: str, clocks: Clocks) -> None:
        self.name = name
        self.arrived = self.generation = self.expected = 0
        self.gathered, self.published = clocks.fresh(), clocks.fresh()

    def __str__(self) -> str:
        return f"{self.name} ({self.arrived} of {self.expected} threads arrived)"


class Sync:
    """The barriers of a CTA."""

    def __init__(self, cta: "Cta", clocks: Clocks, threads: int, rng: random.Random | None) -> None:
        self.cta, self.clocks, self.threads, self.rng = cta, clocks, threads, rng
        self.barriers: dict[int, MBarrier] = {}
        self.named: dict[object, NamedBarrier] = {}

    def at(self, address: int, warp: int) -> MBarrier:
        barrier = self.barriers.get(int(address))
        self.cta.reach(int(address))
        if barrier is None:
            raise EmulatorError(f"no mbarrier was initialised at {shared_name(int(address))}")
        maker, epoch = barrier.owner
        if warp >= 0 and not self.clocks.knows(warp, maker, epoch):
            self.cta.report(f"{barrier}: used before its initialisation is visible to warp {warp}")
        return barrier

    def signalled(self, address: int, warp: int) -> MBarrier:
        """The barrier that asynchronous work of a warp will signal."""
        barrier = self.at(address, warp)
        if not barrier.fenced:
            self.cta.report(
                f"{barrier}: signalled by asynchronous work without fence.mbarrier_init or "
                "fence.proxy.async after its initialisation"
            )
        return barrier

    def fence(self, gang: Gang, mask: Vector) -> None:
        """Barriers that these warps initialised are there for asynchronous work too."""
        warps = set(gang.active(mask).tolist())
        for barrier in self.barriers.values():
            barrier.fenced |= barrier.owner[0] in warps

    def groups(self, gang: Gang, address: Vector, mask: Vector):
        """(barrier, active lanes that name it, their warps)."""
        lanes = gang.lanes(mask)
        places = address[lanes]
        for place in [places[0]] if (places == places[0]).all() else np.unique(places):
            chosen = lanes[places == place]
            warps = np.unique(gang.lane_warp[chosen])
            for warp in warps:
                self.at(place, warp)
            yield self.at(place, -1), chosen, warps

    def init(self, gang: Gang, address: Vector, count: Vector, mask: Vector) -> None:
        for lane in gang.leaders(mask):
            place, many = int(address[lane]), int(count[lane])
            if place & 7 or not 0 < many <= MAX_ARRIVALS:
                raise EmulatorError(f"mbarrier at {shared_name(place)} for {many} arrivals")
            self.barriers[place] = MBarrier(place, many, self.clocks, int(gang.lane_warp[lane]))

    def invalidate(self, address: Vector, mask: Vector) -> None:
        for place in np.unique(address[np.flatnonzero(mask)]):
            if self.barriers.pop(int(place), None) is None:
                raise EmulatorError(f"no mbarrier to invalidate at {shared_name(int(place))}")

    def arrive(self, gang: Gang, address: Vector, count: Vector, mask: Vector) -> None:
        for barrier, lanes, warps in self.groups(gang, address, mask):
            self.clocks.release(barrier.gathered, warps)
            self.arrive_lanes(barrier, gang, count[lanes], lanes)

    def arrive_lanes(self, barrier: MBarrier, gang: Gang, counts: Vector, lanes: Vector) -> None:
        total = int(counts.sum())
        if total <= barrier.pending:  # at once, or lane by lane where the phase ends between
            barrier.arrive(total, str(gang))
            return
        for count, lane in zip(counts, lanes, strict=True):
            barrier.arrive(int(count), f"warp {gang.lane_warp[lane]}")

    def expect(self, gang: Gang, address: Vector, size: Vector, mask: Vector, too: bool) -> None:
        """Expects transaction bytes; `too`: and arrives."""
        for barrier, lanes, warps in self.groups(gang, address, mask):
            for lane in lanes:
                barrier.transact(int(size[lane].astype(np.int32)))
                if too:
                    self.clocks.release(barrier.gathered, warps)
                    barrier.arrive(1, f"warp {gang.lane_warp[lane]}")

    def operands(self, address: Vector, parity: Vector, mask: Vector) -> tuple[MBarrier, int]:
        lanes = np.flatnonzero(mask)
        place = uniform(address, lanes, "the mbarrier of a wait")
        return self.at(place, -1), uniform(parity, lanes, "the parity of a wait") & 1

    def passed(self, gang: Gang, barrier: MBarrier, parity: int, mask: Vector) -> bool:
        warps = gang.active(mask)
        for warp in warps:
            self.at(barrier.address, warp)
        if not barrier.complete(parity):
            return False
        self.clocks.acquire(barrier.published, warps)
        return True

    def peek(self, gang: Gang, barrier: MBarrier, parity: int, mask: Vector) -> bool:
        """A try without a time limit, which may give up although the phase is complete."""
        if self.rng is not None and self.rng.random() < 0.5:
            return False
        return self.passed(gang, barrier, parity, mask)

    # Named barriers.
    def arrive_named(self, gang: Gang, number: Vector, threads: Vector, mask: Vector) -> Ticket:
        lanes = gang.lanes(mask)
        name = uniform(number, lanes, "the number of a barrier")
        expected = uniform(threads, lanes, "the thread count of a barrier") or self.threads
        if name > 15 or expected % 32:
            raise EmulatorError(f"bar {name} for {expected} threads")
        which = f" of CTA {gang.rank}" if gang.rank else ""
        return self.arrive_at(f"bar {name}{which}", expected, gang, mask)

    def arrive_cluster(self, gang: Gang, mask: Vector) -> None:
        self.arrive_at("barrier.cluster", self.threads * gang.block.cluster, gang, mask)

    def cluster_ticket(self, gang: Gang) -> Ticket:
        """A wait is for the phase that the warp's own arrival belongs to."""
        barrier = self.named["barrier.cluster"]
        done = barrier.arrived == 0
        return [(barrier, barrier.generation - done)]

    def arrive_at(self, name: str, expected: int, gang: Gang, mask: Vector) -> Ticket:
        barrier = self.named.setdefault(name, NamedBarrier(name, self.clocks))
        ticket: Ticket = []
        for warp in gang.active(mask):
            if barrier.arrived and barrier.expected != expected:
                raise EmulatorError(
                    f"{name}: {expected} threads expected here, {barrier.expected} elsewhere"
                )
            barrier.expected = expected
            if (barrier, barrier.generation) not in ticket:
                ticket.append((barrier, barrier.generation))
            barrier.arrived += 32
            self.clocks.release(barrier.gathered, np.array([warp]))
            if barrier.arrived >= expected:
                barrier.arrived = 0
                barrier.generation += 1
                barrier.published = barrier.gathered.copy()
        return ticket

    def passed_named(self, gang: Gang, ticket: Ticket, mask: Vector) -> bool:
        if any(barrier.generation == generation for barrier, generation in ticket):
            return False
        for barrier, _ in ticket:
            self.clocks.acquire(barrier.published, gang.active(mask))
        return True

    def check_exit(self) -> None:
        for barrier in self.barriers.values():
            if barrier.bytes:
                raise EmulatorError(f"{barrier} at exit")
        for named in self.named.values():
            if named.arrived:
                self.cta.report(f"{named} at exit")
