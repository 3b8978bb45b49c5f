"""How a kernel tells its tiles of scores apart, and which operands it has tables of bounds of. No
cutlass here.

A table has the smallest and the largest element of an operand on each tile of the kernel. The
device makes it before the kernel (`bounds.py`).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ...program.expr import Expr
from ...program.score_mod import ScoreMod
from ...program.tile_classes import TileClasses, classify, classify_by_tables
from .config import KernelConfig


@dataclass(frozen=True)
class TileSize:
    """The queries and keys of a tile of scores."""

    rows: int
    cols: int


ENDS = ("aux_lo", "aux_hi")  # of bounds, in the order of a table
TableKey = tuple[int, TileSize]  # the operand of a table, by its number


def classes(config: KernelConfig, roots: Sequence[Expr] = ()) -> TileClasses:
    """Of a kernel that evaluates these terms, by default the weight."""
    return _classes(config.program, tuple(roots), config.bounded)


def tables(
    config: KernelConfig, size: TileSize, roots: Sequence[Expr] = ()
) -> tuple[TableKey, ...]:
    """Those that a kernel takes, on tiles of this size."""
    return tuple((number, size) for number in classes(config, roots).bounds)


@functools.lru_cache(512)
def _classes(program: str, roots: tuple[Expr, ...], bounded: frozenset[int]) -> TileClasses:
    """Tables that leave out no tile are not worth their time."""
    mod = ScoreMod.parse(program)
    roots = roots or (mod.weight,)
    found = classify_by_tables(roots, mod.aux, sorted(bounded))
    return found if found.skips else classify(roots, mod.aux)


def table_dtype(kind: str, dtype: str) -> str:
    """Of a table of an operand: what the program computes with."""
    if kind == "i":
        return "int64" if dtype == "int64" else "int32"
    return "bool" if kind == "b" else "float32"
