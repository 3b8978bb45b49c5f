"""Where a program looks up its tables: which look-ups need no check. cutlass is not imported here.

A place outside of a table gives NaN, and must not be read. The check costs a few instructions for
each score. It is left out in three cases:

- The integers of the place are so narrow that they always lie in the table.
- Bytes have few places. A copy of a table in shared memory has all of them (`copy_of`).
- The place depends on positions. Then a condition on the tile says whether all of its places lie in
  the table. On a tile for which it holds, a kernel runs a variant of the program without checks.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...program.expr import Expr, postorder
from ...program.integers import ANY, Range, inside, ranges
from ...program.simplify import TRUE, both, build
from ...program.tile_classes import bounds_on_tiles
from .config import KernelConfig, TableLayout

_NARROW = ("uint8", "int8", "int16")
_BYTES = 256


class Unchecked(NamedTuple):
    """The numbers of tables whose look-ups need no check on tiles for which `condition` holds."""

    tables: frozenset[int]
    condition: Expr


@functools.lru_cache(512)
def unchecked(config: KernelConfig, always: bool = False) -> Unchecked:
    """The look-ups that need no check on some tiles, or on all of them (`always`)."""
    mod = config.mod
    numbers, condition = set(), TRUE
    for number, size, _ in config.lookups:
        place = mod.places.get(number)
        if place is None or number in config.banded:
            continue
        if _is_narrow(place, size, config.aux):
            numbers.add(number)
        elif not always and not any(x.op == "aux" for x in postorder([place])):
            (bounds,) = bounds_on_tiles([place], mod.aux)
            if bounds.lo is not None and bounds.hi is not None:
                numbers.add(number)
                own = both(build("le", 0, bounds.lo), build("lt", bounds.hi, size))
                condition = both(condition, own)
    return Unchecked(frozenset(numbers), condition)


def copy_of(config: KernelConfig, table: TableLayout) -> tuple[int, bool]:
    """(the places that a copy of a table has, whether its look-ups are checked)."""
    least, most = _range(config.mod.places[table.number], config.aux)
    if least >= 0 and most < max(table.size, _BYTES):
        return most + 1, False
    return table.size + 1, True


def _is_narrow(place: Expr, size: int, dtypes: Sequence[str]) -> bool:
    return inside(_range(place, dtypes), (0, size - 1))


def _range(place: Expr, dtypes: Sequence[str]) -> Range:
    def leaf(node: Expr) -> Range:
        if node.op != "aux" or dtypes[node.value] not in _NARROW:
            return ANY
        limits = torch.iinfo(getattr(torch, dtypes[node.value]))
        return limits.min, limits.max

    return ranges([place], leaf)[place]
