"""A plain loop of the products of a forward:  S = Q Kᵀ,  O = P V,  P = S or silu(S / √D) in bf16.

A CTA computes the O of 128 queries at a time. It issues S of the next key tile before P V of the
current one. The first S of the next query tile runs while O is stored.
"""

from dataclasses import dataclass

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from gdpa_inductor.kernels.cute.sm90.wgmma import (
    MN,
    REGISTERS,
    SHARED,
    WARPGROUP,
    K,
    issue,
    transposed,
)

from .wgmma import (
    COLS,
    THREADS,
    D,
    as_operand,
    begin,
    grid,
    matrix,
    parted,
    rings,
    shared_memory,
    silu,
    store,
    tiled,
    tma,
)

ROWS = 128
STAGES, HEIGHTS = (2, 2, 2), (ROWS, COLS, COLS)  # Q, K, V


@dataclass(frozen=True)
class ForwardCeiling:
    """The loop of a forward. Calling it, inside of a CuTe compile, launches the kernel.

    resident:   Each buffer is loaded once and then multiplied again and again. So no load competes
                with the tensor core, and the results mean nothing.
    activated:  P is silu(S / √D). Otherwise it is S.
    """

    resident: bool = False
    activated: bool = False
    backward = False
    rows = ROWS

    @cute.jit
    def __call__(self, inputs, outputs, _sums, sizes, ctas: Int32, stream):
        """Launch the kernel.

        inputs:   Pointers to q, k and v, bf16 [heads, N, D].
        outputs:  A pointer to o, bf16 [heads, N, D].
        sizes:    (heads, N). Heads of all batches are counted. N is a multiple of 128.
        """
        load, write = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        sources = tuple(tma(load, matrix(p, *sizes), h) for p, h in zip(inputs, HEIGHTS))
        target = tma(write, matrix(outputs[0], *sizes), 64)
        products = (tiled(COLS, K, K, SHARED), tiled(D, K, MN, REGISTERS))
        alone = tiled(D, K, MN, REGISTERS, 1)
        self.kernel(sources, target, products, alone, sizes).launch(
            grid=(ctas, 1, 1), block=(THREADS, 1, 1), stream=stream, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, sources, target, products, alone, sizes):
        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, 16]
            tiles: cute.struct.Align[cute.struct.MemRange[BFloat16, 6 * ROWS * D], 1024]
            out: cute.struct.Align[cute.struct.MemRange[BFloat16, ROWS * D], 1024]

        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        shared = shared_memory(Memory)
        inputs, buffers = rings(
            shared.barriers.data_ptr(), shared.tiles.data_ptr(), STAGES, HEIGHTS, self.resident
        )
        out = shared.out.data_ptr()
        if warp_index == 0:
            begin(inputs)
        cute.arch.barrier()
        if warp_index >= 8:
            cute.arch.setmaxregister_decrease(24)
            if warp_index == 8:
                self.load([parted(*x) for x in zip(sources, buffers, HEIGHTS)], inputs, sizes)
        else:
            cute.arch.setmaxregister_increase(240)
            self.multiply(target, products, alone, inputs, buffers, out, sizes, thread)

    @cute.jit
    def load(self, parts, inputs, sizes):
        """Load Q of a tile, then K and V in turn.

        One more Q and K are loaded at the end, since the last tile looks ahead too.
        """
        (heads, length), (cta, ctas) = sizes, grid()
        tiles, steps = length // ROWS, length // COLS
        done, step = Int32(0), Int32(0)
        for tile in cutlass.range(cta, tiles * heads, ctas, unroll=1):
            head = tile // tiles
            inputs[0].fill(done, parts[0], (tile % tiles, head))
            for col in cutlass.range(steps, unroll=1):
                inputs[1].fill(step, parts[1], (col, head))
                inputs[2].fill(step, parts[2], (col, head))
                step += 1
            done += 1
        inputs[0].fill(done, parts[0], (0, 0))
        inputs[1].fill(step, parts[1], (0, 0))

    def weights(self, S):
        return as_operand(S, silu(S)[0] if self.activated else None)

    def fragments(self, products, buffers, group):
        """The fragments of Q, K and V for one warpgroup."""
        mine, mine_o = (x.get_slice(group * WARPGROUP) for x in products)
        tQ = mine.make_fragment_A(mine.partition_A(buffers[0]))
        tK = mine.make_fragment_B(mine.partition_B(buffers[1]))
        tV = mine_o.make_fragment_B(mine_o.partition_B(transposed(buffers[2])))
        return tQ, tK, tV

    def scores(self, product, tQ, tK):
        """Issue S of a query tile and a key tile. The result is still in flight."""
        S = cute.make_rmem_tensor(product.partition_shape_C((ROWS, COLS)), Float32)
        issue(product, S, tQ, tK, True)
        return S

    def activate(self, P, S, key, step, leader) -> None:
        """Wait for S, free its keys, and compute P."""
        warpgroup.wait_group(0)
        key.free(step, leader)
        P.store(self.weights(S).load())

    @cute.jit
    def multiply(self, target, products, alone, inputs, buffers, out, sizes, thread):
        (heads, length), (cta, ctas) = sizes, grid()
        tiles, steps = length // ROWS, length // COLS
        (q, k, v), (scores, sums) = inputs, products
        group, leader = cute.arch.make_warp_uniform(thread // WARPGROUP), thread % 32 == 0
        tQ, tK, tV = self.fragments(products, buffers, group)
        O = cute.make_rmem_tensor(sums.partition_shape_C((ROWS, D)), Float32)
        done, step = Int32(0), Int32(0)
        S = cute.make_rmem_tensor(scores.partition_shape_C((ROWS, COLS)), Float32)
        P = self.weights(S)
        at, key = q.wait(done), k.wait(step)
        issue(scores, S, tQ[None, None, None, at], tK[None, None, None, key], True)
        self.activate(P, S, k, step, leader)
        for tile in cutlass.range(cta, tiles * heads, ctas, unroll=1):
            at = q.wait(done)
            O.fill(0.0)
            for _ in cutlass.range(steps - 1, unroll=1):
                key = k.wait(step + 1)
                S = self.scores(scores, tQ[None, None, None, at], tK[None, None, None, key])
                issue(sums, O, P, tV[None, None, None, v.wait(step)], False)
                warpgroup.wait_group(1)
                k.free(step + 1, leader)
                following = self.weights(S)
                warpgroup.wait_group(0)
                v.free(step, leader)
                P.store(following.load())
                step += 1
            q.free(done, leader)
            place = (tile % tiles * 2 + group, tile // tiles)
            issue(sums, O, P, tV[None, None, None, v.wait(step)], False)
            at, key = q.wait(done + 1), k.wait(step + 1)
            S = self.scores(scores, tQ[None, None, None, at], tK[None, None, None, key])
            warpgroup.wait_group(1)
            v.free(step, leader)
            store(O, alone, target, out, place, group, thread % WARPGROUP)
            self.activate(P, S, k, step + 1, leader)
            step += 1
            done += 1
        if thread % WARPGROUP < 32:
            cute.arch.cp_async_bulk_wait_group(0)
