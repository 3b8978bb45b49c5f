"""The parts that both plain wgmma loops share: rings of tiles, products, weights and stores.

Two warpgroups multiply and one warp loads. The grid is persistent. forward.py and backward.py have
the loops. All matrices are bf16, contiguous [heads, N, D], D = 128.

Notation: a tile is [rows, D] of a matrix. S is a fragment of scores in fp32. P and dS are operands
in bf16 from registers. sX is in shared memory, tX a partition of sX, and X in registers.
"""

from cutlass import BFloat16, Int32, Int64, const_expr, cute, memory
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from gdpa_inductor.kernels.cute.sm90 import wgmma
from gdpa_inductor.kernels.cute.sm90.wgmma import WARPGROUP, operand_layout

D, COLS = 128, 128
THREADS = 3 * WARPGROUP
OWN = 6  # the first of two named barriers, one for each warpgroup


class TileRing:
    """A ring of buffers in shared memory. One warp fills them by TMA, and eight warps free them.

    pointer:   The mbarriers, first the full ones, then the empty ones.
    stages:    The number of buffers.
    resident:  Each buffer is filled only once and never freed.
    """

    def __init__(self, pointer, stages: int, resident: bool) -> None:
        self.full, self.empty, self.stages = pointer, pointer + stages, stages
        self.resident = resident

    def init(self) -> None:
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.full + stage, 1)
            cute.arch.mbarrier_init(self.empty + stage, 2 * WARPGROUP // 32)

    def wait(self, count):
        """Wait for load number `count`, and return the number of its buffer."""
        parity = Int32(0) if self.resident else (count // self.stages) % 2
        cute.arch.mbarrier_wait(self.full + count % self.stages, parity)
        return count % self.stages

    @cute.jit
    def free(self, count, leader):
        if const_expr(not self.resident):  # noqa: SIM102 (decided at compile time)
            if leader:
                cute.arch.mbarrier_arrive(self.empty + count % self.stages)

    @cute.jit
    def fill(self, count, tiles, place):
        """Issue load number `count` from one warp. place: The (row, head) of the tile."""
        if const_expr(self.resident):
            if count < self.stages:
                self.load(tiles, place, count % self.stages)
        else:
            stage = count % self.stages
            cute.arch.mbarrier_wait(self.empty + stage, (count // self.stages) % 2 ^ 1)
            self.load(tiles, place, stage)

    def load(self, tiles, place, stage) -> None:
        atom, source, target, size = tiles
        barrier, (row, head) = self.full + stage, place
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
        cute.copy(atom, source[None, row, 0, head], target[None, stage], tma_bar_ptr=barrier)

    def __extract_mlir_values__(self):
        return []

    def __new_from_mlir_values__(self, values):
        return self


def tile_layout(rows: int, stages: int):
    """The layout [rows, D, stages]. The 256 bytes of a row are in two swizzled halves."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, BFloat16)
    return cute.tile_to_shape(atom, (rows, D, stages), order=(0, 1, 2))


def view(pointer, layout):
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, BFloat16), layout.outer)


def matrix(pointer, heads, length):
    stride = (D, 1, cute.assume(Int64(length) * D, divby=D))
    return cute.make_tensor(pointer, cute.make_layout((length, D, heads), stride=stride))


def tma(op, tensor, rows: int):
    """The TMA (atom, tensor) for tiles of `rows` rows."""
    layout = cute.select(tile_layout(rows, 1), mode=[0, 1])
    atom, coordinates = cpasync.make_tiled_tma_atom(op, tensor, layout, (rows, D))
    return atom, coordinates


def parted(source, shared, rows: int):
    """The parts of a TMA copy: (atom, tiles in memory, buffers, bytes of a tile).

    Tiles in memory are indexed by (row, head).
    """
    atom, tensor = source
    tiles = cute.flat_divide(tensor, (rows, D))
    target, tiles = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return atom, tiles, target, rows * D * 2


def rings(barrier, buffer, stages, rows, resident: bool):
    """The rings of several matrices, and their buffers, which follow each other in shared memory.

    stages: The number of buffers of each matrix. rows: The rows of a tile of each matrix.
    """
    tile_rings, tiles = [], []
    for count, height in zip(stages, rows, strict=True):
        tile_rings.append(TileRing(barrier, count, resident))
        tiles.append(view(buffer, tile_layout(height, count)))
        barrier, buffer = barrier + 2 * count, buffer + count * height * D
    return tile_rings, tiles


def begin(tile_rings) -> None:
    """Initialize the mbarriers of all rings. It runs before the warps take their roles."""
    with cute.arch.elect_one():
        for ring in tile_rings:
            ring.init()
    cute.arch.mbarrier_init_fence()


def tiled(cols: int, a_major, b_major, a_source, groups: int = 2):
    """The tiled wgmma of a product with 64 rows for each warpgroup."""
    return wgmma.tiled(BFloat16, cols, b_major, a_source, a_major, groups)


def as_operand(sums, values=None):
    """Sums in bf16 as an operand A from registers. values: They replace the sums, if given."""
    layout = operand_layout(sums.layout)
    out = cute.make_rmem_tensor(layout, BFloat16)
    values = cute.make_tensor(sums.iterator, layout).load() if values is None else values
    out.store(values.to(BFloat16))
    return out


def silu(sums):
    """(x σ(x), σ(x)) for x = sums / √D, in the order of an operand A."""
    layout = operand_layout(sums.layout)
    half = cute.make_tensor(sums.iterator, layout).load() * (0.5 * D**-0.5)
    tanh = cute.math.tanh(half, fastmath=True)
    return half * tanh + half, tanh * 0.5 + 0.5


@cute.jit
def store(sums, alone, target, pointer, place, group, own):
    """Store the 64 rows of a warpgroup in bf16, through shared memory and TMA.

    sums:     The fragment in fp32.
    alone:    The tiled wgmma of one warpgroup.
    target:   The TMA (atom, tensor) of the matrix.
    pointer:  The buffers in shared memory, one for each warpgroup.
    place:    The (row, head) of the tile.
    group:    The number of the warpgroup.
    own:      The thread's number in its warpgroup.
    """
    buffers = view(pointer, tile_layout(64, 2))
    halves = cute.make_rmem_tensor(sums.layout, BFloat16)
    halves.store(sums.load().to(BFloat16))
    if own < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
    cute.arch.barrier(barrier_id=OWN + group, number_of_threads=WARPGROUP)
    atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), BFloat16)
    copy = cute.make_tiled_copy_C(atom, alone)
    part = copy.get_slice(own)
    cute.copy(copy, part.retile(halves), part.partition_D(buffers)[None, None, None, group])
    cute.arch.fence_view_async_shared()
    cute.arch.barrier(barrier_id=OWN + group, number_of_threads=WARPGROUP)
    if own < 32:
        outward, tiles, source, _ = parted(target, buffers, 64)
        cute.copy(outward, source[None, group], tiles[None, place[0], 0, place[1]])
        cute.arch.cp_async_bulk_commit_group()


def grid():
    """(number of this CTA, number of all CTAs)."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    return cta, ctas


def shared_memory(kind):
    return memory.SmemAllocator().allocate(kind)
