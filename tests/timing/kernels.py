"""From the schedule of a CTA to the time of a kernel: tiles, rounds, memory, the launch, power."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from .engine import UNITS, Machine, simulate

FEW, MANY = 6, 12  # steps that are simulated; longer tiles have more steps of the same cost


@dataclass(frozen=True)
class Costs:
    """Clocks of a launch: a step, a tile beside its steps, the first tile's beginning.

    busy: the share of a step in which each unit works.
    """

    step: float
    tile: float
    first: float
    busy: tuple[tuple[str, float], ...]
    mhz: float

    @property
    def bound(self) -> str:
        """The busiest unit, or the waits between roles if no unit is busy for 85 %."""
        name, share = max(self.busy, key=lambda x: x[1])
        return name if share >= 0.85 else f"waits ({name} {share:.0%})"

    def clocks(self, tiles: int, steps: int) -> float:
        return self.first + tiles * (self.tile + steps * self.step)


def costs(machine: Machine, schedule: Any) -> Costs:
    """A kernel's costs, by the clock that its power allows."""
    found = simulated(replace(machine, power=0.0), schedule)
    busy = dict(found.busy)
    mhz = machine.clock(busy["tensor"], busy["shared"])
    if mhz == machine.mhz:
        return found
    return simulated(replace(machine, power=0.0, mhz=float(round(mhz / 10) * 10)), schedule)


@cache
def simulated(machine: Machine, schedule: Any) -> Costs:
    """The same by a given clock, from four runs of a CTA."""
    ends, busy = {}, {}
    for tiles in (1, 2):
        for steps in (FEW, MANY):
            run = simulate(machine, schedule.barriers(), schedule.roles(tiles, steps))
            ends[tiles, steps] = run.end
            busy[tiles, steps] = {name: run.units[name].busy for name in UNITS}
    many = 2 * (MANY - FEW)
    step = (ends[2, MANY] - ends[2, FEW]) / many
    tile = ends[2, FEW] - ends[1, FEW] - FEW * step
    shares = tuple(
        (name, (busy[2, MANY][name] - busy[2, FEW][name]) / many / step) for name in UNITS
    )
    return Costs(step, tile, ends[1, FEW] - tile - FEW * step, shares, machine.mhz)


@dataclass(frozen=True)
class Problem:
    """batch, heads, length: queries; keys: their number; dim: of the head."""

    batch: int
    heads: int
    length: int
    dim: int
    keys: int = 0

    @property
    def count(self) -> int:
        return self.keys or self.length

    def flops(self, products: int) -> float:
        return 2.0 * products * self.batch * self.heads * self.length * self.count * self.dim

    def bytes(self, queries: float, keys: float) -> float:
        """Of matrices of queries and of keys, so many bytes an element."""
        rows = self.length * queries + self.count * keys
        return self.batch * self.heads * self.dim * rows


@dataclass(frozen=True)
class Prediction:
    seconds: float
    bound: str
    step: float
    mhz: float

    def tflops(self, problem: Problem, products: int) -> float:
        return problem.flops(products) / self.seconds / 1e12


def above(count: float, size: float) -> int:
    return math.ceil(count / size)


def timed(machine: Machine, clocks: float, size: float, found: Costs) -> Prediction:
    """The launch, and the longer of the work and the traffic of memory.

    `do_bench` leaves the L2 cache full of numbers that have to be written to memory first.
    """
    work, traffic = clocks / (found.mhz * 1e6), size / machine.hbm
    bound = "memory" if traffic > work else found.bound
    start = machine.launch + machine.dirty / machine.hbm
    return Prediction(start + max(work, traffic), bound, found.step, found.mhz)


def dealt(machine: Machine, schedule: Any, problem: Problem, rows: int) -> Prediction:
    """A forward with persistent CTAs, each with as many tiles of `rows` queries as another."""
    tiles = above(problem.length, rows)
    found = costs(machine, replace(schedule, row_tiles=tiles))
    rounds = above(tiles * problem.batch * problem.heads, machine.processors)
    clocks = found.clocks(rounds, above(problem.count, 128))
    return timed(machine, clocks, problem.bytes(4, 4), found)


def cut_rounds(machine: Machine, schedule: Any, problem: Problem) -> Prediction:
    """Our forward on Hopper: tiles of the last round are cut (`Rounds` in work.py)."""
    tiles, steps = above(problem.length, 64 * schedule.tiles), above(problem.count, 128)
    whole = replace(schedule, row_tiles=tiles)
    found = costs(machine, whole)
    rounds, left = divmod(tiles * problem.batch * problem.heads, machine.processors)
    clocks = found.clocks(rounds, steps)
    if left:
        counts = range(2, schedule.tiles + 1)
        pieces = max([1, *(x for x in counts if left * x <= machine.processors)])
        last = costs(machine, replace(whole, tiles=schedule.tiles + 1 - pieces))
        clocks += last.tile + steps * last.step
    return timed(machine, clocks, problem.bytes(4, 4), found)


def together(machine: Machine, schedule: Any, problem: Problem) -> Prediction:
    """Our backward on Hopper: the key tiles of a head at once, if that leaves few CTAs idle."""
    blocks, units = above(problem.count, 128), problem.batch * problem.heads
    groups = machine.processors // blocks
    rounds = above(blocks * units, machine.processors)
    if groups * blocks * 10 >= machine.processors * 9:
        rounds = above(units, groups)
    found = costs(machine, replace(schedule, key_tiles=blocks))
    clocks = found.clocks(rounds, above(problem.length, schedule.rows))
    return timed(machine, clocks, problem.bytes(6, 8), found)


def pairs(machine: Machine, schedule: Any, problem: Problem) -> Prediction:
    """Our backward on Blackwell by pairs of CTAs, each with 256 keys, else as on Hopper."""
    blocks, units, count = above(problem.count, 256), problem.batch * problem.heads, 2
    groups = machine.processors // count // blocks
    rounds = above(blocks * units, machine.processors // count)
    if groups * blocks * 10 >= machine.processors // count * 9:
        rounds = above(units, groups)
    found = costs(machine, replace(schedule, key_tiles=blocks))
    clocks = found.clocks(rounds, above(problem.length, 128))
    return timed(machine, clocks, problem.bytes(6, 8), found)


def sides(machine: Machine, schedules: tuple[Any, Any], problem: Problem) -> Prediction:
    """Our backward on Blackwell: a kernel for each side."""
    counts = (problem.count, problem.length)
    parts = []
    for schedule, own, streamed in zip(schedules, counts, counts[::-1], strict=True):
        blocks = above(own, 128)
        found = costs(machine, replace(schedule, key_tiles=blocks))
        rounds = above(blocks * problem.batch * problem.heads, machine.processors)
        size = problem.bytes(4, 8) if schedule.keys else problem.bytes(6, 4)
        parts.append(timed(machine, found.clocks(rounds, above(streamed, 128)), size, found))
    bound = ", ".join(x.bound for x in parts)
    step, mhz = sum(x.step for x in parts), sum(x.mhz for x in parts) / 2
    return Prediction(sum(x.seconds for x in parts), bound, step, mhz)
