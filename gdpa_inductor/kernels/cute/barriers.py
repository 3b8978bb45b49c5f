"""mbarriers between warps, rings of buffers, and the one rule for their phases.

A place in a ring is a stage and the parity of its round. Round n of a stage, counted from 0, is
full when its `full` barrier has completed n + 1 phases. A producer may fill it when its `empty`
barrier has completed n phases. So a producer waits for the inverted parity, and this wait passes at
once on a fresh barrier.

There are two ways to name a place:

    Cursor      The stage and the parity, carried through loops. `Barriers` takes it.
    a number    The number of a step. `Signal` computes stage and parity from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import cutlass
from cutlass import Constexpr, Int32, Uint32, cute

from .values import Fixed, select

LEADING = 0  # the rank of the CTA of a pair that issues products
ARRIVE = "mbarrier.arrive{}.shared::cluster.b64 _, [{{$r0}}];"


def leads():
    """Whether this CTA is the leading one of its pair."""
    return cute.arch.block_idx_in_cluster() == LEADING


@dataclass(frozen=True)
class Cursor:
    """A place in a ring: stage and parity. `next()` is the next place."""

    stages: Constexpr
    index: Any = field(default_factory=lambda: Int32(0))
    phase: Any = field(default_factory=lambda: Int32(0))

    def next(self) -> "Cursor":
        if self.stages == 1:
            return Cursor(1, self.index, self.phase ^ 1)
        index = self.index + 1
        wraps = index == self.stages
        phase = select(wraps, self.phase ^ 1, self.phase)
        return Cursor(self.stages, select(wraps, 0, index), phase)


def but(items: tuple[Any, ...], t: int, item) -> tuple[Any, ...]:
    """The same with another item for query tile t."""
    return (*items[:t], item, *items[t + 1 :])


@dataclass(frozen=True)
class Mbarriers(Fixed):
    """One mbarrier for each stage, in shared memory."""

    pointer: Any
    stages: int
    arrivals: int  # how many complete a phase
    ctas: int = 1  # of a pair of CTAs 2, if both signal, or are signalled

    def init(self) -> None:
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.pointer + stage, self.arrivals)

    def at(self, place):
        raise NotImplementedError

    def phase(self, place):
        raise NotImplementedError

    def wait(self, place) -> None:
        cute.arch.mbarrier_wait(self.at(place), self.phase(place))

    def wait_before(self, place) -> None:
        """Wait for the round before this one, as a producer does."""
        cute.arch.mbarrier_wait(self.at(place), self.phase(place) ^ 1)

    @cute.jit
    def arrive_once(self, place):
        """One arrival for a whole warp, ordered after all that its lanes did before."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.at(place))

    @cute.jit
    def expect(self, place, size: Constexpr):
        """Have the phase complete when TMA has brought `size` bytes. The load warp calls it."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.at(place), size)


class Barriers(Mbarriers):
    """mbarriers whose places are cursors."""

    def at(self, place: Cursor):
        return self.pointer + place.index

    def phase(self, place: Cursor):
        return place.phase

    def of(self, number) -> "Barriers":
        """The barrier with this number, if `pointer` begins an array of single barriers."""
        return Barriers(self.pointer + number, 1, self.arrivals)

    def arrive(self, place: Cursor) -> None:
        # Each lane that calls it arrives.
        cute.arch.mbarrier_arrive(self.at(place))


class Signal(Mbarriers):
    """mbarriers whose places are numbers of steps, counted from 0.

    Step i uses stage i % stages, in round i // stages. So no role carries a parity.

    Of a pair of CTAs each has all mbarriers. The leading one issues the products of both. So it
    waits for the loads of both, which signal its mbarriers, and for threads of both, which arrive
    there. Products that are complete are signalled to both.
    """

    @cute.jit
    def arrive_once(self, place, written: Constexpr = False):
        # written: The warp wrote to the memory of the other CTA. The wider scope is slow, and what
        # is in tensor memory has fences of its own.
        if cutlass.const_expr(self.ctas == 1):
            Mbarriers.arrive_once(self, place)
        else:
            arrive = ARRIVE.format(".release.cluster" if written else "")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                there = cute.arch.map_dsmem_ptr(self.at(place), LEADING).toint()
                cute.arch.inline_ptx(arrive, read_only_args=[there])

    @cute.jit
    def expect(self, place, size: Constexpr):
        # TMA brings as many bytes to each CTA of a pair.
        if cutlass.const_expr(self.ctas == 1):
            Mbarriers.expect(self, place, size)
        elif leads():
            Mbarriers.expect(self, place, size * self.ctas)

    def index(self, step):
        """The stage. Steps are never negative, and an unsigned remainder is cheaper."""
        return Int32(Uint32(step) % self.stages) if self.stages > 1 else 0

    def at(self, step):
        return self.pointer + self.index(step)

    def phase(self, step):
        return Int32(Uint32(step) // self.stages & 1 if self.stages > 1 else step & 1)


class Ring(Fixed):
    """A ring of buffers that producers fill and consumers free."""

    def __init__(self, barriers, stages: int, producers: int, consumers: int) -> None:
        self.stages = stages
        # `barriers` points to 2 mbarriers per stage. The numbers are those of a phase's arrivals.
        self.full = Barriers(barriers, stages, producers)
        self.empty = Barriers(barriers + stages, stages, consumers)

    def init(self) -> None:
        self.full.init()
        self.empty.init()

    def start(self) -> Cursor:
        return Cursor(self.stages)

    def wait_for_room(self, at: Cursor) -> None:
        self.empty.wait_before(at)

    @cute.jit
    def wait_all(self, cursor: Cursor):
        """Wait until every buffer is free, so that no arrival is under way when the CTA ends."""
        for _ in cutlass.range(self.stages, unroll=1):
            self.empty.wait_before(cursor)
            cursor = cursor.next()


class Loan(Ring):
    """A ring whose buffers belong to their consumers.

    A consumer lends each buffer to the producer. So `empty` gets arrivals before every round,
    including the first.
    """

    def wait_for_room(self, at: Cursor) -> None:
        self.empty.wait(at)

    def wait_all(self, cursor: Cursor) -> None:
        """Nothing to do: the producer has waited for every arrival."""


def initialize(channels: Iterable[Any]) -> None:
    """Initialise rings and barriers. One warp does it, and the others wait for it."""
    with cute.arch.elect_one():
        for channel in channels:
            channel.init()
    cute.arch.mbarrier_init_fence()
