"""A queue of the work tiles of jagged sequences: a CTA that is free takes the next tile.

Tiles are numbered sequence by sequence, the longest sequence first (`order.py`). Within a sequence
they are numbered head by head, and within a head from the last rows to the first. Under a causal
mask the last rows cost most, so the tiles that are taken last are cheap. Tiles past the end of a
sequence have no number. Results do not depend on which CTA computes a tile.

CTA c begins with tile c. After that, CTAs take numbers from a counter in global memory, which is
the element after the order. The CTA that takes the last number clears the counter, so that another
launch can use the same order. The host reads no length.

If all sequences have the same lengths, tiles are dealt as for dense ones instead. Then all CTAs get
the same amount of work.
"""

import functools
import operator
from typing import Any

from cutlass import Int32, Int64, cute

from ..values import Fixed, select, smaller
from .scheduler import WorkTile
from .work import Work


class Queue(Fixed):
    """The queue as one warp sees it.

    Each lane holds one of 32 consecutive sequences of the order. `at` loads them.
    """

    def __init__(self, work: Work) -> None:
        self.work, self.batch = work, work.batch
        order = work.offsets[2]
        place = order.toint() + Int64(work.batch) * 8
        self.counter = cute.make_ptr(Int32, place, order.memspace, assumed_align=8)

    @property
    def alike(self) -> Any:
        # Whether all sequences have the most rows and keys that a sequence may have.
        c, work = self.work.config, self.work
        jagged, most = (c.jagged_q, c.jagged_k), (work.rows, work.cols)
        sides = zip(jagged, work.jagged_rows, most, strict=True)
        full = [rows == self.batch * most for jagged, rows, most in sides if jagged]
        return functools.reduce(operator.and_, full)

    def first(self) -> Any:
        return Int32(cute.arch.block_idx()[0])

    @cute.jit
    def following(self):
        number = Int32(0)
        if cute.arch.lane_idx() == 0:
            number = cute.arch.atomic_add(self.counter, Int32(1), sem="relaxed", scope="gpu")
        return cute.arch.shuffle_sync(number, 0) + cute.arch.grid_dim()[0]

    @cute.jit
    def finish(self, number, tiles):
        # Clear the counter, if `number`, the last one of this CTA, is the last of all.
        # Each of the tiles is followed by one atomic addition, so that one is known.
        last = cute.arch.grid_dim()[0] + tiles - 1
        if (number == last) & (cute.arch.lane_idx() == 0):
            cute.arch.store(self.counter, Int32(0))

    def at(self, first: Any) -> tuple[WorkTile, Any]:
        # (the lane's sequence, how many tiles the lanes up to this one have).
        # first: That of lane 0.
        place = first + cute.arch.lane_idx()
        own = self.work.sequence(smaller(place, self.batch - 1), self.work.rows)
        count = select(place < self.batch, self.tiles(own) * self.work.heads, 0)
        for step in (1, 2, 4, 8, 16):
            earlier = cute.arch.shuffle_sync_up(count, step)
            count = count + select(cute.arch.lane_idx() >= step, earlier, 0)
        return own, count

    def tiles(self, sequence: WorkTile) -> Any:
        return (sequence.q_rows + (self.work.height - 1)) // self.work.height

    def tile(self, own: WorkTile, counts: Any, number: Any) -> WorkTile:
        # Tile `number` of the sequences that the lanes hold. own, counts: The result of `at`.
        lane = cute.arch.popc(cute.arch.vote_ballot_sync(counts <= number))
        sequence = own.of_lane(lane)
        tiles = self.tiles(sequence)
        left = cute.arch.shuffle_sync(counts, lane) - 1 - number  # later tiles of the sequence
        head = self.work.heads - 1 - left // tiles
        return self.work.tile(sequence, head, left % tiles * self.work.height)
