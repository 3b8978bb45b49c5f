"""Shared memory: bytes, the marks of asynchronous accesses in flight, generic loads and stores."""

from typing import TYPE_CHECKING

import numpy as np

from .clocks import Clocks
from .faults import EmulatorError, shared_name
from .gangs import Gang, whole_warps
from .memory import UNSIGNED, aligned, update
from .ptx import SHARED_BASE, WINDOW

if TYPE_CHECKING:
    from .machine import Cta

Vector = np.ndarray
GRANULE = 16
MOST = SHARED_BASE + 227 * 1024  # what a CTA may have on sm_100
POISON = 0xFF  # NaN in every float format


class SharedMemory:
    """granules: the bytes in rows of 16; writes, reads: asynchronous accesses in flight by row.
    ctas: of the cluster, each with its window."""

    def __init__(self, cta: "Cta", clocks: Clocks, size: int, ctas: int = 1) -> None:
        self.cta, self.clocks = cta, clocks
        self.end = SHARED_BASE + size
        if self.end > MOST:
            raise EmulatorError(f"{size} bytes of shared memory; a CTA may have {MOST}")
        own = -(-max(self.end, SHARED_BASE) // 128) * 128
        self.bytes = np.full((ctas - 1) * WINDOW + own, POISON, np.uint8)
        self.granules = self.bytes.reshape(-1, GRANULE)
        self.writes = np.zeros(len(self.granules), np.int16)
        self.reads = np.zeros(len(self.granules), np.int16)

    def check(self, low: int, high: int) -> None:
        """[low, high) lies in the memory of a CTA that has not ended."""
        if len(self.cta.left) > 1:
            self.cta.reach(low)
        window = low // WINDOW * WINDOW
        low, high = low - window, high - window
        if low < SHARED_BASE or high > self.end or window >= self.bytes.size:
            raise EmulatorError(
                f"shared access [{shared_name(low)}, {shared_name(high)}) outside the "
                f"{self.end - SHARED_BASE} bytes of the launch"
            )

    def cells(self, gang: Gang, address: Vector, size: int, mask: Vector):
        """(addresses, granule of each active lane, its warp)."""
        address = aligned(address, mask, size, "shared")
        self.check(int(address.min()), int(address.max()) + size)
        if np.count_nonzero(mask) == mask.size:
            return address, address >> 4, gang.lane_warp
        lanes = np.flatnonzero(mask)
        return address, address[lanes] >> 4, gang.lane_warp[lanes]

    def load(self, gang: Gang, address: Vector, count: int, size: int, mask: Vector):
        address, granules, warps = self.cells(gang, address, count * size, mask)
        if np.count_nonzero(self.writes[granules]):
            self.race("ld.shared", address, "an asynchronous write to it")
        self.clocks.load_shared(granules, warps)
        view = self.bytes.view(UNSIGNED[size])
        places = address // np.uint32(size)
        return [view[places + np.uint32(i)] for i in range(count)]

    def load_matrices(self, gang: Gang, address: Vector, trans: bool, mask: Vector) -> Vector:
        """Four matrices. Lane l names row l % 8 of matrix l // 8, 16 bytes, and gets word l % 4 of
        row l // 4 of each. trans: of each transposed."""
        whole_warps(mask)
        words = np.stack(self.load(gang, address, 4, 4, mask)).reshape(4, -1, 4, 8)
        words = words.transpose(2, 1, 3, 0)
        return (turned(words) if trans else words).reshape(4, -1)

    def store_matrices(
        self, gang: Gang, address: Vector, data: tuple, trans: bool, mask: Vector
    ) -> None:
        """The way back."""
        whole_warps(mask)
        words = np.stack(data).reshape(4, -1, 8, 4)
        words = (turned(words) if trans else words).transpose(3, 1, 0, 2)
        self.store(gang, address, tuple(words.reshape(4, -1)), 4, mask)

    def store(self, gang: Gang, address: Vector, data: tuple, size: int, mask: Vector) -> None:
        address, granules, warps = self.cells(gang, address, len(data) * size, mask)
        if np.count_nonzero(self.writes[granules]) or np.count_nonzero(self.reads[granules]):
            self.race("st.shared", address, "an asynchronous access to it")
        lanes = gang.lanes(mask)
        self.clocks.store_shared(granules, warps, lanes)
        view = self.bytes.view(UNSIGNED[size])
        places = address[lanes] // np.uint32(size)
        for i, values in enumerate(data):
            view[places + np.uint32(i)] = values[lanes]

    def atomic(self, gang: Gang, address: Vector, name: str, data: tuple, mask: Vector) -> Vector:
        dtype = data[0].dtype
        address, granules, _ = self.cells(gang, address, dtype.itemsize, mask)
        if np.count_nonzero(self.writes[granules]) or np.count_nonzero(self.reads[granules]):
            self.race("atom.shared", address, "an asynchronous access to it")
        return update(self.bytes.view(dtype), address // dtype.itemsize, name, data, mask)

    def race(self, what: str, address: Vector, other: str) -> None:
        raise EmulatorError(f"race: {what} of {shared_name(int(address[0]))}, {other} is in flight")


def turned(words: Vector) -> Vector:
    """8 x 8 numbers of 16 bits, transposed. In and out: [.., 8 rows, 4 words]."""
    numbers = np.ascontiguousarray(words).view(np.uint16).swapaxes(-1, -2)
    return np.ascontiguousarray(numbers).view(np.uint32)
