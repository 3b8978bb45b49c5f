"""What a kernel has stored of the gradients of scores where a side is jagged.

They are numbers [slots, H, M, N] in 16 bits, and which query tiles each key tile has met, or the
other way round: `hulls`, Int32 [slots, Hk, key tiles, 2] or [slots, H, query tiles, 2], half open.
A slot holds one sequence, that which `order` names. Only what is in the hulls was written, and only
that is read. It is zero past the ends of a sequence.
"""

from dataclasses import dataclass

from torch import Tensor

from ..config import VECTOR


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
