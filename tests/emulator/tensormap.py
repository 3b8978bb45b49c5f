"""Tensor maps as objects: what a tiled bulk tensor copy moves, known from the call that asked for
it.

A tensor map in a kernel's parameters is an opaque block of bytes. Which tensor, box and swizzle it
stands for is known where its atom is made: `Shape` holds what is static there, and `TensorMap`
joins it with the address, extents and strides of a launch.
"""

import math
from dataclasses import dataclass

import numpy as np

from .faults import EmulatorError

MAX_BOX = 256  # elements of a box along one dimension, PTX ISA
TOLD_BYTES = 64  # of the block that stands for a map; host code of 4.8.1 leaves the rest unset
Leaf = tuple[int, int]  # (scale, dimension of the tensor map); scale 0: no dimension


@dataclass(frozen=True)
class TensorMap:
    """address; dimensions and byte strides innermost first; box in elements; swizzle span in bytes.
    address; dimensions and byte strides innermost first; box in elements; swizzle span in bytes."""

    address: int
    dtype: np.dtype
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int  # 0, 32, 64 or 128

    @property
    def bytes(self) -> int:
        return math.prod(self.box) * self.dtype.itemsize

    def check(self) -> None:
        """What the hardware asks of a tensor map. EmulatorError if this one is none."""
        size = self.dtype.itemsize
        row = self.box[0] * size
        outer = [s for s, e in zip(self.strides[1:], self.extents[1:], strict=True) if e > 1]
        wrong = [
            (self.address % 16, "the address is no multiple of 16 bytes"),
            (self.strides[0] != size, "the innermost dimension is not contiguous"),
            (any(s % 16 or s >= 1 << 40 for s in outer), "a stride is no multiple of 16 bytes"),
            (any(not 0 < e <= 1 << 32 for e in self.extents), "an extent is out of range"),
            (any(not 0 < b <= MAX_BOX for b in self.box), "the box is out of range"),
            (row % 16, "a row of the box is no multiple of 16 bytes"),
            (self.swizzle and row > self.swizzle, "a row of the box exceeds the swizzle span"),
            (not 1 <= len(self.box) <= 5, "there are 1 to 5 dimensions"),
        ]
        for bad, why in wrong:
            if bad:
                raise EmulatorError(f"tensor map: {why}: {self}")


@dataclass(frozen=True)
class Shape:
    """What is static about a tensor map: element type, box, swizzle, and for every leaf mode of the
    tensor which dimension of the map it advances, and by how much."""

    dtype: np.dtype
    box: tuple[int, ...]
    swizzle: int
    leaves: tuple[Leaf, ...]

    def bind(self, address: int, extents: list[int], strides: list[int]) -> TensorMap:
        """The map of a tensor at `address` with these extents and strides (elements) of its leaves.

        Leaves that share a dimension are merged: its stride is their greatest common divisor.
        """
        dims = [(1, 0)] * len(self.box)
        for (scale, dim), extent, stride in zip(self.leaves, extents, strides, strict=True):
            if not scale or extent == 1:
                continue
            have, step = dims[dim]
            common = math.gcd(step, stride)
            span = (have - 1) * step + (extent - 1) * stride
            dims[dim] = (span // common + 1 if common else 1, common)
        size = self.dtype.itemsize
        value = TensorMap(
            address=address,
            dtype=self.dtype,
            extents=tuple(extent for extent, _ in dims),
            strides=tuple((step if have > 1 else 1) * size for have, step in dims),
            box=self.box,
            swizzle=self.swizzle,
        )
        value.check()
        return value


def box_of(offsets: np.ndarray, coordinates: np.ndarray) -> tuple[int, ...]:
    """The largest box that one copy can move.

    offsets: [N] where the tile's elements lie in shared memory; coordinates: [N, rank] their places
    in the tensor map. The box is read off the contiguous run at the start of shared memory.
    """
    order = np.argsort(offsets, kind="stable")
    coordinates = coordinates[order] - coordinates[order[0]]
    contiguous = int((offsets[order] == np.arange(len(order))).cumprod().sum())
    rank = coordinates.shape[1]
    box, run = [1] * rank, 1
    for dim in range(rank):
        unit = np.eye(rank, dtype=coordinates.dtype)[dim]
        extent = 1
        while run * (extent + 1) <= contiguous and extent < MAX_BOX:
            block = coordinates[run * extent : run * (extent + 1)]
            if (block != coordinates[:run] + extent * unit).any():
                break
            extent += 1
        box[dim], run = extent, run * extent
    return tuple(box)
