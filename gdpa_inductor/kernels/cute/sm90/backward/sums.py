"""Sum dQ in global memory by TMA, in the order of `backward/sums.py`.

Each query tile of a head has a counter for each 64 columns. Each warpgroup multiplies 64 columns,
and a warp of its own adds them.

If each launch has some of the keys (`KernelConfig.part`), later launches add to the sums of earlier
ones. The last launch converts all query tiles, even those that its own keys do not meet.
"""

from dataclasses import dataclass

from cutlass import Float32, Int32, Int64, const_expr, cute

from ...backward.sums import Counters
from ...backward.walk import ResidentTile
from ...barriers import Signal
from ...config import VECTOR
from ...operands import Matrix, Tiles, vector
from ...values import Fixed, smaller
from .roles import EMPTY, FULL, HALF, HANDED

WARP, COLUMNS = 32, HALF // VECTOR  # lanes of a warp, and lanes that share a row
LINE = 32  # fp32 sums in a line of the L2 cache


@dataclass
class HandedParts(Fixed):
    """What a warpgroup hands over: 64 columns of dQ in shared memory, which TMA adds."""

    stores: Tiles  # of the sums, written by a store, and by an addition
    adds: Tiles
    counters: Counters  # of the columns of the warpgroup

    def __post_init__(self) -> None:
        self.walk, self.group = self.counters.walk, self.counters.number

    def takes(self, tile: ResidentTile, head, block, before):
        return self.group < self.counters.columns  # dQ has these columns

    def start(self) -> None:
        self.free(0)

    def wait(self, step) -> None:
        cute.arch.barrier(barrier_id=FULL + self.group, number_of_threads=HANDED)

    def issue(self, tile: ResidentTile, head, block, step, adds: bool) -> None:
        # Rows past the end of the sequence are dropped.
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        (self.adds if adds else self.stores).store(rows, head, tile.batch, self.group)

    def free(self, step) -> None:
        cute.arch.barrier_arrive(barrier_id=EMPTY + self.group, number_of_threads=HANDED)


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
        self.counters.watch(self.counters.of(tile, head, block), count)
        cute.arch.fence_proxy("async.global")  # TMA sees what was added before
        self.landed.expect(done, self.tiles.size)
        rows = (tile.origin, block * self.walk.heights.streamed, tile.length)
        self.tiles.copy(rows, head, tile.batch, self.number, self.landed.at(done))

    @cute.jit
    def write(self, tile: ResidentTile, head, block, done):
        """Convert and store. A lane takes 8 columns of a row, the warp 4 rows at a time."""
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
        """Discard the sums of `rows` rows from a pointer on: two cache lines of each row."""
        lane = cute.arch.lane_idx()
        column = self.number * HALF + lane % 2 * LINE
        if const_expr(self.sums.width % LINE == 0):  # noqa: SIM102 (decided at compile time)
            if column < self.sums.width:
                for i in range(lane // 2, rows, WARP // 2):
                    forget(first + (i * Int64(self.sums.strides[2]) + column))


def narrow(sums, pointer, factor: float) -> None:
    """Store 8 sums in 16 bits, by a streaming store: they leave the L2 cache first."""
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
    """Have the L2 cache discard a line of 128 bytes instead of writing it to memory."""
    cute.arch.inline_ptx("discard.global.L2 [{$r0}], 128;", read_only_args=[pointer.toint()])
