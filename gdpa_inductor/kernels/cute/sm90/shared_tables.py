"""Learned tables in shared memory, where a thread reads any element without waiting for a cache.

Copies are in fp32. Neighbouring scores look up anywhere in a table. So that their threads rarely
meet in a bank of shared memory, an element lies there several times in a row
(`TableRoom.replicas`), for a few lanes each. Behind the last element is NaN. Places outside of the
table are taken there, unless all that there may be are in the copy (`places.copy_of`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, Int64, Uint32, Uint64, cute

from ....program.expr import SCORE, Expr
from ..emit import values_of
from ..program import Program, Row, element
from ..values import Bytes, Fixed, Pair, each, pair, select, smaller
from .config import HeldTable, TableRoom


@dataclass
class SharedTable(Fixed):
    """A table, as a thread looks it up."""

    pointer: Any  # to the first element, in the thread's replica
    lookup: HeldTable
    replicas: int

    def look_up(self, place) -> Pair:
        if isinstance(place, Bytes) and not self.lookup.checked:
            size, begin = self.pointer.dtype.width // 8, self.pointer.toint()
            addresses = place.scaled(size * self.replicas, begin)
            return Pair(*(element(self.at(x, size)) for x in addresses))
        return each(self.element)(place)

    def at(self, address, size: int):
        return cute.make_ptr(self.pointer.dtype, address, self.pointer.memspace, assumed_align=size)

    def element(self, place):
        if self.lookup.checked:
            unsigned = Uint64 if isinstance(place, Int64) else Uint32  # a negative place is large
            place = smaller(unsigned(place), unsigned(self.lookup.size))
        return element(self.pointer + Int32(place) * self.replicas)


@dataclass
class LookedUp(Fixed):
    """What was looked up. A table has one place."""

    value: Pair

    def look_up(self, _) -> Pair:
        return self.value


def computed(functions: Mapping[int, Expr], number: int, elements: Pair) -> Pair:
    """What table `number` has to hold of two elements (`with_elements`)."""
    (values,) = values_of([functions.get(number, SCORE)], lambda _: elements)
    return pair(values)


class SharedTables(Fixed):
    """The tables of some threads, from `pointer` on. `values`: Each by the number of its operand.

    functions: Of the elements, by the number of a table (`with_elements`).
    thread, threads: The number of this thread among those that copy the tables.
    """

    def __init__(
        self, room: TableRoom, program: Program, functions, pointer, thread, threads: int
    ) -> None:
        self.program, self.replicas, self.functions = program, room.replicas, functions
        self.thread, self.threads = thread, threads
        self.begins, self.values = [], {}
        for x in room.tables:
            own = pointer + thread % self.replicas
            self.begins.append(pointer)
            self.values[x.number] = SharedTable(own, x, self.replicas)
            pointer = pointer + x.places * self.replicas

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

    def elements(self, x: HeldTable, places: dict[str, Any]) -> list[Any]:
        begin = self.program.place(x.number, places)
        values = []
        for place in self.places(x):
            value = Float32(element(begin + Int64(smaller(place, x.size - 1)) * x.stride))
            value = select(place < x.size, value, Float32(math.nan))
            values.append(computed(self.functions, x.number, Pair(value)).lanes[0])
        return values

    def keep(self, elements: list[list[Any]]) -> None:
        """Store what was loaded."""
        for begin, x, values in zip(self.begins, self.values.values(), elements, strict=True):
            for place, value in zip(self.places(x.lookup), values, strict=True):
                self.store(begin + place * self.replicas, place < x.lookup.places, value)

    def places(self, x: HeldTable) -> list[Any]:
        """The places of the thread."""
        return [first + self.thread for first in range(0, x.places, self.threads)]

    @cute.jit
    def store(self, pointer, exists, value):
        if exists:
            row = cute.make_tensor(pointer, cute.make_layout(self.replicas))
            row.fill(value)
