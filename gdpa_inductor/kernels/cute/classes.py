"""Which tiles of scores a kernel treats as empty or whole, and which tables of bounds it reads.

`program/tile_classes.py` derives the conditions from the score program. This module chooses the
operands with tables (`bounds.py`) and the dtypes of the tables. cutlass is not imported here.
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


ENDS = ("aux_lo", "aux_hi")  # the smallest and the largest element, in the order of a table
TableKey = tuple[int, TileSize]  # the number of the aux operand, and the tile size of the kernel


def classes(config: KernelConfig, roots: Sequence[Expr] = ()) -> TileClasses:
    """The tile classes of a kernel that evaluates `roots`, by default the weight."""
    return _classes(config.program, tuple(roots), config.bounded)


@functools.lru_cache(512)
def _classes(program: str, roots: tuple[Expr, ...], bounded: frozenset[int]) -> TileClasses:
    """Classes with tables, if tables let the kernel skip tiles. Otherwise classes without."""
    mod = ScoreMod.parse(program)
    roots = roots or (mod.weight,)
    by_tables = classify_by_tables(roots, mod.aux, sorted(bounded))
    return by_tables if by_tables.skips else classify(roots, mod.aux)


def table_dtype(kind: str, dtype: str) -> str:
    """The dtype of a table: the one that the score program computes in.

    Args:
        kind: "i", "b" or "f": how the program reads the operand.
        dtype: The dtype name of the operand.
    """
    if kind == "i":
        return "int64" if dtype == "int64" else "int32"
    return "bool" if kind == "b" else "float32"
