"""The forward kernel for Blackwell.

    O[b,h,i,:] = sum_j P[b,h,i,j] V[b,h,j,:],   P = program(Q Kᵀ),   j < keys of the sequence

Notation
    Q, K, V, O     Query [.., M, D], key [.., N, D], value [.., N, Dv], output [.., M, Dv].
    mX  sX  tX     X in global memory, in shared memory, in tensor memory.
    t              A query tile of the CTA, 0 or 1. If there is one query tile, its key blocks have
                   S_0 and S_1 in turn.
    S_t            The scores of query tile t and a key block: 128 × 128, fp32.
    P_t            The weights: 16 bits, in the first half of the columns of S_t.
    O_t            The sums of query tile t: 128 × Dv, fp32.
    block          128 keys.

There is no softmax: O_t stays in tensor memory over all key blocks, and nothing is rescaled. The
roles of the warps are:

    0-3, 4-7   Activation of t = 0, 1: S_t to P_t, the first three quarters ahead of the rest.
    8-11       Epilogue: O_t to global memory.
    12         Products: O_t += P_t V, then S_t = Q_t Kᵀ of the next block.
    13         Loads of Q, K and V.
    14         Scheduler.

While one query tile is activated, the tensor core works on the other. The first S_t of the next
work tile is issued before the epilogue has read O_t of this one. That matters most with one or two
key blocks.
"""

from dataclasses import replace

from cutlass import Float32, Int32, Int64, cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers

from ...forward.loads import ForwardLoads
from ...forward.ranges import KeyRanges
from ...forward.scheduler import RECORD, STAGES, Scheduler
from ...forward.work import Queue, Work
from ...operands import AttentionKernel, KernelArguments, Tiles, matrices
from ...program import Program
from ..config import COLS, ROWS, TMEM_COLUMNS, Sm100Config
from ..tensor_memory import TensorMemoryRow
from .activation import ForwardActivation
from .epilogue import Epilogue, OutputMatrix
from .loads import PartLoads
from .products import AlternatingProducts, ForwardProducts
from .roles import (
    EPILOGUE,
    LOADS,
    PRODUCTS,
    REGISTERS,
    SCHEDULER,
    WARPGROUP,
    WARPS,
    Channels,
    ForwardTensorMemory,
)


class ForwardKernel(AttentionKernel):
    """The forward of one configuration."""

    config: Sm100Config

    def __init__(self, config: Sm100Config) -> None:
        super().__init__(config)
        c, value_width = config, config.padded_value_dim
        self.qk_tiler, self.pv_tiler = (ROWS, COLS, c.query_width), (ROWS, value_width, COLS)
        # With what one buffer of K or V holds:
        self.k_tiler, self.v_tiler = (ROWS, COLS, c.part_width), (ROWS, value_width, c.part_keys)

    def products_and_layouts(self) -> None:
        """The two tiled products, and the layouts of their operands in shared memory."""
        c, dtype, one = self.config, self.dtype, tcgen05.CtaGroup.ONE
        k_major, mn_major = OperandMajorMode.K, OperandMajorMode.MN
        make, tmem = blackwell_helpers.make_trivial_tiled_mma, tcgen05.OperandSource.TMEM
        qk, pv = self.qk_tiler[:2], self.pv_tiler[:2]
        self.qk = make(dtype, dtype, k_major, k_major, Float32, one, qk)
        self.pv = make(dtype, dtype, k_major, mn_major, Float32, one, pv, tmem)
        layout_a = blackwell_helpers.make_smem_layout_a
        layout_b = blackwell_helpers.make_smem_layout_b
        self.q_layout = layout_a(self.qk, self.qk_tiler, dtype, c.query_stages)
        self.p_layout = layout_a(self.pv, self.pv_tiler, dtype, 1)
        k_layout = cute.select(layout_b(self.qk, self.k_tiler, dtype, 1), mode=[0, 1, 2])
        v_layout = cute.select(layout_b(self.pv, self.v_tiler, dtype, 1), mode=[0, 1, 2])
        self.stage = max(cute.cosize(k_layout), cute.cosize(v_layout))
        ring = cute.make_layout(c.key_stages, stride=self.stage)
        self.k_layout, self.v_layout = cute.append(k_layout, ring), cute.append(v_layout, ring)

    def storage(self):
        count = Channels.count(self.config)
        queries, keys = cute.cosize(self.q_layout), self.stage * self.config.key_stages

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, count]
            records: cute.struct.MemRange[Int32, STAGES * RECORD]
            tmem: Int32
            sQ: cute.struct.Align[cute.struct.MemRange[self.dtype, queries], 1024]
            sKV: cute.struct.Align[cute.struct.MemRange[self.dtype, keys], 1024]

        return Memory

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        self.products_and_layouts()
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        q, k, v, _ = matrices(self.config, arguments)
        staged = (self.q_layout, self.k_layout, self.v_layout)
        layouts = [cute.select(x, mode=[0, 1, 2]) for x in staged]
        self.bytes = [cute.size_in_bytes(self.dtype, x) for x in layouts]
        copy_a, copy_b = cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B
        copies = {
            "q": copy_a(load, q.tensor(), layouts[0], self.qk_tiler, self.qk),
            "k": copy_b(load, k.tensor(), layouts[1], self.k_tiler, self.qk),
            "v": copy_b(load, v.tensor(transposed=True), layouts[2], self.v_tiler, self.pv),
        }
        self.memory = self.storage()
        output = replace(arguments, pointers=arguments.pointers[3], strides=arguments.strides[3])
        self.kernel(self.qk, self.pv, copies, (*staged, self.p_layout), output).launch(
            grid=(ctas, 1, 1), block=(32 * WARPS, 1, 1), stream=stream, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, qk, pv, copies, layouts, x):
        # x: The pointer and the strides are those of O alone.
        c = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        buffers = memory.SmemAllocator().allocate(self.memory)
        sQ, sK, sV = self.shared(buffers, layouts)
        channels = Channels(c, buffers.barriers.data_ptr())
        channels.start(warp, buffers.tmem.ptr)
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, buffers.tmem.ptr)
        sums = ForwardTensorMemory(c, qk, pv, layouts[3], tmem, self.dtype)
        ranges = KeyRanges(c, x)
        scheduler = Scheduler(channels.tiles, buffers.records, Work(c, x, ranges.skips), ranges)
        if warp < EPILOGUE:
            cute.arch.setmaxregister_increase(REGISTERS["activation"])
            plain, lane = (
                Program(c, x, ranges.full_terms, on_full=True),
                TensorMemoryRow(tmem, thread, self.dtype),
            )
            role = ForwardActivation(c, channels, lane, ranges, plain, Program(c, x))
            role.run(scheduler, warp // 4, thread % WARPGROUP)
        elif warp < PRODUCTS:
            cute.arch.setmaxregister_decrease(REGISTERS["epilogue"])
            lane = TensorMemoryRow(tmem, thread, self.dtype)
            output = OutputMatrix(x.pointers, x.strides, c.value_dim, self.dtype)
            Epilogue(channels, lane, output, c).run(scheduler, thread % WARPGROUP)
            cute.arch.barrier(barrier_id=1, number_of_threads=WARPGROUP)
            if warp == EPILOGUE:
                cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)
        else:
            cute.arch.setmaxregister_decrease(REGISTERS["others"])
            if warp == PRODUCTS:
                products = ForwardProducts if c.tiles == 2 else AlternatingProducts
                products(c, channels, sums, qk, pv, sQ, sK, sV).run(scheduler)
            if warp == LOADS:
                q = self.source("q", copies["q"], sQ, qk)
                k = self.source("k", copies["k"], sK, qk)
                v = self.source("v", copies["v"], sV, pv)
                loads = PartLoads if c.wide else ForwardLoads
                loads(c, channels, q, k, v).run(scheduler)
            if warp == SCHEDULER:
                scheduler.publish(Queue(scheduler.work) if c.jagged else None)

    def shared(self, buffers, layouts):
        q, k, v, _ = layouts
        return (
            buffers.sQ.get_tensor(q.outer, swizzle=q.inner),
            buffers.sKV.get_tensor(k.outer, swizzle=k.inner),
            buffers.sKV.get_tensor(v.outer, swizzle=v.inner),
        )

    def source(self, name: str, copy, sX, product) -> Tiles:
        c, product = self.config, product.get_slice(0)
        part, tiler, jagged = {
            "q": (product.partition_A, self.qk_tiler[::2], c.jagged_q),
            "k": (product.partition_B, self.k_tiler[1:], c.jagged_k),
            "v": (product.partition_B, self.v_tiler[1:], c.jagged_k),
        }[name]
        size, shared = self.bytes["qkv".index(name)], name in c.shared
        return Tiles(copy, sX, part, tiler, size, jagged, shared, transposed=name == "v")


KERNEL = ForwardKernel
