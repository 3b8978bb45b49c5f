"""Products of warpgroups (wgmma). Each warp multiplies its 16 of the 64 rows.

Sums, and an operand A that comes from registers, lie in the registers of a warp so. Lane l has of

    register r of the sums    row l // 4 + 8 (r // 2 % 2),  column 8 (r // 4) + 2 (l % 4) + r % 2
    register r of A           row l // 4 + 8 (r % 2),  k = 8 (r // 2) + 2 (l % 4) and the next

A product is computed when it is issued. In flight, until wgmma.wait_group, is what it reads of
shared memory. That nobody touches its registers meanwhile is not checked: ptxas sees to it.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from .descriptors import operand, operand_granules, widened
from .faults import EmulatorError
from .gangs import Gang, Vector, uniform, whole_warps
from .shared import GRANULE

if TYPE_CHECKING:
    from .machine import Cta

ROWS, K = 16, 16  # of a warp; of one instruction, 16-bit operands
VERSION = 0  # of a shared-memory descriptor for sm_90


class Products:
    """The products of a CTA, and the groups of each warp that are in flight: (how many products
    there were, what they read)."""

    def __init__(self, cta: "Cta") -> None:
        self.cta = cta
        self.open: dict[int, list[Vector]] = {}
        self.groups: dict[int, deque[tuple[int, list[Vector]]]] = {}

    def multiply(
        self, gang: Gang, d: tuple, a: Vector | tuple, b: Vector, accumulate: Vector,
        form: tuple[int, str, bool, bool], mask: Vector,
    ) -> Vector:  # fmt: skip
        """d: the sums before, register by register; returns those after. a: a descriptor, or four
        registers; b: a descriptor. form: columns, format, whether A, and B, are MN-major."""
        n, name, a_mn_major, b_mn_major = form
        whole, before, shared = whole_warps(mask), np.stack(d), self.cta.shared.granules
        after = before.copy()
        for slot in np.flatnonzero(whole):
            warp, lanes = int(gang.warps[slot]), np.arange(32 * slot, 32 * slot + 32)
            place, window = uniform(b, lanes, "a descriptor of wgmma"), int(gang.window) // GRANULE
            cells = [operand_granules(place, n, b_mn_major, VERSION) + window]
            right = operand(shared[cells[0]], n, b_mn_major, name)
            if isinstance(a, tuple):
                left = from_registers(np.stack(a)[:, lanes], name)
            else:
                place = uniform(a, lanes, "a descriptor of wgmma")
                rows = operand_granules(place, 64, a_mn_major, VERSION)
                cells.append(own_rows(rows, warp) + window)
                left = operand(shared[cells[1]], ROWS, a_mn_major, name)
            self.read(warp, cells)
            result = to_registers(left @ right.T)
            if uniform(accumulate, lanes, "the predicate of wgmma"):
                result += before[:, lanes]
            after[:, lanes] = result
        self.cta.counts["wgmma"] += 1
        return after

    def read(self, warp: int, operands: list[Vector]) -> None:
        shared = self.cta.shared
        for cells in operands:
            shared.check(int(cells.min()) * 16, int(cells.max()) * 16 + 16)
            if shared.writes[cells].any():
                raise EmulatorError("race: wgmma of shared memory that TMA is filling")
            shared.reads[cells] += 1
        self.cta.clocks.product(warp, operands)
        self.open.setdefault(warp, []).extend(operands)

    def commit(self, gang: Gang, mask: Vector) -> None:
        for warp in map(int, gang.active(mask)):
            group = (self.cta.clocks.issued(warp), self.open.pop(warp, []))
            self.groups.setdefault(warp, deque()).append(group)

    def wait(self, gang: Gang, most: int, mask: Vector) -> None:
        """Until at most so many groups are in flight."""
        for warp in map(int, gang.active(mask)):
            groups = self.groups.get(warp, deque())
            while len(groups) > most:
                issued, operands = groups.popleft()
                for cells in operands:
                    self.cta.shared.reads[cells] -= 1
                self.cta.clocks.wait_products(warp, issued)

    def left(self) -> bool:
        """Whether some are in flight."""
        return any(self.open.values()) or any(self.groups.values())


def own_rows(granules: Vector, warp: int) -> Vector:
    """Of an operand with 64 rows, those of a warp: [64, 2], or [8, 16] where it is MN-major."""
    share = len(granules) // 4
    return granules[share * (warp % 4) : share * (warp % 4 + 1)]


def from_registers(words: Vector, name: str) -> Vector:
    """[4, 32] registers of A to [16, 16]."""
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(2, 2, 8, 4, 2)
    return widened(np.ascontiguousarray(halves.transpose(1, 2, 0, 3, 4)).reshape(ROWS, K), name)


def to_registers(sums: Vector) -> Vector:
    """[16, n] to [n / 2, 32] registers."""
    n = sums.shape[1]
    parts = sums.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 4, 1, 3)
    return np.ascontiguousarray(parts).reshape(n // 2, 32)
