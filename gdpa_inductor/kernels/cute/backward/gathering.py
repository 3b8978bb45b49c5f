"""The kernel that adds up what the CTAs of `table_pass` have: the gradient of a table."""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr

from ..compiler import compile_kernel, pointer, stream
from ..form import ALIGNMENT
from ..ranges import LANES
from ..values import select

WIDTH = 8  # places of a CTA: a sector of memory
SLICES = 128  # threads that share the terms of a place


class Gathering:
    """target[h, first + i] = factor · the sum of sums[c, h, i] over c.

    heads: Each head has a table. Otherwise all share one, and the sum goes over the heads too.
    """

    def __init__(self, factor: float, heads: bool) -> None:
        self.factor, self.heads = factor, heads

    @cute.jit
    def __call__(self, sums, target, sizes, steps, stream):
        """Launch.

        sizes: The first place, how many places, C and H. steps: Strides of the target from head to
        head, and from place to place.
        """
        _, count, _, heads = sizes
        grid = ((count + (WIDTH - 1)) // WIDTH, heads if self.heads else 1, 1)
        self.kernel(sums, target, sizes, steps).launch(
            grid=grid, block=(SLICES * WIDTH, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, parts, target, sizes, steps):
        first, count, ctas, heads = sizes
        cta, head, _ = (Int32(x) for x in cute.arch.block_idx())
        thread = Int32(cute.arch.thread_idx()[0])
        number, own, warps = cta * WIDTH + thread % WIDTH, thread // WIDTH, SLICES * WIDTH // LANES
        layout = cute.make_layout((WIDTH, warps))
        sums = cutlass.memory.SmemAllocator().allocate_tensor(Float32, layout, ALIGNMENT)
        total = Float32(0.0)
        units = ctas if const_expr(self.heads) else ctas * heads
        for i in cutlass.range(own, select(number < count, units, 0), SLICES, unroll=4):
            unit = i * heads + head if const_expr(self.heads) else i
            total = total + parts[Int64(unit) * count + number]
        for distance in (LANES // 2, LANES // 4):
            total = total + cute.arch.shuffle_sync_bfly(total, distance)
        if thread % LANES < WIDTH:
            sums[thread % LANES, thread // LANES] = total
        cute.arch.sync_threads()
        if (own == 0) & (number < count):
            for i in range_constexpr(1, warps):
                total = total + sums[thread, i]
            at = Int64(head) * steps[0] + Int64(first + number) * steps[1]
            target[at] = target.dtype(total * self.factor)


def compiled(dtype: str, factor: float, heads: bool, arch: str) -> Any:
    sizes, steps = tuple(Int32(1) for _ in range(4)), (Int64(1), Int64(1))
    arguments = (pointer("float32"), pointer(dtype), sizes, steps, stream())
    return compile_kernel(Gathering(factor, heads), arguments, arch)
