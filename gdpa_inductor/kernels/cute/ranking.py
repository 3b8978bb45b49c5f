"""The kernel that ranks sequences by their lengths: see `launch.longest_first`."""

import cutlass
from cutlass import Int32, Int64, cute

from .compiler import compile_kernel, pointer, stream
from .ranges import LANES
from .values import smaller

WARPS = 8  # of a CTA


class Ranking:
    """order[rank(i)] = i for each sequence i, and order[B] = 0 (`forward/work.py`).

    rank(i) is the number of sequences that are longer than i, or as long and before i.
    """

    @cute.jit
    def __call__(self, offsets, order, batch: Int32, stream):
        ctas = (batch + (WARPS - 1)) // WARPS
        self.kernel(offsets, order, batch).launch(
            grid=(ctas, 1, 1), block=(LANES * WARPS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, offsets, order, batch):
        own = Int32(cute.arch.block_idx()[0]) * WARPS + cute.arch.warp_idx()
        if own < batch:
            length, rank = self.length(offsets, own), Int32(0)
            for base in cutlass.range(0, batch, LANES, unroll=4):
                other = base + cute.arch.lane_idx()
                other_length = self.length(offsets, smaller(other, batch - 1))
                earlier = (other_length > length) | ((other_length == length) & (other < own))
                rank += Int32((other < batch) & earlier)
            rank = cute.arch.warp_redux_sync(rank, "add")
            with cute.arch.elect_one():
                order[rank] = Int64(own)
        if (own == 0) & (cute.arch.lane_idx() == 0):
            order[batch] = Int64(0)

    def length(self, offsets, number):
        return offsets[number + 1] - offsets[number]


def compiled(dtype: str, arch: str):
    arguments = (pointer(dtype), pointer("int64"), Int32(1), stream())
    return compile_kernel(Ranking(), arguments, arch)
