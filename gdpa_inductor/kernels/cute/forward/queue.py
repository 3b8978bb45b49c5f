"""The tiles of jagged sequences: a CTA that is free takes the next one.

Tiles are numbered sequence by sequence in the order of `order.py`, the longest first, then head by
head, the last rows first: under a causal mask these cost most. So what is taken last is small.
There are no numbers for tiles past the end of a sequence. Who computes a tile changes no bit of it.

Sequences that are all alike are dealt, as dense ones are: then all CTAs get as much.

The first numbers are those of the CTAs. For the others there is a counter behind the order. Who
takes the last one clears it for a launch that has the same order. No length is read on the host.
"""

import functools
import operator
from typing import Any

from cutlass import Int32, cute

from ..values import Fixed, select, smaller
from .scheduler import WorkTile
from .work import Work


class Queue(Fixed):
    """What a warp asks for the number of a tile. Each lane knows one of 32 sequences, neighbours in
    the order: `at` of the first of them."""

    def __init__(self, work: Work) -> None:
        self.work, self.batch = work, work.batch
        order = work.offsets[2]
        place = order.toint() + work.batch * 8
        self.counter = cute.make_ptr(Int32, place, order.memspace, assumed_align=8)

    @property
    def alike(self) -> Any:
        """All sequences have as many rows and keys as one may have."""
        c, work = self.work.config, self.work
        jagged, most = (c.jagged_q, c.jagged_k), (work.rows, work.cols)
        sides = zip(jagged, work.jagged_rows, most, strict=True)
        full = [rows == self.batch * most for jagged, rows, most in sides if jagged]
        return functools.reduce(operator.and_, full)

    def first(self) -> Any:
        """The number of the CTA's first tile."""
        return Int32(cute.arch.block_idx()[0])

    @cute.jit
    def following(self):
        """The number of its next tile."""
        number = Int32(0)
        if cute.arch.lane_idx() == 0:
            number = cute.arch.atomic_add(self.counter, Int32(1), sem="relaxed", scope="gpu")
        return cute.arch.shuffle_sync(number, 0) + cute.arch.grid_dim()[0]

    @cute.jit
    def finish(self, number, tiles):
        """A number is taken for each tile, after it. number: the CTA's last; tiles: of all."""
        last = cute.arch.grid_dim()[0] + tiles - 1
        if (number == last) & (cute.arch.lane_idx() == 0):
            cute.arch.store(self.counter, Int32(0))

    def at(self, first: Any) -> tuple[WorkTile, Any]:
        """The lane's sequence, and how many tiles the lanes have up to it."""
        place = first + cute.arch.lane_idx()
        own = self.work.sequence(smaller(place, self.batch - 1), self.work.rows)
        count = select(place < self.batch, self.tiles(own) * self.work.heads, 0)
        for step in (1, 2, 4, 8, 16):
            earlier = cute.arch.shuffle_sync_up(count, step)
            count = count + select(cute.arch.lane_idx() >= step, earlier, 0)
        return own, count

    def tiles(self, sequence: WorkTile) -> Any:
        """How many a head of a sequence has."""
        return (sequence.q_rows + (self.work.height - 1)) // self.work.height

    def tile(self, own: WorkTile, counts: Any, number: Any) -> WorkTile:
        """A tile of the lanes' sequences. own, counts: what `at` gave."""
        lane = cute.arch.popc(cute.arch.vote_ballot_sync(counts <= number))
        sequence = own.of_lane(lane)
        tiles = self.tiles(sequence)
        left = cute.arch.shuffle_sync(counts, lane) - 1 - number  # tiles of the sequence after it
        head = self.work.heads - 1 - left // tiles
        return self.work.tile(sequence, head, left % tiles * self.work.height)
