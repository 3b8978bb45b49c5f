"""Compile-time parameters of `table_pass`. cutlass is not imported here.

Shared memory has rings of K and V, a table of sums for each thread, the sums of diagonals, and the
tables that the program looks up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from ....program.expr import Expr, fold, postorder, torch_apply
from ....program.places import by_distance
from ....program.score_mod import ScoreMod
from .. import config
from ..config import SHARED_MEMORY, TableRoom

KEYS = 64  # of a step
ROWS = 64  # queries of a warpgroup
STAGES = 2
SIDES = 2  # warpgroups at most
WINDOW = 88  # sums of diagonals of a warp: 16 + 64 - 1, and others that stay zero
BARRIERS = 2048  # bytes for mbarriers and alignment, of which ptxas adds 1024
MOST = 256  # places of a slice whose threads have tables
TABLES = 9 << 10  # bytes for tables that the program looks up, at most
LINEAR = {"q_idx", "kv_idx", "const", "scalar", "add", "sub", "neg"}


class TableSlice(NamedTuple):
    """Places first, first + 1, ... of aux operand `number`.

    diagonal: Each diagonal of the scores has a place of its own.
    """

    number: int
    first: int
    places: int
    diagonal: bool


@dataclass(frozen=True)
class TableConfig(config.KernelConfig):
    """`KernelConfig` of the kernel that sums gradients of tables, on any architecture."""

    folder = "backward"
    max_dim = max_backward_dim = 128
    clears = True  # offsets are clamped

    target: str = ""  # `arch`
    slices: tuple[TableSlice, ...] = ()

    @staticmethod
    def of(base: config.KernelConfig, stored: int, slices: tuple[TableSlice, ...]) -> TableConfig:
        shared = {x.name: getattr(base, x.name) for x in fields(config.KernelConfig)}
        own = {"kernel": "rows", "stored": stored, "target": base.arch, "slices": slices}
        return TableConfig(**shared | own)

    @property
    def arch(self) -> str:  # type: ignore[override]
        return self.target

    @property
    def module(self) -> str:
        return "backward.table_pass"

    @property
    def matrices(self) -> list[str]:
        """dO, then the sums of each slice."""
        return [self.dtype] + ["float32"] * len(self.slices)

    @property
    def notes(self) -> bool:
        return False

    @property
    def sides(self) -> int:
        """How many warpgroups multiply."""
        # Two, unless their tables do not fit.
        return next((n for n in (SIDES, 1) if self.bytes(n) <= SHARED_MEMORY), 1)

    @property
    def fits(self) -> bool:
        return self.bytes(1) <= SHARED_MEMORY

    @property
    def tile_rows(self) -> int:
        return ROWS * self.sides

    @property
    def cols(self) -> int:
        return KEYS

    @property
    def threads(self) -> int:
        """Those that multiply."""
        return 128 * self.sides

    @property
    def window(self) -> int:
        """Words for the sums of diagonals of a step, in two buffers."""
        return self.words(self.sides)[0]

    @property
    def sums(self) -> int:
        """Words for the tables of all threads."""
        return self.words(self.sides)[1]

    def words(self, sides: int) -> tuple[int, int]:
        window = 2 * (4 * WINDOW) * (4 * sides) if any(x.diagonal for x in self.slices) else 0
        return window, sum((x.places + 1) * 128 * sides for x in self.slices if not x.diagonal)

    def bytes(self, sides: int) -> int:
        """Shared memory without the tables that the program looks up."""
        words = sum(self.words(sides))
        stage = 2 * KEYS * (self.padded_head_dim + self.padded_value_dim)
        return BARRIERS + 4 * words + STAGES * stage

    @property
    def learned(self) -> TableRoom:
        room = SHARED_MEMORY - self.bytes(self.sides)
        return TableRoom.within(min(TABLES, max(room, 0)), self.gathered)


def passes(base: config.KernelConfig, wanted: Sequence[int]) -> list[TableConfig]:
    """The launches that sum the gradients of these tables.

    Tables of threads need shared memory. So they are cut into slices of at most `MOST` places, and
    each launch takes as many slices as fit. It computes all scores once more.
    """
    found: list[TableConfig] = []
    for one in _slices(base, wanted):
        more = (*found[-1].slices, one) if found else (one,)
        both = TableConfig.of(base, wanted[0], more)
        if found and both.fits:
            found[-1] = both
        else:
            found.append(TableConfig.of(base, wanted[0], (one,)))
    return found


def _slices(base: config.KernelConfig, wanted: Sequence[int]) -> Iterator[TableSlice]:
    for number, size, _ in base.lookups:
        if number in wanted:
            diagonal = is_diagonal(base.mod, number)
            pieces = 1 if diagonal else -(-size // MOST)
            each = -(-size // pieces)
            for first in range(0, size, each):
                yield TableSlice(number, first, min(each, size - first), diagonal)


def is_diagonal(program: ScoreMod, number: int) -> bool:
    """Whether each diagonal has a place of its own, one from that of the next diagonal."""
    place = program.places[number]
    linear = {x.op for x in postorder([place])} <= LINEAR
    return linear and by_distance(program, number) and abs(_at(place, 1) - _at(place, 0)) == 1


def _at(place: Expr, q_idx: int) -> int:
    """The place of a query and key 0, where scalars are 0."""
    values = {"q_idx": q_idx, "kv_idx": 0, "scalar": 0}
    leaf = lambda node: torch.tensor(values.get(node.op, node.value))
    return int(fold([place], leaf, torch_apply(torch.float64))[0])
