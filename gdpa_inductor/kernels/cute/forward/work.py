"""From the number of a tile to what it is: sequence, head, rows, keys.

The numbers of one sequence and head are consecutive, so that CTAs that run together read the same
keys. Dense: every sequence has the same lengths. Jagged: lengths are read from the offsets on the
device, and `order` says which sequence comes first (the longest, if the caller wants balance).
"""

from cutlass import Int32

from ..config import KernelConfig
from ..values import Fixed
from ..work import sequence_rows
from .scheduler import TILES, WorkTile


class Work(Fixed):
    """sizes, offsets: as the kernels take them. Sizes of the jagged sides are upper bounds."""

    def __init__(self, config: KernelConfig, sizes, offsets):
        self.config, self.offsets = config, offsets
        self.batch, self.heads, self.key_heads, self.value_heads, self.rows, self.cols = sizes[:6]
        self.height = TILES * config.rows
        self.row_tiles = (self.rows + (self.height - 1)) // self.height
        self.tiles = self.row_tiles * self.heads * self.batch

    def decode(self, number) -> WorkTile:
        row = number % self.row_tiles
        unit = number // self.row_tiles
        head, place = unit % self.heads, unit // self.heads
        cu_q, cu_k, order = self.offsets
        batch = place if order is None else Int32(order[place])
        q_start, q_rows = sequence_rows(cu_q, batch, self.rows)
        k_start, k_rows = sequence_rows(cu_k, batch, self.cols)
        key_head = head // (self.heads // self.key_heads)
        value_head = head // (self.heads // self.value_heads)
        zero = Int32(0)
        return WorkTile(
            Int32(1), row * self.height, batch, head, key_head, value_head,
            q_start, q_rows, k_start, k_rows, zero, zero, zero,
        )  # fmt: skip
