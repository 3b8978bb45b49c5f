"""Sums of the stored gradients of scores where a side is jagged, in one order.

What a kernel has stored are numbers [slots, H, M, N] in 16 bits, and which query tiles each key
tile has met, or the other way round: `hulls`, Int32 [slots, Hk, key tiles, 2] or [slots, H, query
tiles, 2], half open. A slot holds one sequence, that which `order` names. Only what is in the hulls
was written, and only that is read. It is zero past the ends of a sequence.
"""

import functools
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .. import disk
from ..config import VECTOR
from ..launcher import WordLauncher
from ..plan import name
from ..runtime import Kernel

SIZES = {"tiles": 9, "rows": 6}  # what kernels take after their matrices: integers
MOST = 65535  # heads or slots: CTAs along a dimension of a grid other than the first


@dataclass(frozen=True)
class StoredTiling:
    """Queries and keys of a tile. by_keys: each key tile has a hull, else each query tile."""

    rows: int
    cols: int
    by_keys: bool

    def units(self, key_heads: int, heads: int, rows: int, cols: int) -> tuple[int, int]:
        """Heads, and tiles of each, that have hulls."""
        if self.by_keys:
            return key_heads, -(-cols // self.cols)
        return heads, -(-rows // self.rows)


@dataclass(frozen=True)
class StoredScores:
    """What one launch has stored, of `count` sequences. scores: [slots, H, M, N]; its rows begin
    at multiples of 16 bytes. order: Int64, of these sequences."""

    scores: Tensor
    hulls: Tensor
    order: Tensor
    count: int
    tiling: StoredTiling

    @property
    def vectors(self) -> int:
        """Of a row."""
        return self.scores.stride(2) // VECTOR

    @property
    def sizes(self) -> tuple[int, ...]:
        """As the kernels take them."""
        _, heads, rows, _ = self.scores.shape
        return (self.count, heads, *self.hulls.shape[1:3], rows, self.vectors)


def add_tiles(
    stored: StoredScores, total: Tensor, axes: frozenset[str], factor: float, adds: bool, arch: str,
    stream: int,
) -> None:  # fmt: skip
    """total [B|1, H|1, C, N'] = factor · the sums of chunks of rows, C of them; with `adds`, plus
    what is there, in fp32. axes: "b" if each sequence has its own, "h" if each head has."""
    given = (factor, "b" in axes, "h" in axes, stored.tiling)
    made = _launcher("tiles", given, name(stored.scores.dtype), name(total.dtype), arch)
    chunks, rows = total.shape[2], stored.scores.shape[2]
    shares = (chunks, -(-rows // chunks), int(adds))
    made(*_addresses(stored, total), *stored.sizes, *shares, stream)


def add_rows(stored: StoredScores, total: Tensor, factor: float, arch: str, stream: int) -> None:
    """total [B, H, M] = factor · the sum of each row, in fp32, of the stored sequences."""
    given = (factor, stored.tiling)
    made = _launcher("rows", given, name(stored.scores.dtype), "float32", arch)
    made(*_addresses(stored, total), *stored.sizes, stream)


def _addresses(stored: StoredScores, total: Tensor) -> list[int]:
    return [x.data_ptr() for x in (stored.scores, total, stored.hulls, stored.order)]


@functools.cache
def _launcher(
    kind: str, given: tuple[Any, ...], source: str, target: str, arch: str
) -> WordLauncher:
    """Of a kind of sums, made of what is given."""
    form = (source, target, arch)

    def compiled() -> Any:
        from . import jagged_sums

        return jagged_sums.compiled(kind, given, *form)

    content = disk.kept(compiled, "jagged total", kind, *given, *form)
    return WordLauncher(Kernel(content), 4 + SIZES[kind] + 1)
