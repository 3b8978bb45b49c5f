"""Bulk copies: tiled tensor copies in both directions, plain bulk copies, and small cp.async.

A copy is queued when it is issued and done when the schedule completes it. Tiles are swizzled on
absolute shared addresses: granule ^= (granule >> 3) & (span / 16 - 1).
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .faults import EmulatorError, shared_name
from .gangs import Gang
from .memory import GlobalMemory
from .ptx import WINDOW
from .shared import GRANULE, POISON
from .tensormap import TOLD_BYTES, TensorMap
from .translate import PARAMETER_BASE

if TYPE_CHECKING:
    from .machine import Cta

Vector = np.ndarray
COMBINE: dict[str, Callable] = {"add": np.add, "min": np.minimum, "max": np.maximum}


@functools.lru_cache(4096)
def granules_of(size: int, swizzle: int, address: int) -> Vector:
    """The 16-byte rows of shared memory that hold a tile, in the order of its elements."""
    if address & (127 if swizzle else 15):
        raise EmulatorError(f"tile at {shared_name(address)}: misaligned for its swizzle")
    row = (address >> 4) + np.arange(-(-size // GRANULE))
    return row ^ ((row >> 3) & max(0, swizzle // GRANULE - 1))


def window(t: TensorMap, start: list[int]) -> tuple[list[int], list[int]] | None:
    """(first, end) inside the box of what lies inside the tensor; None if nothing does."""
    first = [max(0, -s) for s in start]
    end = [min(b, e - s) for b, e, s in zip(t.box, t.extents, start, strict=True)]
    return None if any(e <= f for f, e in zip(first, end, strict=True)) else (first, end)


def tensor_view(t: TensorMap, start: list[int], inside, memory: GlobalMemory) -> Vector:
    """The part of the tensor under the box, as an array with the outermost dimension first."""
    first, end = inside
    shape = [e - f for f, e in zip(first, end, strict=True)]
    offset = sum((s + f) * step for s, f, step in zip(start, first, t.strides, strict=True))
    address = t.address + offset
    span = sum((n - 1) * step for n, step in zip(shape, t.strides, strict=True)) + t.dtype.itemsize
    raw = memory.bytes_at(address, span)
    return np.ndarray(shape[::-1], t.dtype, raw, 0, t.strides[::-1])


def box_slices(inside) -> tuple[slice, ...]:
    return tuple(slice(f, e) for f, e in zip(*inside, strict=True))[::-1]


def read_tile(t: TensorMap, start: list[int], memory: GlobalMemory) -> Vector:
    """The bytes of a box; zeros outside the tensor."""
    tile = np.zeros(t.box[::-1], t.dtype)
    if inside := window(t, start):
        tile[box_slices(inside)] = tensor_view(t, start, inside, memory)
    return tile.reshape(-1).view(np.uint8)


def write_tile(t: TensorMap, start: list[int], raw: Vector, memory: GlobalMemory, mode) -> None:
    """Writes the part of a box that lies inside the tensor; mode: add, min, max or None."""
    if inside := window(t, start):
        tile = raw[: t.bytes].view(t.dtype).reshape(t.box[::-1])[box_slices(inside)]
        target = tensor_view(t, start, inside, memory)
        target[...] = COMBINE[mode](target, tile) if mode else tile


class Copies:
    """The copies of a CTA, and the bulk groups of each thread that issues them."""

    def __init__(self, cta: "Cta") -> None:
        self.cta = cta
        self.groups: dict[tuple[int, int], list[list[list[bool]]]] = {}

    def tensor_map(self, handle: int) -> TensorMap:
        at = int(handle) - PARAMETER_BASE
        if not 0 <= at < len(self.cta.parameter_bytes):
            raise EmulatorError("a tensor map that is no parameter of the kernel")
        handle_bytes = self.cta.parameter_bytes[at : at + TOLD_BYTES]
        if handle_bytes not in self.cta.maps:
            raise EmulatorError("a tensor map that no recorded atom stands for")
        return self.cta.maps[handle_bytes]

    def load(
        self, gang: Gang, target, handle, coordinates, barrier, ctas, pair: bool, mask: Vector
    ) -> None:
        """ctas: of the cluster, a bit for each that gets the tile; None: whose addresses are given.
        pair: The barrier may be that of the other CTA of a pair."""
        cta = self.cta
        for lane in gang.lanes(mask):
            t = self.tensor_map(handle[lane])
            start = [int(c[lane]) for c in coordinates]
            tile = functools.partial(read_tile, t, start, cta.memory)
            for window in windows(int(target[lane]), None if ctas is None else int(ctas[lane])):
                place, signal = (window + int(x[lane]) % WINDOW for x in (target, barrier))
                if pair:
                    signal = signal & ~WINDOW | int(barrier[lane]) & WINDOW
                elif ctas is None and signal != int(barrier[lane]):
                    raise EmulatorError("a TMA load that signals another CTA, and is of no pair")
                cells = granules_of(t.bytes, t.swizzle, place)
                self.land(gang, lane, cells, t.bytes, signal, tile)

    def give(self, gang: Gang, target, data: tuple, barrier, mask: Vector) -> None:
        """st.async: 16 bytes of each lane, which complete as many on the mbarrier."""
        size = 4 * len(data)
        for lane in gang.lanes(mask):
            place, signal = int(target[lane]), int(barrier[lane])
            if place % GRANULE or size != GRANULE:
                raise NotImplementedError("st.async of other than aligned vectors of 16 bytes")
            raw = np.array([values[lane] for values in data], np.uint32).view(np.uint8)
            cells = np.array([place // GRANULE])
            self.land(gang, lane, cells, size, signal, functools.partial(np.copy, raw))

    def bulk_load(self, gang: Gang, target, source, size, barrier, mask: Vector) -> None:
        for lane in gang.lanes(mask):
            count, address = int(size[lane]), int(source[lane])
            if count % 16 or address % 16:
                raise EmulatorError(f"bulk copy of {count} bytes from {address:#x}: misaligned")
            cells = granules_of(count, 0, int(target[lane]))
            read = functools.partial(self.cta.memory.bytes_at, address, count)
            self.land(gang, lane, cells, count, int(barrier[lane]), read)

    def land(self, gang: Gang, lane: int, cells: Vector, size: int, where: int, read) -> None:
        """Queues a copy into shared memory; it completes `size` bytes on the mbarrier."""
        cta, shared, warp = self.cta, self.cta.shared, int(gang.lane_warp[lane])
        shared.check(int(cells.min()) * GRANULE, int(cells.max()) * GRANULE + GRANULE)
        cta.reach(where)
        barrier = cta.sync.signalled(where, warp)
        if np.count_nonzero(shared.writes[cells]) or np.count_nonzero(shared.reads[cells]):
            place = shared_name(int(cells[0]) * GRANULE)
            raise EmulatorError(f"race: TMA load into {place}, where an access is in flight")
        published = cta.clocks.load_by_tma(cells, where, barrier.phase, warp)
        shared.granules[cells] = POISON  # until it lands
        shared.writes[cells] += 1

        def complete() -> None:
            cta.reach(where)
            shared.granules[cells] = read().reshape(-1, GRANULE)
            shared.writes[cells] -= 1
            np.maximum(barrier.gathered, published, out=barrier.gathered)
            barrier.transact(-size)

        cta.submit_copy(complete)

    def store(self, gang: Gang, handle, coordinates, source, mode, mask: Vector) -> None:
        lanes = gang.lanes(mask)
        if mode is None:
            lanes = first_of_equal(gang, lanes, (handle, source, *coordinates))
        for lane in lanes:
            t = self.tensor_map(handle[lane])
            start = [int(c[lane]) for c in coordinates]
            cells = granules_of(t.bytes, t.swizzle, int(source[lane]))

            def write(raw: Vector, t=t, start=start) -> None:
                write_tile(t, start, raw, self.cta.memory, mode)

            self.leave(gang, lane, cells, write)

    def bulk_store(self, gang: Gang, target, source, size, mode, dtype, mask: Vector) -> None:
        for lane in gang.lanes(mask):
            count, address = int(size[lane]), int(target[lane])
            if count % 16 or address % 16:
                raise EmulatorError(f"bulk copy of {count} bytes to {address:#x}: misaligned")
            cells = granules_of(count, 0, int(source[lane]))

            def write(raw: Vector, address=address, count=count) -> None:
                out = self.cta.memory.bytes_at(address, count).view(dtype)
                data = raw[:count].view(dtype)
                out[...] = COMBINE[mode](out, data) if mode else data

            self.leave(gang, lane, cells, write)

    def leave(self, gang: Gang, lane: int, cells: Vector, write: Callable) -> None:
        """Queues a copy out of shared memory, in the open group of its thread."""
        cta, shared, warp = self.cta, self.cta.shared, int(gang.lane_warp[lane])
        shared.check(int(cells.min()) * GRANULE, int(cells.max()) * GRANULE + GRANULE)
        if shared.writes[cells].any():
            raise EmulatorError("race: bulk store of shared memory that a TMA load is filling")
        shared.reads[cells] += 1
        cta.clocks.store_by_bulk(cells, warp)
        done = [False]
        self.groups.setdefault((warp, int(lane) % 32), [[]])[-1].append(done)

        def complete() -> None:
            write(shared.granules[cells].reshape(-1))
            shared.reads[cells] -= 1
            done[0] = True

        cta.submit_copy(complete)

    def commit(self, gang: Gang, mask: Vector) -> None:
        for lane in gang.lanes(mask):
            key = (int(gang.lane_warp[lane]), int(lane) % 32)
            if key in self.groups:
                self.groups[key].append([])

    def done(self, gang: Gang, keep: int, mask: Vector) -> bool:
        """Whether all but the `keep` most recent committed groups of each thread are complete."""
        for lane in gang.lanes(mask):
            warp = int(gang.lane_warp[lane])
            committed = self.groups.get((warp, int(lane) % 32), [[]])[:-1]
            old = committed[: max(0, len(committed) - keep)]
            if not all(done[0] for group in old for done in group):
                return False
            if old:
                self.cta.clocks.wait_bulk(warp, sum(len(group) for group in old))
        return True

    def small(self, gang: Gang, target, source, size: int, inputs, mask: Vector) -> None:
        """cp.async of 4, 8 or 16 bytes a lane, done at once; bytes past `given` are zeros."""
        shared = self.cta.shared
        for lane in gang.lanes(mask):
            start = int(target[lane])
            shared.check(start, start + size)
            count = size if inputs is None else int(inputs[lane])
            shared.bytes[start : start + size] = 0
            if count:
                data = self.cta.memory.bytes_at(int(source[lane]), count)
                shared.bytes[start : start + count] = data
        lanes = gang.lanes(mask)
        self.cta.clocks.store_shared(target[lanes] >> 4, gang.lane_warp[lanes], lanes)


def windows(address: int, ctas: int | None) -> list[int]:
    """Where the shared memory begins that an address lies in, or that of some CTAs."""
    if ctas is None:
        return [address // WINDOW * WINDOW]
    return [rank * WINDOW for rank in range(ctas.bit_length()) if ctas >> rank & 1]


def first_of_equal(gang: Gang, lanes: Vector, operands: tuple) -> Vector:
    """CuTe DSL lets whole warps issue one store; of equal ones the first is kept."""
    rows = np.stack([np.asarray(x)[lanes].astype(np.int64) for x in operands], 1)
    rows = np.column_stack([gang.lane_warp[lanes], rows])
    return lanes[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
