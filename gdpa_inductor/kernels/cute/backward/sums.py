"""Sums of dQ in global memory, in a fixed order, where key tiles are resident.

All key tiles of a head add their parts of dQ. Each query tile has a counter: how many key tiles
have added. A key tile waits until the counter says that its turn has come (`turns.py`). So each dQ
is the same sum, term by term, in every run with the same number of CTAs. The first key tile stores,
so that nobody has to clear the sums. After the last one they are converted to 16 bits
(`Conversion`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Boolean, Int32, Int64, cute

from ..values import Fixed
from .turns import Turns
from .walk import ResidentTile

UNKNOWN = -1  # the value of a counter that was not read yet


@dataclass
class Counters(Fixed):
    """Counters: how many key tiles have added to a query tile, or to a part of its columns."""

    walk: Turns
    pointer: Any  # Int32 [batch, heads, query tiles, columns]
    number: Any  # which columns these counters are for
    columns: int  # into how many parts the columns of dQ are cut

    def of(self, tile: ResidentTile, head, block):
        unit = Int64(tile.batch * self.walk.query_heads + head)
        place = (unit * self.walk.streamed_tiles + block) * self.columns
        return self.pointer + (place + self.number)

    def value(self, counter):
        return cute.arch.load(counter, Int32, sem="acquire", scope="gpu")

    @cute.jit
    def wait(self, counter, count: Int32, seen: Int32):
        """Wait until a counter, which was `seen`, is `count`. Then this thread sees what was added.

        TMA sees it after a fence of the proxies.
        """
        while seen != count:
            seen = self.value(counter)

    def advance(self, counter, before) -> None:
        # One thread calls it. It is a release: a thread that reads the new value sees all that this
        # thread saw before.
        if self.walk.ranges.config.ordered:
            cute.arch.store(counter, before + 1, sem="release", scope="gpu")
        else:
            cute.arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")

    @cute.jit
    def watch(self, counter, count: Int32):
        """As `wait`, but for a wait that may be long.

        Each acquire empties the L1 cache, which holds aux operands. So this polls with relaxed
        loads, and does one acquire at the end.
        """
        value = cute.arch.load(counter, Int32, sem="relaxed", scope="gpu")
        while value != count:
            cute.arch.inline_ptx("nanosleep.u32 256;")
            value = cute.arch.load(counter, Int32, sem="relaxed", scope="gpu")
        self.wait(counter, count, Int32(UNKNOWN))


@dataclass
class Conversion(Fixed):
    """The warp that converts the sums of dQ from fp32 to 16 bits, once all key tiles have added.

    The CTAs that own the key tiles of a head share its query tiles for this work. It would be
    unbalanced if the CTA that adds last converted, as this may always be the same. Nobody reads the
    sums afterwards. So the L2 cache discards its lines of them instead of writing them to memory.
    """

    walk: Turns
    parts: Sequence[Any]  # the parts of dQ; each has `read` and `write`

    @cute.jit
    def run(self):
        deal, done = Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            share = self.walk.share(tile)
            for turn in range(tile.passes):
                head = self.walk.streamed_head(tile, turn)
                for i in range(share):
                    block = self.walk.converted(tile, i)
                    count = self.walk.adders(tile, head, block)
                    if self.begun(count):
                        for part in self.parts:
                            part.read(tile, head, block, count, done)
                        for part in self.parts:
                            part.write(tile, head, block, done)
                        done += 1
            deal += 1

    def begun(self, count):
        continues = self.walk.ranges.skips and self.walk.ranges.config.continues
        return Boolean(True) if continues else count > 0
