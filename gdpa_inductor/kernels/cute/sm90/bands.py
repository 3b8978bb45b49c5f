"""Learned tables whose places depend on the distance of query and key, in shared memory.

A tile of scores with 64 rows has 63 distances more than columns. For each tile the threads of a
warpgroup load the elements of these, while the scores are computed. So a place is computed and
checked for each distance, and not for each score. An element lies beside its neighbour, so that a
thread reads those of two columns at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, cute

from ....program.expr import Expr
from ..operands import KernelArguments
from ..program import Program
from ..values import Fixed, Pair, Table, pair
from .config import ROWS, BandRoom, Sm90Config
from .shared_tables import LookedUp, computed
from .wgmma import WARPGROUP, first_row

Elements = tuple[Any, list[Pair]]  # a distance; the elements of each table there and at the next


@dataclass
class Band(Fixed):
    """The elements of table `number` for the scores of a thread."""

    number: int
    pointer: Any

    def __post_init__(self) -> None:
        self.pairs: dict[int, LookedUp] = {}

    def of(self, half: int, octet: int) -> LookedUp:
        """Those for the row of a half, and the thread's two columns of an octet."""
        # Eight rows further down are the distances of eight columns before.
        step = octet - half
        if step not in self.pairs:
            values = cute.make_rmem_tensor(2, Float32)
            cute.autovec_copy(both(self.pointer + 2 * 8 * step), values)
            self.pairs[step] = LookedUp(Pair(values[0], values[1]))
        return self.pairs[step]


@dataclass
class Bands(Fixed):
    """The tables of a warpgroup, for its tile of scores.

    axes: The positions that rows and columns of the tile are. barrier: A number of the warpgroup.
    """

    room: BandRoom
    program: Program | None  # the place of each table
    functions: Mapping[int, Expr]  # of elements (`with_elements`)
    pointer: Any
    thread: Any
    axes: tuple[str, str]
    barrier: Any

    def fetch(self, batch, head, row, column) -> list[Elements]:
        """Load what the thread copies for the tile of scores from (row, column) on."""
        if self.program is None:
            return []
        distances = [x + self.thread for x in range(0, self.room.width, WARPGROUP)]
        last = Pair(row + (ROWS - 1))
        return [(x, self.elements(batch, head, last, column + x)) for x in distances]

    def elements(self, batch, head, row: Pair, column) -> list[Pair]:
        """Those of each table for a row and two neighbouring columns."""
        assert self.program
        outer = {"b": batch, "h": head}
        leaves = {**outer, self.axes[0]: row, self.axes[1]: Pair(column, column + 1)}
        places = self.program.evaluate(leaves, lambda node: Pair(self.program.read(node, outer)))
        values = []
        for x, place in zip(self.room.tables, places, strict=True):
            table = Table(Pair(self.program.place(x.number, outer)), x, unchecked=False)
            values.append(computed(self.functions, x.number, table.look_up(pair(place))))
        return values

    def keep(self, loaded: list[Elements], buffer) -> list[Band]:
        """Copy what was loaded, and read what all threads have copied."""
        if not loaded:
            return []
        begins = [
            self.pointer + (self.room.buffers * i + buffer) * self.room.words
            for i in range(len(self.room.tables))
        ]
        for distance, values in loaded:
            for begin, elements in zip(begins, values, strict=True):
                registers, (first, second) = cute.make_rmem_tensor(2, Float32), elements.lanes
                registers[0], registers[1] = first, second
                cute.autovec_copy(registers, both(begin + 2 * distance))
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=WARPGROUP)
        own = 2 * (ROWS - 1 - first_row(self.thread) + self.thread % 4 * 2)
        tables = zip(self.room.tables, begins, strict=True)
        return [Band(x.number, begin + own) for x, begin in tables]


def both(pointer):
    """An element and its neighbour."""
    aligned = cute.make_ptr(Float32, pointer.toint(), pointer.memspace, assumed_align=8)
    return cute.make_tensor(aligned, cute.make_layout(2))


def of_distances(config: Sm90Config, x: KernelArguments) -> Program | None:
    """The places of tables in bands, if there are any."""
    places = [config.mod.places[table.number] for table in config.bands.tables]
    return Program(config, x, places) if places else None


def elements_at(bands: list[Band], r: int) -> dict[int, LookedUp]:
    """Those for the pair of scores in register r."""
    return {x.number: x.of(r // 2 % 2, r // 4) for x in bands}


def again(bands: list[Band]) -> list[Band]:
    """The same with nothing read: the branches of a program share no registers."""
    return [Band(x.number, x.pointer) for x in bands]
