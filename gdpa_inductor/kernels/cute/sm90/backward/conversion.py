"""Convert the sums of dQ from fp32 to 16 bits, once all key tiles have added to them (`sums.py`).

A warp of its own converts. The CTAs that own the key tiles of a head share its query tiles for this
work. It would be unbalanced if the CTA that adds last converted, as this may always be the same.

Nobody reads the sums afterwards. So the L2 cache discards its lines of them instead of writing them
to memory.
"""

from dataclasses import dataclass

from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute

from ...backward.walk import ResidentTile
from ...barriers import Signal
from ...config import VECTOR
from ...operands import Matrix, Tiles, vector
from ...values import Fixed, smaller
from .shapes import HALF
from .sums import Counters
from .turns import Turns

WARP, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and lanes that share a row
LINE = 32  # fp32 sums in a line of the L2 cache


@dataclass
class Conversion(Fixed):
    """The warp that converts."""

    walk: Turns
    parts: list["ConvertedColumns"]  # the columns of dQ, 64 in each

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
        # Whether a query tile has sums. count: How many key tiles of this launch add to it.
        continues = self.walk.ranges.skips and self.walk.ranges.config.continues
        return Boolean(True) if continues else count > 0


@dataclass
class ConvertedColumns(Fixed):
    """64 columns of dQ."""

    landed: Signal  # for loads of their sums
    tiles: Tiles  # of the sums, in shared memory without a swizzle
    sums: Matrix  # in global memory, as dQ in 16 bits
    grads: Matrix
    counters: Counters  # how many key tiles have added
    factor: float  # dQ is the sums times this

    def __post_init__(self) -> None:
        self.walk, self.number = self.counters.walk, self.counters.number

    def read(self, tile: ResidentTile, head, block, count, done) -> None:
        # Load the sums to shared memory, once `count` key tiles have added to them.
        self.counters.watch(self.counters.of(tile, head, block), count)
        self.landed.expect(done, self.tiles.size)
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        self.tiles.copy(rows, head, tile.batch, self.number, self.landed.at(done))

    @cute.jit
    def write(self, tile: ResidentTile, head, block, done):
        # Convert and store. A lane takes 8 columns of a row, the warp 4 rows at a time.
        self.landed.wait(done)
        lane, row = cute.arch.lane_idx(), block * self.walk.heights.streamed
        rows = smaller(tile.length - row, Int32(self.walk.heights.streamed))
        column = lane % COLUMNS * VECTOR
        buffer = self.tiles.sX[None, None, self.number].iterator
        if self.number * HALF + column < self.grads.width:
            first = self.grads.row(tile.origin, row, head, tile.batch)
            first = first + (self.number * HALF + column)
            for i in range(lane // COLUMNS, rows, WARP // COLUMNS):
                sums = cute.make_rmem_tensor(VECTOR, Float32)
                cute.autovec_copy(vector(buffer + (i * HALF + column)), sums)
                narrow(sums, first + i * Int64(self.grads.strides[2]), self.factor)
        cute.arch.sync_warp()
        self.discard(self.sums.row(tile.origin, row, head, tile.batch), rows)

    @cute.jit
    def discard(self, first, rows):
        # Discard the sums of `rows` rows from a pointer on: two cache lines of each row.
        lane = cute.arch.lane_idx()
        column = self.number * HALF + lane % 2 * LINE
        if const_expr(self.sums.width % LINE == 0):  # noqa: SIM102 (decided at compile time)
            if column < self.sums.width:
                for i in range(lane // 2, rows, WARP // 2):
                    forget(first + (i * Int64(self.sums.strides[2]) + column))


def narrow(sums, pointer, factor: float) -> None:
    # Store 8 sums in 16 bits, by a streaming store: they leave the L2 cache first.
    rounded = cute.make_rmem_tensor(VECTOR, pointer.dtype)
    whole = sums.load()
    if factor != 1.0:
        whole = whole * factor
    rounded.store(whole.to(pointer.dtype))
    words = cute.recast_tensor(rounded, Int64)
    cute.arch.inline_ptx(
        "st.global.cs.v2.b64 [{$r0}], {{$r1}, {$r2}};",
        read_only_args=[pointer.toint(), words[0], words[1]],
    )


def forget(pointer) -> None:
    # Have the L2 cache discard a line of 128 bytes instead of writing it to memory.
    cute.arch.inline_ptx("discard.global.L2 [{$r0}], 128;", read_only_args=[pointer.toint()])
