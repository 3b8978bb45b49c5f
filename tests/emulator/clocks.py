"""Happens-before checking with vector clocks, nearly independent of the schedule that was run.

Actors: each warp; each warp's unfinished tcgen05.st and tcgen05.ld (joined by tcgen05.wait), bulk
stores (joined by cp.async.bulk.wait_group) and wgmma (joined by wgmma.wait_group); the tcgen05
pipe of each CTA, which works in order, also for a pair; and, for loads by TMA, the mbarrier that
they complete on, whose epochs are its phases.

A release (arrive, commit, bar, the issue of a load or a product) publishes a clock, an acquire (a
wait that succeeded, bar.sync) joins it. Accesses of tensor memory have a clock of their own: what
was acquired counts for them after tcgen05.fence::after_thread_sync, and they are published after
::before_thread_sync.

Each 16-byte granule of shared memory and each (lane quarter, column) of tensor memory remembers its
last write and the last read by each actor; an access that is not ordered after them is a race.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import shared_name

if TYPE_CHECKING:
    from .gangs import Gang

BARRIER_ACTORS = 96
QUARTERS = np.arange(4)
COLUMNS = 512
CELLS = 4 * COLUMNS  # of the tensor memory of a CTA
Vector = np.ndarray


class Shadow:
    """The last write and the last reads of an array of cells."""

    def __init__(self, cells: int, actors: int) -> None:
        self.writer = np.zeros(cells, np.int16)
        self.written = np.zeros(cells, np.int32)
        self.read_at = np.zeros((cells, actors), np.int32)
        self.was_read = np.zeros(cells, bool)

    def unordered_writes(self, cells: Vector, clock: Vector, row: Any) -> Vector | None:
        """The actors whose last write of a cell `clock[row]` does not know."""
        bad = clock[row, self.writer[cells]] < self.written[cells]
        return self.writer[cells][bad] if np.count_nonzero(bad) else None

    def read(self, cells: Vector, clock: Vector, row: Any, actor: Any, epoch: Any) -> Vector | None:
        """row: of the clock, one or one for each cell; actor and epoch likewise."""
        result = self.unordered_writes(cells, clock, row)
        self.read_at[cells, actor] = epoch
        self.was_read[cells] = True
        return result

    def write(
        self, cells: Vector, clock: Vector, row: Any, actor: Any, epoch: Any, record: bool = True
    ) -> Vector | None:
        result = self.unordered_writes(cells, clock, row)
        if result is None and np.count_nonzero(seen := self.was_read[cells]):
            late = self.read_at[cells[seen]] > clock[row if np.isscalar(row) else row[seen]]
            if late.any():
                result = np.nonzero(late.any(0))[0]
        if record:
            self.writer[cells], self.written[cells] = actor, epoch
            self.read_at[cells] = 0
            self.was_read[cells] = False
        return result


class Clocks:
    """fences: tcgen05.fence and wait::ld are asked for; else accesses have them."""

    def __init__(
        self, warps: int, granules: int, report: Callable[[str], None], fences: bool, ctas: int
    ) -> None:
        self.warps, self.report, self.fences = warps, report, fences
        self.pipe = 5 * warps
        actors = self.pipe + ctas + BARRIER_ACTORS
        self.clock = np.zeros((warps + ctas, actors), np.int32)  # the last rows: tcgen05 pipes
        self.of_tensor = self.clock.copy()  # what accesses of tensor memory are ordered after
        self.own = np.arange(warps)
        self.clock[self.own, self.own] = 1
        counts = (np.zeros(warps, np.int32) for _ in range(4))
        self.stores, self.loads, self.bulk, self.products = counts
        self.shared, self.tensor = Shadow(granules, actors), Shadow(ctas * CELLS, actors)
        # Of generic writes that no fence shows to the async proxy: 1 + the warp, its lanes.
        self.unfenced = np.zeros(granules, np.int16)
        self.unfenced_lanes = np.zeros(granules, np.uint32)
        self.barrier_actor: dict[int, int] = {}
        kinds = (
            "warp {}",
            "tcgen05.st of warp {}",
            "bulk store of warp {}",
            "tcgen05.ld of warp {}",
            "wgmma of warp {}",
        )
        self.names = [kind.format(w) for kind in kinds for w in range(warps)]
        self.names += [f"tcgen05 pipe of CTA {rank}" for rank in range(ctas)]

    def fresh(self) -> Vector:
        return np.zeros(self.clock.shape[1], np.int32)

    def check(self, what: str, found: Vector | None) -> None:
        if found is not None:
            names = sorted({self.names[actor] for actor in np.unique(found)})
            self.report(f"race: {what} is not ordered after the access by {', '.join(names)}")

    def actor_of(self, address: int) -> int:
        if address not in self.barrier_actor:
            if len(self.names) == self.clock.shape[1]:
                raise NotImplementedError(f"loads that complete on over {BARRIER_ACTORS} mbarriers")
            self.barrier_actor[address] = len(self.names)
            self.names.append(f"TMA load signalling mbarrier {shared_name(address)}")
        return self.barrier_actor[address]

    # Synchronisation.
    def release(self, into: Vector, warps: Vector) -> None:
        np.maximum(into, self.clock[warps].max(0), out=into)
        self.clock[warps, warps] += 1

    def acquire(self, clock: Vector, warps: Vector) -> None:
        self.clock[warps] = np.maximum(self.clock[warps], clock)
        if not self.fences:
            self.fence_after(warps)

    def knows(self, warp: int, actor: int, epoch: int) -> bool:
        return bool(self.clock[warp, actor] >= epoch)

    def wait_store(self, gang: "Gang", mask: Vector) -> None:
        warps = gang.active(mask)
        self.of_tensor[warps, self.warps + warps] = self.stores[warps]
        if not self.fences:
            self.fence_before(warps)

    def wait_load(self, gang: "Gang", mask: Vector) -> None:
        warps = gang.active(mask)
        self.of_tensor[warps, 3 * self.warps + warps] = self.loads[warps]

    def fence_before(self, warps: Vector) -> None:
        """tcgen05.fence::before_thread_sync: finished accesses of tensor memory may be released."""
        for actors in (self.warps + warps, 3 * self.warps + warps):
            self.clock[warps, actors] = self.of_tensor[warps, actors]

    def fence_after(self, warps: Vector) -> None:
        """tcgen05.fence::after_thread_sync: accesses of tensor memory follow what was acquired."""
        self.of_tensor[warps] = np.maximum(self.of_tensor[warps], self.clock[warps])

    def issued(self, warp: int) -> int:
        """How many products of warpgroups a warp has issued."""
        return int(self.products[warp])

    def wait_products(self, warp: int, issued: int) -> None:
        """So many have been waited for."""
        self.clock[warp, 4 * self.warps + warp] = issued

    def wait_bulk(self, warp: int, operations: int) -> None:
        """The warp's first bulk operations have been waited for."""
        actor = 2 * self.warps + warp
        self.clock[warp, actor] = max(self.clock[warp, actor], operations)

    def fence_proxy(self, gang: "Gang", mask: Vector) -> None:
        """A lane fences what it wrote itself."""
        lanes = gang.lanes(mask)
        for warp in gang.active(mask):
            bits = lane_bits(lanes[gang.lane_warp[lanes] == warp])
            cells = np.flatnonzero(self.unfenced == warp + 1)
            self.unfenced_lanes[cells] &= ~np.bitwise_or.reduce(bits)
            self.unfenced[cells[self.unfenced_lanes[cells] == 0]] = 0

    # Accesses to shared memory; cells are granules.
    def load_shared(self, cells: Vector, warp: Vector) -> None:
        result = self.shared.read(cells, self.clock, warp, warp, self.clock[warp, warp])
        if result is not None:
            self.check(f"ld.shared by {warps_text(warp)}", result)

    def store_shared(self, cells: Vector, warp: Vector, lanes: Vector) -> None:
        """lanes: numbers in the gang."""
        result = self.shared.write(cells, self.clock, warp, warp, self.clock[warp, warp])
        if result is not None:
            self.check(f"st.shared by {warps_text(warp)}", result)
        self.unfenced_lanes[cells[self.unfenced[cells] != warp + 1]] = 0
        self.unfenced[cells] = warp + 1
        np.bitwise_or.at(self.unfenced_lanes, cells, lane_bits(lanes))

    def touch_by_proxy(self, cells: Vector, what: str) -> None:
        if (writer := self.unfenced[cells].max(initial=0)) > 0:
            self.report(
                f"{what} shared memory that warp {writer - 1} wrote without fence.proxy.async"
            )

    def load_by_tma(self, cells: Vector, address: int, phase: int, warp: int) -> Vector:
        """What landing must publish on the barrier at `address`, now in `phase`."""
        actor, epoch = self.actor_of(address), phase + 1
        result = self.shared.write(cells, self.clock, warp, actor, epoch)
        self.check(f"TMA load issued by warp {warp}", result)
        self.touch_by_proxy(cells, "a TMA load overwrites")
        self.unfenced[cells] = 0
        published = self.clock[warp].copy()
        published[actor] = max(published[actor], epoch)
        self.clock[warp, warp] += 1
        return published

    def store_by_bulk(self, cells: Vector, warp: int) -> None:
        self.bulk[warp] += 1
        self.touch_by_proxy(cells, "a bulk store reads")
        actor = 2 * self.warps + warp
        result = self.shared.read(cells, self.clock, warp, actor, self.bulk[warp])
        self.check(f"bulk store issued by warp {warp}", result)

    def product(self, warp: int, operands: list[Vector]) -> None:
        """What a product of a warpgroup reads, for one of its warps."""
        self.products[warp] += 1
        actor = 4 * self.warps + warp
        for cells in operands:
            self.touch_by_proxy(cells, "wgmma reads")
            result = self.shared.read(cells, self.clock, warp, actor, self.products[warp])
            self.check(f"wgmma by warp {warp}", result)

    # The tensor core; cells of tensor memory are CELLS * CTA + 512 * quarter + column.
    def multiply(
        self, warp: int, rank: int, operands: list[Vector], a: Vector | None, d: Vector
    ) -> None:
        """rank: of the CTA that issues it."""
        row, actor = self.warps + rank, self.pipe + rank
        for clock in (self.clock, self.of_tensor):
            np.maximum(clock[row], clock[warp], out=clock[row])
        self.clock[warp, warp] += 1
        self.clock[row, actor] += 1
        self.of_tensor[row, actor] = epoch = self.clock[row, actor]
        for cells in operands:
            self.touch_by_proxy(cells, "tcgen05.mma reads")
            result = self.shared.read(cells, self.clock, row, actor, epoch)
            self.check("tcgen05.mma of a shared operand", result)
        if a is not None:
            result = self.tensor.read(a, self.of_tensor, row, actor, epoch)
            self.check("tcgen05.mma of an operand in tensor memory", result)
        result = self.tensor.write(d, self.of_tensor, row, actor, epoch)
        self.check(f"tcgen05.mma into columns from {d[0] % COLUMNS}", result)

    def commit(self, warp: int, rank: int) -> Vector:
        row = self.clock[self.warps + rank]
        np.maximum(row, self.clock[warp], out=row)
        self.clock[warp, warp] += 1
        return row.copy()

    def load_tensor(self, cells: Vector, warp: Vector) -> None:
        warps = np.unique(warp)
        self.loads[warps] += 1
        actor = 3 * self.warps + warp
        result = self.tensor.read(cells, self.of_tensor, warp, actor, self.loads[warp])
        if result is not None:
            self.check(f"tcgen05.ld by {warps_text(warp)}", result)
        if not self.fences:
            self.of_tensor[warps, 3 * self.warps + warps] = self.loads[warps]
            self.fence_before(warps)

    def store_tensor(self, cells: Vector, warp: Vector) -> None:
        self.stores[np.unique(warp)] += 1
        actor = self.warps + warp
        result = self.tensor.write(cells, self.of_tensor, warp, actor, self.stores[warp])
        if result is not None:
            self.check(f"tcgen05.st by {warps_text(warp)}", result)

    def free_tensor(self, warp: int, rank: int, column: int, count: int) -> None:
        cells = tensor_cells(QUARTERS, np.zeros(4, int) + column, count, rank)
        known = np.maximum(self.clock, self.of_tensor)
        result = self.tensor.write(cells, known, warp, warp, 0, record=False)
        self.check(
            f"tcgen05.dealloc of columns [{column}, {column + count}) by warp {warp}", result
        )


def lane_bits(lanes: Vector) -> Vector:
    """One bit for each lane, by its number in the warp."""
    return np.uint32(1) << (lanes % 32).astype(np.uint32)


def warps_text(warps: Vector) -> str:
    names = np.unique(warps)
    return f"warp {names[0]}" if len(names) == 1 else f"warps {names[0]} to {names[-1]}"


def tensor_cells(quarters: Vector, columns: Vector, count: int, rank: int) -> Vector:
    """For each (quarter, first column) the cells of `count` columns of a CTA, flattened."""
    start = rank * CELLS + np.asarray(quarters) * COLUMNS + np.asarray(columns)
    return (start[:, None] + np.arange(count)).reshape(-1)
