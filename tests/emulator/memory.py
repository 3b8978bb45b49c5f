"""Global memory: the storage of CPU tensors at their real addresses; all else is a fault."""

from collections.abc import Callable

import numpy as np

from .faults import EmulatorError

Vector = np.ndarray
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def increment(old: Vector, limit: Vector) -> Vector:
    return old.dtype.type(0) if old >= limit else old + old.dtype.type(1)


def decrement(old: Vector, limit: Vector) -> Vector:
    return limit if old == 0 or old > limit else old - old.dtype.type(1)


ATOMIC: dict[str, Callable] = {
    "add": lambda old, value: old + value,
    "min": lambda old, value: min(old, value),
    "max": lambda old, value: max(old, value),
    "exch": lambda old, value: value,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": increment,
    "dec": decrement,
    "cas": lambda old, expected, value: value if old == expected else old,
}


def update(view: Vector, places: Vector, name: str, data: tuple, mask: Vector) -> Vector:
    """An atomic of each active lane in order; the old values."""
    old = np.zeros(mask.size, view.dtype)
    for lane in np.flatnonzero(mask):
        place = places[lane]
        old[lane] = view[place]
        view[place] = ATOMIC[name](view[place], *(values[lane] for values in data))
    return old


def aligned(address: Vector, mask: Vector, size: int, where: str) -> Vector:
    """The addresses, those of idle lanes replaced by that of an active one."""
    if np.count_nonzero(mask) != mask.size:
        address = np.where(mask, address, address[np.argmax(mask)])
    if np.count_nonzero(address & address.dtype.type(size - 1)):
        raise EmulatorError(f"misaligned {size}-byte access to {where} memory")
    return address


class GlobalMemory:
    def __init__(self, arrays: list[Vector]) -> None:
        """arrays: the bytes of each region, uint8."""
        self.regions = sorted(
            ((array.ctypes.data, array.ctypes.data + array.size, array) for array in arrays),
            key=lambda region: region[0],
        )
        self.prefetched = set[int]()  # addresses

    def region(self, low: int, high: int) -> tuple[int, Vector]:
        """(base, bytes) of the region that holds [low, high)."""
        for start, end, array in self.regions:
            if start <= low and high <= end:
                return start, array
        near = min(
            self.regions, key=lambda r: max(r[0] - high, low - r[1], 0), default=(0, 0, None)
        )
        raise EmulatorError(
            f"global access outside every tensor: [{low:#x}, {high:#x}); the nearest has "
            f"{near[1] - near[0]} bytes, and it begins {low - near[0]} bytes after its start"
        )

    def places(self, address: Vector, count: int, size: int, mask: Vector):
        """(index of the first element of each lane, view in units of `size` bytes)."""
        address = aligned(address, mask, size * count, "global")
        base, array = self.region(int(address.min()), int(address.max()) + size * count)
        view = array[: array.size // size * size].view(UNSIGNED[size])
        return ((address - np.uint64(base)) // np.uint64(size)).astype(np.int64), view

    def one_region(self, address: Vector, mask: Vector) -> bool:
        """Whether the lanes access the same tensor; the usual case."""
        active = address[mask]
        low, high = int(active.min()), int(active.max())
        return any(start <= low and high < end for start, end, _ in self.regions)

    def load(self, address: Vector, count: int, size: int, mask: Vector) -> list[Vector]:
        if not self.one_region(address, mask):
            return self.load_each(address, count, size, mask)
        places, view = self.places(address, count, size, mask)
        return [view[places + i] for i in range(count)]

    def store(self, address: Vector, data: tuple, size: int, mask: Vector) -> None:
        if not self.one_region(address, mask):
            self.store_each(address, data, size, mask)
            return
        places, view = self.places(address, len(data), size, mask)
        lanes = np.flatnonzero(mask)
        for i, values in enumerate(data):
            view[places[lanes] + i] = values[lanes]

    def load_each(self, address: Vector, count: int, size: int, mask: Vector) -> list[Vector]:
        """Lane by lane, for lanes in different tensors."""
        aligned(address, mask, size * count, "global")
        out = np.zeros((count, mask.size), UNSIGNED[size])
        for lane in np.flatnonzero(mask):
            raw = self.bytes_at(int(address[lane]), size * count)
            out[:, lane] = raw.view(UNSIGNED[size])
        return list(out)

    def store_each(self, address: Vector, data: tuple, size: int, mask: Vector) -> None:
        aligned(address, mask, size * len(data), "global")
        for lane in np.flatnonzero(mask):
            raw = self.bytes_at(int(address[lane]), size * len(data)).view(UNSIGNED[size])
            raw[:] = [values[lane] for values in data]

    def discard(self, address: Vector, size: int, mask: Vector) -> None:
        """What was there may be anything: all bits are set, which is NaN."""
        aligned(address, mask, size, "global")
        for lane in np.flatnonzero(mask):
            self.bytes_at(int(address[lane]), size)[:] = 0xFF

    def prefetch(self, address: Vector, mask: Vector) -> None:
        """Of what is there. It has no effect but to be noted."""
        for lane in np.flatnonzero(mask):
            self.region(int(address[lane]), int(address[lane]) + 1)
            self.prefetched.add(int(address[lane]))

    def atomic(self, address: Vector, name: str, data: tuple, mask: Vector) -> Vector:
        dtype = data[0].dtype
        places, view = self.places(address, 1, dtype.itemsize, mask)
        return update(view.view(dtype), places, name, data, mask)

    def bytes_at(self, address: int, count: int) -> Vector:
        base, array = self.region(address, address + count)
        return array[address - base : address - base + count]
