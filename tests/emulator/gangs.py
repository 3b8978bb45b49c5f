"""Gangs: warps that run in step, as one vector of lanes, until they go different ways."""

from typing import TYPE_CHECKING

import numpy as np

from .faults import EmulatorError
from .lanes import by_warp
from .ptx import WINDOW

if TYPE_CHECKING:
    from .machine import Block

Vector = np.ndarray


class Gang:
    """warps: their numbers in the cluster, all of one CTA. A gang is split, never joined."""

    def __init__(self, warps: list[int], block: "Block") -> None:
        self.warps = np.array(warps)
        self.size = 32 * len(warps)
        self.lane_warp = np.repeat(self.warps, 32)
        self.block, self.rank = block, warps[0] // block.warps
        self.window = np.uint32(self.rank * WINDOW)  # where its shared memory begins
        self.all_lanes = np.arange(self.size)
        self.first_lanes = self.all_lanes[::32]

    def quarters(self, warps: Vector) -> Vector:
        """The quarters of the lanes of tensor memory that some warps may access."""
        return (warps - self.rank * self.block.warps) % 4

    def __str__(self) -> str:
        first, last = self.warps[0], self.warps[-1]
        return f"warp {first}" if first == last else f"warps {first} to {last}"

    def active(self, mask: Vector) -> Vector:
        """The warps with active lanes."""
        if np.count_nonzero(mask) == self.size:
            return self.warps
        return self.warps[by_warp(mask).any(1)]

    def lanes(self, mask: Vector) -> Vector:
        """The active lanes."""
        return self.all_lanes if np.count_nonzero(mask) == self.size else np.flatnonzero(mask)

    def leaders(self, mask: Vector) -> Vector:
        """The first active lane of each active warp."""
        if np.count_nonzero(mask) == self.size:
            return self.first_lanes
        rows = by_warp(mask)
        return (rows.argmax(1) + self.first_lanes)[rows.any(1)]

    def special(self, name: str) -> Vector:
        """A special register in every lane."""
        lane = np.arange(32)
        block, rank = self.block, self.rank
        thread = (32 * (self.warps[:, None] - rank * block.warps) + lane).reshape(-1)
        x, y, z = block.threads
        first, *others = block.index
        index = (first + rank, *others)
        root, _, axis = name[1:].partition(".")
        i = "xyz".find(axis) if axis else 0
        tables = {
            "tid": (thread % x, thread // x % y, thread // (x * y)),
            "laneid": (thread % 32,),
            "warpid": (thread // 32,),
            "nwarpid": (-(-x * y * z // 32),),
            "ctaid": index, "nctaid": block.grid, "ntid": block.threads,
            "cluster_nctaid": (block.cluster, 1, 1), "cluster_ctaid": (rank, 0, 0),
            "cluster_ctarank": (rank,), "cluster_nctarank": (block.cluster,),
            "is_explicit_cluster": (block.cluster > 1,),
            "smid": (index[0],), "clock": (0,), "clock64": (0,),
            "clusterid": (first // block.cluster, *others),
            "nclusterid": (block.grid[0] // block.cluster, *block.grid[1:]),
        }  # fmt: skip
        values = tables.get(root)
        if values is None:
            raise NotImplementedError(f"special register {name}")
        return np.broadcast_to(np.asarray(values[i], np.uint32), self.size).copy()


def uniform(values: Vector, lanes: Vector, what: str) -> int:
    """The value of an operand that must be the same in all these lanes."""
    picked = values[lanes]
    if (picked != picked[0]).any():
        raise EmulatorError(f"{what} must be the same in all active lanes")
    return int(picked[0])


def whole_warps(mask: Vector) -> Vector:
    """Which warps of the gang are active."""
    rows = by_warp(mask)
    if (rows.any(1) != rows.all(1)).any():
        raise EmulatorError("an instruction of whole warps, by some lanes of one")
    return rows.all(1)


def split(
    gang: Gang, keys: list[tuple[int, ...]], pend: dict[int, Vector], registers: tuple
) -> list[tuple[Gang, tuple]]:
    """The gangs that a gang parts into, with the state that each starts from."""
    parts = []
    for key in sorted(set(keys)):
        rows = np.array([i for i, other in enumerate(keys) if other == key])
        lanes = (32 * rows[:, None] + np.arange(32)).reshape(-1)
        mine = {block: mask[lanes] for block, mask in pend.items()}
        mine = {block: mask for block, mask in mine.items() if mask.any()}
        if not mine:
            continue  # these warps are done
        result = picked(registers, lanes)
        member = Gang([int(w) for w in gang.warps[rows]], gang.block)
        parts.append((member, state(mine, result)))
    return parts


def picked(registers: tuple, lanes: Vector) -> list[Vector]:
    """The lanes of every register. Most registers are one shared zero then, and most parts are runs
    of warps, of which a view will do."""
    run = lanes[-1] - lanes[0] + 1 == lanes.size
    index = (..., slice(lanes[0], lanes[-1] + 1) if run else lanes)
    seen: dict[int, Vector] = {}
    for register in registers:
        if id(register) not in seen:
            seen[id(register)] = register[index]
    return [seen[id(register)] for register in registers]


def state(pend: dict[int, Vector], registers: list[Vector] | None) -> tuple:
    """What a generator starts from: nobody at the lowest block, where it will find who waits."""
    block = min(pend)
    return block, np.zeros_like(pend[block]), pend, registers
