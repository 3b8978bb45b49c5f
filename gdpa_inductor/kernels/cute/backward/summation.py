"""The kernel that sums the stored gradients of scores over batches or heads: see `biases.total`."""

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute

from ..compiler import compile_kernel, pointer, stream
from ..config import VECTOR
from ..form import ALIGNMENT
from ..operands import vector

THREADS = 256


class Summation:
    """target[o, i] = factor · the sum of source[o, :, i]. i counts vectors of 8 numbers.

    adds: before[o, i] is added. It is fp32, and lies as the target does.

    apart: The rows of the target are not contiguous. They have `width` vectors, and begin `step`
    vectors apart. Then there is only o = 0.
    """

    def __init__(self, factor: float, apart: bool = False, adds: bool = False) -> None:
        self.factor, self.apart, self.adds = factor, apart, adds

    @cute.jit
    def __call__(self, source, target, before, inner, count, outer, width, step, stream):
        ctas = Int32((inner + (THREADS - 1)) // THREADS)
        self.kernel(source, target, before, inner, count, width, step).launch(
            grid=(ctas, outer, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, source, target, before, inner, count, width, step):
        cta, outer, _ = cute.arch.block_idx()
        own = Int64(cta) * THREADS + cute.arch.thread_idx()[0]
        if own < inner:
            first = source + (Int64(outer) * count * inner + own) * VECTOR
            sums = cute.make_rmem_tensor(VECTOR, Float32)
            sums.fill(0.0)
            for i in cutlass.range(count, unroll=4):
                numbers = cute.make_rmem_tensor(VECTOR, source.dtype)
                cute.autovec_copy(vector(first + i * inner * VECTOR), numbers)
                sums.store(sums.load() + numbers.load().to(Float32))
            place = Int64(outer) * inner + own
            if const_expr(self.apart):
                row = Int32(own) // width
                place = row * step + (Int32(own) - row * width)
            whole = sums.load() * self.factor
            if const_expr(self.adds):
                whole = whole + vector(before + place * VECTOR).load()
            narrow = cute.make_rmem_tensor(VECTOR, target.dtype)
            narrow.store(whole.to(target.dtype))
            cute.autovec_copy(narrow, vector(target + place * VECTOR))


def compiled(source: str, target: str, factor: float, arch: str, *rest: bool):
    pointers = (pointer(dtype, ALIGNMENT) for dtype in (source, target, "float32"))
    counts = (Int64(1), Int32(1), Int32(1), Int32(1), Int64(1))
    return compile_kernel(Summation(factor, *rest), (*pointers, *counts, stream()), arch)
