"""Learned tables in shared memory, where a thread reads any element without waiting for a cache.

Copies are in fp32. Neighbouring scores look up anywhere in a table. So that their threads rarely
meet in a bank of shared memory, an element lies there several times in a row
(`TableRoom.replicas`), for a few lanes each. Behind the last element is NaN. Places outside of the
table are taken there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, Int64, Uint32, Uint64, cute

from ....program.expr import SCORE
from ..config import TableLayout
from ..emit import values_of
from ..program import Program, Row, element, with_elements
from ..values import Fixed, Pair, each, pair, select, smaller
from .config import TableRoom


@dataclass
class SharedTable(Fixed):
    """A table, as a thread looks it up."""

    pointer: Any  # to the first element, in the thread's replica
    lookup: TableLayout
    replicas: int
    unchecked: bool  # no place is outside

    def look_up(self, place) -> Pair:
        return each(self.element)(place)

    def element(self, place):
        if not self.unchecked:
            unsigned = Uint64 if isinstance(place, Int64) else Uint32  # a negative place is large
            place = smaller(unsigned(place), unsigned(self.lookup.size))
        return element(self.pointer + Int32(place) * self.replicas)


@dataclass
class LookedUp(Fixed):
    """What was looked up. A table has one place."""

    value: Pair

    def look_up(self, _) -> Pair:
        return self.value


class SharedTables(Fixed):
    """The tables of some threads, from `pointer` on. `values`: Each by the number of its operand.

    thread, threads: The number of this thread among those that copy the tables.
    """

    def __init__(
        self, room: TableRoom, programs: Sequence[Program], pointer, thread, threads: int
    ) -> None:
        self.program, self.replicas = programs[0], room.replicas
        self.functions = with_elements(programs, [x.number for x in room.tables])
        self.thread, self.threads = thread, threads
        self.begins, self.values = [], {}
        for x in room.tables:
            own = pointer + thread % self.replicas
            narrow = x.number in self.program.narrow
            self.begins.append(pointer)
            self.values[x.number] = SharedTable(own, x, self.replicas, narrow)
            pointer = pointer + (x.size + 1) * self.replicas

    def elements_at(self, row: Row, kv_idx, values: dict[int, Any]) -> dict[int, "LookedUp"]:
        """The elements for two neighbouring keys. row: The places, in turn. values: As in `Row`."""
        none = Pair(Float32(0.0))  # Places do not depend on scores.
        places = row(none, Pair(kv_idx, kv_idx + 1), values=values)
        tables = zip(self.values, self.values.values(), places, strict=True)
        return {number: LookedUp(table.look_up(place)) for number, table, place in tables}

    def fetch(self, batch, head) -> list[list[Any]]:
        """Load the thread's elements of the tables of a head, with the NaN."""
        places = {"b": batch, "h": head}
        return [self.elements(x.lookup, places) for x in self.values.values()]

    def elements(self, x: TableLayout, places: dict[str, Any]) -> list[Any]:
        begin = self.program.place(x.number, places)
        values = []
        for place in self.places(x):
            value = Float32(element(begin + Int64(smaller(place, x.size - 1)) * x.stride))
            value = select(place < x.size, value, Float32(math.nan))
            function = self.functions.get(x.number, SCORE)
            (result,) = values_of([function], lambda _, value=value: Pair(value))
            values.append(pair(result).lanes[0])
        return values

    def keep(self, elements: list[list[Any]]) -> None:
        """Store what was loaded."""
        for begin, x, values in zip(self.begins, self.values.values(), elements, strict=True):
            for place, value in zip(self.places(x.lookup), values, strict=True):
                self.store(begin + place * self.replicas, place <= x.lookup.size, value)

    def places(self, x: TableLayout) -> list[Any]:
        """The places of the thread, up to that of the NaN."""
        return [first + self.thread for first in range(0, x.size + 1, self.threads)]

    @cute.jit
    def store(self, pointer, exists, value):
        if exists:
            row = cute.make_tensor(pointer, cute.make_layout(self.replicas))
            row.fill(value)
