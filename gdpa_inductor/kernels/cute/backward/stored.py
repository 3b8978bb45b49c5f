"""The gradients of scores that a backward kernel has stored for jagged sequences.

    scores   [slots, H, M, N], 16 bits
    hulls    [slots, Hk, key tiles, 2] or [slots, H, query tiles, 2], int32, half open

A slot is the memory of one sequence; `order` says of which. The hull of a key tile is the range of
query tiles that it has met, or the other way round. Only tiles within hulls were written, and only
these are read. Within them, scores past the end of a sequence are zero.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..config import VECTOR


@dataclass(frozen=True)
class StoredTiling:
    """The tiles of scores. rows, cols: Queries and keys of a tile.

    by_keys: Each key tile has a hull. Otherwise each query tile has one.
    """

    rows: int
    cols: int
    by_keys: bool

    def units(self, key_heads: int, heads: int, rows: int, cols: int) -> tuple[int, int]:
        # (how many heads have hulls, how many hulls each of them has).
        if self.by_keys:
            return key_heads, -(-cols // self.cols)
        return heads, -(-rows // self.rows)


@dataclass(frozen=True)
class StoredScores:
    """Where one launch stores gradients of scores.

    If no side is jagged there are scores only. The launch computes all sequences, and scores that
    it may not store are set to zero before.
    """

    scores: Tensor  # [slots, H, M, N]; rows begin at multiples of 16 bytes
    hulls: Any = None  # see above
    order: Any = None  # the number of the sequence in each slot, int64
    count: int | None = None  # how many sequences the launch computes
    tiling: Any = None  # a `StoredTiling`

    @property
    def matrices(self) -> list[Tensor]:
        return [self.scores] if self.hulls is None else [self.scores, self.hulls]

    @property
    def vectors(self) -> int:
        return self.scores.stride(2) // VECTOR

    @property
    def sizes(self) -> tuple[int, ...]:
        _, heads, rows, _ = self.scores.shape
        assert self.count is not None
        return (self.count, heads, *self.hulls.shape[1:3], rows, self.vectors)
