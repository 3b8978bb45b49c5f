"""A small CuTe kernel of the forward for any GPU: one query row per thread, plain loads, fp32.

It shares with the Blackwell kernel all that is not Blackwell's: the host wrapper, the scheduler's
order of tiles, their classification, the emission of score programs, operands by access map.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute, range_constexpr

from gdpa_inductor.kernels.cute.compiler import compile_kernel, example
from gdpa_inductor.kernels.cute.config import KernelConfig
from gdpa_inductor.kernels.cute.forward.ranges import KeyRanges
from gdpa_inductor.kernels.cute.forward.scheduler import WorkTile
from gdpa_inductor.kernels.cute.forward.work import Work
from gdpa_inductor.kernels.cute.operands import AttentionKernel, KernelArguments
from gdpa_inductor.kernels.cute.program import Program, Row
from gdpa_inductor.kernels.cute.values import Pair, choose, pair, smaller


class Rowwise(AttentionKernel):
    """Takes what `launch` hands to the Blackwell kernel."""

    def launch(self, arguments: KernelArguments, ctas: Int32, stream):
        threads = self.config.tiles * self.config.rows
        self.kernel(arguments).launch(grid=(ctas, 1, 1), block=(threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: KernelArguments):
        ranges = KeyRanges(self.config, x)
        work = Work(self.config, x, ranges.skips)
        program = Program(self.config, x)
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        number = Int32(cta)
        while number < work.tiles:
            tile = work.decode(number)
            if tile.row < tile.q_rows:
                first, *lasts = ranges.blocks(tile)
                last = WorkTile.of(*tile.fields[: -1 - len(lasts)], first, *lasts).last(
                    thread // self.config.rows
                )
                n = tile.row + thread
                if n < tile.q_rows:
                    self.row(program, tile, n, x.pointers, x.strides, first, last)
            number += grid

    def line(self, pointers, strides, matrix, tile, head, row):
        """Row `row` of the tile's sequence and of a head, as a tensor."""
        c = self.config
        side, start = ("q", tile.q_start) if matrix in (0, 3) else ("k", tile.k_start)
        batch_stride, head_stride, row_stride = strides[matrix]
        place = Int64(head) * head_stride + Int64(start + row) * row_stride
        shared = matrix < 3 and "qkv"[matrix] in c.shared
        if not (c.jagged_q if side == "q" else c.jagged_k) and not shared:
            place += Int64(tile.batch) * batch_stride
        width = c.head_dim if matrix < 2 else c.value_dim
        return cute.make_tensor(pointers[matrix] + place, cute.make_layout(width))

    @cute.jit
    def row(self, program, tile, n, pointers, strides, first, last):
        dim, width = self.config.head_dim, self.config.value_dim
        query = self.line(pointers, strides, 0, tile, tile.head, n)
        weights = Row(program, tile, n)
        sums = cute.make_rmem_tensor(width, Float32)
        sums.fill(0.0)
        end = smaller(last * self.config.cols, tile.k_rows)
        for m in cutlass.range(first * self.config.cols, end, 2, unroll=1):
            at = (m, smaller(m + 1, tile.k_rows - 1))
            scores = []
            for column in at:
                key = self.line(pointers, strides, 1, tile, tile.key_head, column)
                score = Float32(0.0)
                for d in range_constexpr(dim):
                    score += Float32(query[d]) * Float32(key[d])
                scores.append(score)
            (results,) = weights(s=Pair(*scores), kv_idx=Pair(m, m + 1))
            remaining = choose(Pair(m < tile.k_rows, m + 1 < tile.k_rows), results, 0.0)
            for column, weight in zip(at, pair(remaining).lanes, strict=True):
                value = self.line(pointers, strides, 2, tile, tile.value_head, column)
                for d in range_constexpr(width):
                    sums[d] += weight * Float32(value[d])
        out = self.line(pointers, strides, 3, tile, tile.head, n)
        for d in range_constexpr(width):
            out[d] = sums[d].to(out.element_type)


def compiled(config: KernelConfig, arch: str):
    """In place of `launch.compiled`."""
    return compile_kernel(Rowwise(config), example(config), arch)
