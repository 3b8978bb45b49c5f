"""The forward kernel:  O[b,h,n,:] = sum_m P[b,h,n,m] V[b,h,m,:],  P = program(Q Kᵀ), m < length.

Notation
    Q, K, V, O      query [.., N, D], key [.., M, D], value [.., M, Dv], output [.., N, Dv] mX  sX
    tX      in global memory, in shared memory, in tensor memory S_t, P_t, O_t   of query tile t in
    {0, 1} of the CTA: 128 x 128 scores (fp32), weights (16 bits, in
                    the first half of the columns of S_t), 128 x Dv sums (fp32)
    block           128 keys

No softmax: O_t stays in tensor memory over all key blocks, and nothing is rescaled. Roles, by warp:

    0-3, 4-7   activation of t = 0, 1     S_t -> P_t, three quarters first 8-11       epilogue
    O_t -> global memory 12         products                   per block: O_t += P_t V, then S_t =
    Q_t Kᵀ of the next block
    13         loads                      Q tiles, and the ring of K and V tiles
    14         scheduler

While one query tile is activated the tensor core works on the other. The next tile's first S_t is
issued before the epilogue has drained this one's O_t: with one or two key blocks that is the
difference.
"""

import cutlass
from cutlass import Boolean, Constexpr, Float32, Int32, Int64, cute, memory, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers

from .activation import PART as SCORES_AT_ONCE
from .activation import PARTS, Scores, weights_of
from .config import COLS, ROWS, TMEM_COLUMNS, Config
from .epilogue import PART, Output, Sums
from .operands import Matrix, Tiles
from .pipeline import Barriers, Cursor, Ring, scores_done, scores_ready
from .program import Program, Row
from .ranges import Ranges
from .scheduler import FIELDS, STAGES, Scheduler
from .work import Work

TILES = 2  # query tiles of a CTA
EPILOGUE, PRODUCTS, LOADS, SCHEDULER, WARPS = 8, 12, 13, 14, 16
READERS = 14  # warps that read the scheduler's records
REGISTERS = {"activation": 168, "epilogue": 96, "others": 80}  # 512 threads share 65536
HANDED_OVER = (PARTS - 1, PARTS)  # P_t goes to the tensor core in two parts: 3/4, then the rest
SCORES, SUMS = 0, 256  # first columns in tensor memory
STEPS = COLS // 16  # tcgen05.mma of O_t += P_t V, 16 keys each
WARPGROUP = 128


class Forward:
    """One compiled configuration. `__call__` is the host's side, `kernel` the device's."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dtype = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[config.dtype]
        self.qk_tiler = (ROWS, COLS, config.padded_head_dim)
        self.pv_tiler = (ROWS, config.padded_value_dim, COLS)

    def products_and_layouts(self) -> None:
        """The two tiled products, and how their operands lie in shared memory."""
        c, dtype, one = self.config, self.dtype, tcgen05.CtaGroup.ONE
        k_major, mn_major = OperandMajorMode.K, OperandMajorMode.MN
        make = blackwell_helpers.make_trivial_tiled_mma
        self.qk = make(dtype, dtype, k_major, k_major, Float32, one, self.qk_tiler[:2])
        self.pv = make(
            dtype, dtype, k_major, mn_major, Float32, one, self.pv_tiler[:2],
            tcgen05.OperandSource.TMEM,
        )  # fmt: skip
        layout_a = blackwell_helpers.make_smem_layout_a
        layout_b = blackwell_helpers.make_smem_layout_b
        self.q_layout = layout_a(self.qk, self.qk_tiler, dtype, c.query_stages)
        self.p_layout = layout_a(self.pv, self.pv_tiler, dtype, 1)
        k_layout = cute.select(layout_b(self.qk, self.qk_tiler, dtype, 1), mode=[0, 1, 2])
        v_layout = cute.select(layout_b(self.pv, self.pv_tiler, dtype, 1), mode=[0, 1, 2])
        self.stage = max(cute.cosize(k_layout), cute.cosize(v_layout))
        ring = cute.make_layout(c.key_stages, stride=self.stage)
        self.k_layout, self.v_layout = cute.append(k_layout, ring), cute.append(v_layout, ring)

    def storage(self):
        """Shared memory: barriers first, then the tiles."""
        c = self.config
        rings = STAGES + c.query_stages + c.key_stages + TILES * c.output_stages
        count = 2 * rings + (1 + len(HANDED_OVER)) * TILES

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, count]
            records: cute.struct.MemRange[Int32, STAGES * FIELDS]
            tmem: Int32
            sQ: cute.struct.Align[
                cute.struct.MemRange[self.dtype, cute.cosize(self.q_layout)], 1024
            ]
            sKV: cute.struct.Align[
                cute.struct.MemRange[self.dtype, self.stage * c.key_stages], 1024
            ]

        return Memory

    @cute.jit
    def __call__(
        self, pointers, sizes, strides, cu_q, cu_k, order, aux, scalars, ctas: Int32, stream
    ):
        """pointers: of Q, K, V, O. strides: (batch, head, row) of each. sizes: batch, heads, key
        heads, value heads, rows, cols (the most, of a jagged side), rows of Q, rows of K. cu_q,
        cu_k, order: offsets and order of the sequences, or None. aux: (pointer, strides) of each
        operand of the program, scalars: its integers, or None. ctas: one for each
        multiprocessor."""
        self.products_and_layouts()
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        q, k, v, _ = self.matrices(pointers, sizes, strides)
        layouts = [
            cute.select(x, mode=[0, 1, 2]) for x in (self.q_layout, self.k_layout, self.v_layout)
        ]
        self.bytes = [cute.size_in_bytes(self.dtype, x) for x in layouts]
        atom_q, mQ = cute.nvgpu.make_tiled_tma_atom_A(
            load, q.tensor(), layouts[0], self.qk_tiler, self.qk
        )
        atom_k, mK = cute.nvgpu.make_tiled_tma_atom_B(
            load, k.tensor(), layouts[1], self.qk_tiler, self.qk
        )
        atom_v, mV = cute.nvgpu.make_tiled_tma_atom_B(
            load, v.tensor(transposed=True), layouts[2], self.pv_tiler, self.pv
        )
        self.memory = self.storage()
        self.kernel(
            self.qk, self.pv, atom_q, mQ, atom_k, mK, atom_v, mV,
            (self.q_layout, self.k_layout, self.v_layout, self.p_layout), pointers[3], strides[3],
            sizes, cu_q, cu_k, order, aux, scalars,
        ).launch(
            grid=(ctas, 1, 1), block=(32 * WARPS, 1, 1), stream=stream, min_blocks_per_mp=1
        )  # fmt: skip

    def matrices(self, pointers, sizes, strides) -> list[Matrix]:
        c = self.config
        batch, heads, key_heads, value_heads, _, _, q_rows, k_rows = sizes
        rows = {
            "q": (heads, q_rows, c.head_dim, c.jagged_q),
            "k": (key_heads, k_rows, c.head_dim, c.jagged_k),
            "v": (value_heads, k_rows, c.value_dim, c.jagged_k),
            "o": (heads, q_rows, c.value_dim, c.jagged_q),
        }
        return [
            Matrix(pointer, 1 if name in c.shared else batch, *row[:3], stride, row[3])
            for (name, row), pointer, stride in zip(rows.items(), pointers, strides)
        ]

    @cute.kernel
    def kernel(
        self,
        qk: cute.TiledMma,
        pv: cute.TiledMma,
        atom_q: cute.CopyAtom,
        mQ: cute.Tensor,
        atom_k: cute.CopyAtom,
        mK: cute.Tensor,
        atom_v: cute.CopyAtom,
        mV: cute.Tensor,
        layouts,
        o: cute.Pointer,
        o_strides,
        sizes,
        cu_q,
        cu_k,
        order,
        aux,
        scalars,
    ):
        c = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        buffers = self.shared_memory(*layouts[:3])
        self.channels(buffers)
        self.start(buffers, warp)
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, buffers.tmem.ptr)
        self.tensor_memory(qk, pv, layouts[3], tmem)
        ranges = Ranges(c, aux, scalars, TILES * ROWS)
        work = Work(c, sizes, (cu_q, cu_k, order))
        scheduler = Scheduler(self.tiles, self.records, work, ranges)

        if warp < EPILOGUE:
            cute.arch.setmaxregister_increase(REGISTERS["activation"])
            careful = Program(c, aux, scalars)
            plain = Program(c, aux, scalars, ranges.classes.full_terms)
            self.activate(scheduler, ranges, (plain, careful), warp // 4, thread % WARPGROUP)
        elif warp < PRODUCTS:
            cute.arch.setmaxregister_decrease(REGISTERS["epilogue"])
            output = Output(o, o_strides, c.value_dim, self.dtype)
            self.drain(scheduler, output, thread % WARPGROUP)
            cute.arch.barrier(barrier_id=1, number_of_threads=WARPGROUP)
            if warp == EPILOGUE:
                cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)
        else:
            cute.arch.setmaxregister_decrease(REGISTERS["others"])
            if warp == PRODUCTS:
                self.multiply(scheduler, qk, pv)
            if warp == LOADS:
                self.load(
                    scheduler,
                    self.source("q", atom_q, mQ, qk),
                    self.source("k", atom_k, mK, qk),
                    self.source("v", atom_v, mV, pv),
                )
            if warp == SCHEDULER:
                scheduler.publish()

    def shared_memory(self, q_layout, k_layout, v_layout):
        """The buffers of the tiles and of the scheduler's records."""
        buffers = memory.SmemAllocator().allocate(self.memory)
        self.sQ = buffers.sQ.get_tensor(q_layout.outer, swizzle=q_layout.inner)
        self.sK = buffers.sKV.get_tensor(k_layout.outer, swizzle=k_layout.inner)
        self.sV = buffers.sKV.get_tensor(v_layout.outer, swizzle=v_layout.inner)
        self.records = buffers.records.get_tensor(
            cute.make_layout((STAGES, FIELDS), stride=(FIELDS, 1))
        )
        return buffers

    def source(self, name: str, atom, tensor, product) -> Tiles:
        """The tiles of Q, K or V."""
        c, product = self.config, product.get_slice(0)
        sX, part, tiler, jagged = {
            "q": (self.sQ, product.partition_A, (ROWS, c.padded_head_dim), c.jagged_q),
            "k": (self.sK, product.partition_B, (COLS, c.padded_head_dim), c.jagged_k),
            "v": (self.sV, product.partition_B, (c.padded_value_dim, COLS), c.jagged_k),
        }[name]
        size, shared = self.bytes["qkv".index(name)], name in c.shared
        return Tiles(atom, tensor, sX, part, tiler, size, jagged, shared, transposed=name == "v")

    def channels(self, buffers) -> None:
        """Who waits for whom. Whatever is not here is ordered by the tensor core itself, which
        multiplies in the order of issue: S_t of the next block overwrites P_t only after O_t += P_t
        V has read it."""
        c = self.config
        self.all_channels: list[Ring | Barriers] = []
        free = buffers.barriers.data_ptr()

        def ring(stages: int, producers: int, consumers: int) -> Ring:
            nonlocal free
            made = Ring(free, stages, producers, consumers)
            free = free + 2 * stages
            self.all_channels.append(made)
            return made

        def barriers(arrivals: int) -> Barriers:
            nonlocal free
            made = Barriers(free, TILES, arrivals)
            free = free + TILES
            self.all_channels.append(made)
            return made

        self.tiles = ring(STAGES, 1, READERS)
        self.queries = [ring(c.query_stages // TILES, 1, 1) for _ in range(TILES)]
        self.keys = ring(c.key_stages, 1, 1)
        self.sums = [ring(c.output_stages, 1, WARPGROUP) for _ in range(TILES)]
        self.scores = barriers(1)
        self.weights = [barriers(WARPGROUP) for _ in HANDED_OVER]

    @cute.jit
    def start(self, buffers, warp):
        """Barriers and tensor memory are there for all warps after this."""
        if warp == SCHEDULER:
            with cute.arch.elect_one():
                for channel in self.all_channels:
                    channel.init()
            cute.arch.mbarrier_init_fence()
        if warp == EPILOGUE:
            cute.arch.alloc_tmem(TMEM_COLUMNS, buffers.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()

    def tensor_memory(self, qk, pv, p_layout, tmem) -> None:
        """S_t and P_t; the layout of O_t."""
        self.tmem = tmem
        s = qk.make_fragment_C(qk.partition_shape_C(self.qk_tiler[:2])).layout
        self.o_layout = pv.make_fragment_C(pv.partition_shape_C(self.pv_tiler[:2])).layout
        self.tS = [cute.make_tensor(tmem + SCORES + COLS * t, s) for t in range(TILES)]
        p = pv.make_fragment_A(cute.make_tensor(self.tS[0].iterator, p_layout.outer))
        self.tP = [
            cute.make_tensor(cute.recast_ptr(tS.iterator, dtype=self.dtype), p.layout)
            for tS in self.tS
        ]

    @cute.jit
    def load(self, scheduler, q: Tiles, k: Tiles, v: Tiles):
        """The loads: two query tiles, then K and V of each block."""
        at, q_at, k_at = self.tiles.start(), self.queries[0].start(), self.keys.start()
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            for t in range_constexpr(TILES):
                rows = (tile.q_start, tile.row + t * ROWS, tile.q_rows)
                stage = q_at.index * TILES + t
                self.fetch(q, rows, tile.head, tile.batch, self.queries[t], q_at, stage)
            q_at = q_at.next()
            for block in cutlass.range(tile.first, tile.last, unroll=1):
                rows = (tile.k_start, block * COLS, tile.k_rows)
                self.fetch(k, rows, tile.key_head, tile.batch, self.keys, k_at, k_at.index)
                k_at = k_at.next()
                self.fetch(v, rows, tile.value_head, tile.batch, self.keys, k_at, k_at.index)
                k_at = k_at.next()
            tile, at = scheduler.take_busy(at)
        for t in range_constexpr(TILES):
            self.queries[t].wait_all(q_at)
        self.keys.wait_all(k_at)

    @cute.jit
    def fetch(self, tiles: Tiles, rows, head, batch, ring: Ring, at: Cursor, stage):
        start, row, end = rows
        ring.empty.wait_before(at)
        ring.full.expect(at, tiles.size)
        tiles.copy(start, row, end, head, batch, stage, ring.full.at(at))

    @cute.jit
    def multiply(self, scheduler, qk, pv):
        """The products, of all tiles in one sequence: O_t += P_t V of the block that was scored
        last, then S_t = Q_t Kᵀ of the next block, be it of this tile or of the next."""
        at, q, k = self.tiles.start(), self.queries[0].start(), self.keys.start()
        v, p, o = k, Cursor(1), Cursor(self.config.output_stages)
        tile, at = scheduler.take_busy(at)
        block = tile.first
        pending, started, closing = Boolean(False), Boolean(False), Boolean(False)
        while (tile.valid == 1) | pending:
            if pending:
                self.keys.full.wait(v)
            for t in range_constexpr(TILES):
                if pending:
                    self.add(pv, t, v, p, o, started)
                    if closing:
                        self.sums[t].full.arrive_when_multiplied(o)
                if tile.valid == 1:
                    if cutlass.const_expr(t == 0):
                        self.keys.full.wait(k)
                    self.score(qk, t, q, k, block == tile.first)
            if pending:
                self.keys.empty.arrive_when_multiplied(v)
                p = p.next()
                if closing:
                    o = o.next()
            pending = tile.valid == 1
            if pending:
                self.keys.empty.arrive_when_multiplied(k)
                v = k.next()
                k = v.next()
                started, closing = block != tile.first, block + 1 == tile.last
                block += 1
                if closing:
                    for t in range_constexpr(TILES):
                        self.queries[t].empty.arrive_when_multiplied(q)
                    q = q.next()
                    tile, at = scheduler.take_busy(at)
                    block = tile.first

    @cute.jit
    def score(self, qk, t: Constexpr, q: Cursor, k: Cursor, fresh):
        """S_t = Q_t Kᵀ. fresh: Q_t is a new one."""
        if fresh:
            self.queries[t].full.wait(q)
        qk = copied(qk)
        tQ, tK = qk.make_fragment_A(self.sQ), qk.make_fragment_B(self.sK)
        scores_ready()
        for step in range_constexpr(cute.size(tQ, mode=[2])):
            qk.set(tcgen05.Field.ACCUMULATE, step != 0)
            a, b = tQ[None, None, step, q.index * TILES + t], tK[None, None, step, k.index]
            cute.gemm(qk, self.tS[t], a, b, self.tS[t])
        self.scores.of(t).arrive_when_multiplied(Cursor(1))

    @cute.jit
    def add(self, pv, t: Constexpr, v: Cursor, p: Cursor, o: Cursor, started):
        """O_t += P_t V, or O_t = P_t V where nothing has been summed yet."""
        if not started:
            self.sums[t].empty.wait_before(o)
        pv = copied(pv)
        tV, tO = pv.make_fragment_B(self.sV), self.output(t, o)
        for part in range_constexpr(len(HANDED_OVER)):
            self.weights[part].of(t).wait(p)
            scores_ready()
            steps = [STEPS * x // PARTS for x in (0, *HANDED_OVER)][part : part + 2]
            for step in range_constexpr(*steps):
                pv.set(tcgen05.Field.ACCUMULATE, started if step == 0 else True)
                a, b = self.tP[t][None, None, step, 0], tV[None, None, step, v.index]
                cute.gemm(pv, tO, a, b, tO)

    def output(self, t: int, o: Cursor):
        column = SUMS + 128 * t + 128 // self.config.output_stages * o.index
        return cute.make_tensor(self.tmem + column, self.o_layout)

    @cute.jit
    def activate(self, scheduler, ranges: Ranges, programs, t, thread):
        """The activation of query tile t. programs: the one for blocks without masks and tails, and
        the one for all."""
        tS = cute.make_tensor(self.tmem + (SCORES + COLS * t), self.tS[0].layout)
        scores = Scores(tS, thread, self.dtype)
        at, s = self.tiles.start(), Cursor(1)
        tile, at = scheduler.take_busy(at)
        while tile.valid == 1:
            first = tile.row + t * ROWS
            plain, careful = [Row(program, tile, first + thread) for program in programs]
            for block in cutlass.range(tile.first, tile.last, unroll=1):
                column = block * COLS
                self.scores.of(t).wait(s)
                scores_ready()
                if ranges.needs_no_mask(tile, first, column):
                    self.weigh(scores, plain, t, s, column, None)
                else:
                    self.weigh(scores, careful, t, s, column, tile.k_rows)
                s = s.next()
            tile, at = scheduler.take_busy(at)

    @cute.jit
    def weigh(self, scores: Scores, row, t, s: Cursor, column, end):
        """One block: every part of S_t to weights, and these to the tensor core."""
        following = scores.fetch(0)
        for part in range_constexpr(PARTS):
            cute.arch.fence_view_async_tmem_load()
            now = following
            if cutlass.const_expr(part + 1 < PARTS):
                following = scores.fetch(part + 1)
            scores.give(part, weights_of(now, row, column + part * SCORES_AT_ONCE, end))
            if cutlass.const_expr(part + 1 in HANDED_OVER):
                scores_done(stored=True)
                self.weights[HANDED_OVER.index(part + 1)].of(t).arrive(s)

    @cute.jit
    def drain(self, scheduler, output: Output, thread):
        """The epilogue, which sees every tile: one without keys is zero."""
        at, o = self.tiles.start(), Cursor(self.config.output_stages)
        tile, at = scheduler.take(at)
        while tile.valid == 1:
            if tile.blocks > 0:
                for t in range_constexpr(TILES):
                    self.sums[t].full.wait(o)
                    scores_ready()
                    self.store(output, tile, t, o, thread, True)
                    scores_done(stored=False)
                    self.sums[t].empty.arrive(o)
                o = o.next()
            else:
                for t in range_constexpr(TILES):
                    self.store(output, tile, t, o, thread, False)
            tile, at = scheduler.take(at)

    @cute.jit
    def store(self, output: Output, tile, t: Constexpr, o: Cursor, thread, summed: Constexpr):
        n = tile.row + t * ROWS + thread
        row = output.row(tile, n, self.config.jagged_q)
        sums = Sums(self.output(t, o), thread)
        for part in range_constexpr(self.config.padded_value_dim // PART):
            values = sums.fetch(part) if cutlass.const_expr(summed) else None
            if n < tile.q_rows:
                output.store(row, part, values)


def copied(product):
    """Setting `ACCUMULATE` changes the object, which must not leave a branch or loop."""
    return product.__new_from_mlir_values__(product.__extract_mlir_values__())
