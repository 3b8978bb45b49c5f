"""A plain loop of the five products of a backward. A tile has 128 keys and `rows` queries.

    S = Q Kᵀ,  dP = dO Vᵀ,  dV = Pᵀ dO,  dK = dSᵀ Q,  dQ = dS K
    P = S, dS = dP, or activated:  P = silu(S / √D), dS = silu'(S / √D) dP,  in bf16

A CTA computes dK and dV of 128 keys at a time. Scores are transposed, so that P and dS are operands
from registers. The product dQ reads dS from shared memory. A CTA issues S of the next query tile
before dQ of the current one.

Notation: a step is one query tile of a key tile. The key tiles of a head add to a query tile of dQ
one after another. A turn is the place of a key tile in that order.
"""

from dataclasses import dataclass

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from gdpa_inductor.kernels.cute.sm90.wgmma import (
    MN,
    REGISTERS,
    SHARED,
    WARPGROUP,
    K,
    issue,
    operand_layout,
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
    tile_layout,
    tiled,
    tma,
    view,
)

BOTH, FULL, EMPTY = 1, 2, 4  # named barriers; FULL and EMPTY have one for each warpgroup
OTHER = 6  # the offset from FULL to the barriers of a second warp, which follow wgmma.OWN
STAGES = (1, 1, 2, 2)  # K, V, Q, dO
BULK = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{$r0}], [{$r1}], {$r2};"
PLAIN = "cp.async.bulk.global.shared::cta.bulk_group [{$r0}], [{$r1}], {$r2};"
QUAD = "red.global.add.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"


@dataclass(frozen=True)
class BackwardCeiling:
    """The loop of a backward. Calling it, inside of a CuTe compile, launches the kernel.

    rows:       Queries of a tile.
    resident:   See ForwardCeiling.
    activated:  P and dS are those of silu.
    dq:         How dQ is added to memory, see below.
    turned:     The CTAs of a head begin at different query tiles, so that they do not add to the
                same place.
    warps:      The number of warps that add dQ. Two warps take every second step each.

    The values of `dq`:

    "added":    A warp of its own adds dQ to memory by bulk copies from shared memory.
    "ordered":  The same, and the key tiles of a head add in a fixed order (see `turn`).
    "reduced":  The threads that computed dQ add it to memory from registers.
    "handed":   dQ is handed to the warp of its own, which drops it.
    "dropped":  dQ is computed and dropped.
    """

    rows: int = 64
    resident: bool = False
    activated: bool = False
    dq: str = "added"
    turned: bool = True
    warps: int = 1
    backward = True

    @property
    def heights(self) -> tuple[int, ...]:
        return COLS, COLS, self.rows, self.rows

    @property
    def by_hand(self) -> bool:
        return self.dq in ("added", "ordered", "handed")

    @property
    def ordered(self) -> bool:
        return self.dq == "ordered"

    @cute.jit
    def __call__(self, inputs, outputs, sums, sizes, ctas: Int32, stream):
        """Launch the kernel.

        inputs:   Pointers to k, v, q and dO, bf16 [heads, N, D].
        outputs:  Pointers to dv and dk, bf16 [heads, N, D].
        sums:     Pointers to dQ, fp32 in the order of the registers, and to an int32 counter for
                  each query tile of each head.
        sizes:    (heads, N). Heads of all batches are counted. N is a multiple of 128.
        """
        load, write = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        sources = tuple(tma(load, matrix(p, *sizes), h) for p, h in zip(inputs, self.heights))
        targets = tuple(tma(write, matrix(p, *sizes), 64) for p in outputs)
        products = (
            tiled(self.rows, K, K, SHARED), tiled(D, K, MN, REGISTERS),
            tiled(self.rows, MN, K, SHARED),
        )  # fmt: skip
        alone = tiled(D, K, MN, REGISTERS, 1)
        self.kernel(sources, targets, products, alone, sums, sizes).launch(
            grid=(ctas, 1, 1), block=(THREADS, 1, 1), stream=stream, min_blocks_per_mp=1,
            cooperative=self.ordered,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, sources, targets, products, alone, sums, sizes):
        loaded = sum(s * h for s, h in zip(STAGES, self.heights)) * D
        stored, handed = 2 * self.rows * D, self.rows * D if self.by_hand else 4

        @cute.struct
        class Memory:  # out: two stages of dS in the loop; dV and then dK at the end of a tile
            barriers: cute.struct.MemRange[Int64, 16]
            tiles: cute.struct.Align[cute.struct.MemRange[BFloat16, loaded], 1024]
            out: cute.struct.Align[cute.struct.MemRange[BFloat16, stored], 1024]
            sums: cute.struct.Align[cute.struct.MemRange[Float32, handed], 1024]

        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        shared = shared_memory(Memory)
        inputs, buffers = rings(
            shared.barriers.data_ptr(), shared.tiles.data_ptr(), STAGES, self.heights, self.resident
        )
        places = shared.out.data_ptr(), shared.sums.data_ptr(), sums[0]
        if warp_index == 0:
            begin(inputs)
        cute.arch.barrier()
        if warp_index >= 8:
            cute.arch.setmaxregister_decrease(24)
            if warp_index == 8:
                self.load([parted(*x) for x in zip(sources, buffers, self.heights)], inputs, sizes)
            if const_expr(self.by_hand):  # noqa: SIM102 (decided at compile time)
                if warp_index > 8 and warp_index <= 8 + self.warps:
                    self.add_up(sums, places[1], sizes, warp_index - 9)
        else:
            cute.arch.setmaxregister_increase(240)
            self.multiply(targets, products, alone, inputs, buffers, places, sizes, thread)

    def first(self, tile, tiles, steps):
        """The query tile with which a key tile begins."""
        return tile % tiles * steps // tiles if self.turned else Int32(0)

    def turn(self, tile, row, tiles, steps):
        """The number of key tiles of the head that add to query tile `row` before this one.

        Turned, the key tile that begins nearest before the query tile comes first. The key tile
        that begins before that one comes second, and so on, around the end. If all key tiles are
        equally fast, no two meet at one query tile.
        """
        nearest = ((row + 1) * tiles - 1) // steps
        return (nearest - tile % tiles + tiles) % tiles if self.turned else tile % tiles

    @cute.jit
    def load(self, parts, inputs, sizes):
        """Load K and V of a tile, then Q and dO in turn."""
        (heads, length), (cta, ctas) = sizes, grid()
        tiles, steps = length // COLS, cute.ceil_div(length, self.rows)
        done, step = Int32(0), Int32(0)
        for tile in cutlass.range(cta, tiles * heads, ctas, unroll=1):
            head, row = tile // tiles, self.first(tile, tiles, steps)
            for i in cutlass.range_constexpr(2):
                inputs[i].fill(done, parts[i], (tile % tiles, head))
            for _ in cutlass.range(steps, unroll=1):
                for i in cutlass.range_constexpr(2, 4):
                    inputs[i].fill(step, parts[i], (row, head))
                row = row + 1 if row + 1 < steps else 0
                step += 1
            done += 1

    def operands(self, products, buffers, pointer, thread, group):
        """The products, their fragments for one warpgroup, and its copy of dS to shared memory."""
        mine, mine_kv, mine_q = (x.get_slice(group * WARPGROUP) for x in products)
        sK, sV, sQ, sdO = buffers
        sdS = view(pointer, tile_layout(self.rows, 2))
        tK, tV = (mine.make_fragment_A(mine.partition_A(x)) for x in (sK, sV))
        tQ, tdO = (mine.make_fragment_B(mine.partition_B(x)) for x in (sQ, sdO))
        tQt, tdOt = (mine_kv.make_fragment_B(mine_kv.partition_B(transposed(x))) for x in (sQ, sdO))
        tKt = mine_q.make_fragment_A(mine_q.partition_A(transposed(sK)))
        tdS = mine_q.make_fragment_B(mine_q.partition_B(sdS))
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), BFloat16)
        copy = cute.make_tiled_copy_C(atom, products[0])
        part = copy.get_slice(thread)
        tiles_of = (tK, tV, tQ, tdO, tQt, tdOt, tKt, tdS)
        return products, tiles_of, (copy, part, part.partition_D(transposed(sdS)))

    @cute.jit
    def multiply(self, targets, products, alone, inputs, buffers, places, sizes, thread):
        (heads, length), (cta, ctas) = sizes, grid()
        tiles, steps = length // COLS, cute.ceil_div(length, self.rows)
        (k, v, q, _), (scores, sums, _) = inputs, products
        group, leader = cute.arch.make_warp_uniform(thread // WARPGROUP), thread % 32 == 0
        operands = self.operands(products, buffers, places[0], thread, group)
        tK, _, tQ, *_ = operands[1]
        dK, dV = (
            cute.make_rmem_tensor(sums.partition_shape_C((COLS, D)), Float32) for _ in range(2)
        )
        S = cute.make_rmem_tensor(scores.partition_shape_C((COLS, self.rows)), Float32)
        done, step = Int32(0), Int32(0)
        for tile in cutlass.range(cta, tiles * heads, ctas, unroll=1):
            row = self.first(tile, tiles, steps)
            dK.fill(0.0)
            dV.fill(0.0)
            k.wait(done)
            at = q.wait(step)
            issue(scores, S, tK[None, None, None, 0], tQ[None, None, None, at], True)
            v.wait(done)
            # If S were in flight at the loop, ptxas would serialize all products: its copies of
            # registers read S.
            warpgroup.wait_group(0)
            for _ in cutlass.range(steps - 1, unroll=1):
                place = tile // tiles * steps + row, places, group, thread, sizes
                self.step(step, S, dK, dV, operands, inputs, place, False)
                row = row + 1 if row + 1 < steps else 0
                step += 1
            place = tile // tiles * steps + row, places, group, thread, sizes
            self.step(step, S, dK, dV, operands, inputs, place, True)
            step += 1
            k.free(done, leader)
            v.free(done, leader)
            done += 1
            cute.arch.barrier(barrier_id=BOTH, number_of_threads=2 * WARPGROUP)
            to = (tile % tiles * 2 + group, tile // tiles)
            for target, gradient in zip(targets, (dV, dK)):
                store(gradient, alone, target, places[0], to, group, thread % WARPGROUP)
            if thread % WARPGROUP < 32:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.barrier(barrier_id=BOTH, number_of_threads=2 * WARPGROUP)
        if thread % WARPGROUP < 32:
            cute.arch.cp_async_bulk_wait_group(0)

    def step(self, step, S, dK, dV, operands, inputs, place, last: bool) -> None:
        """Compute one query tile. Its S is complete at the beginning.

        S of the next query tile is complete at the end, unless this is the last one.
        """
        (scores, sums, queries), tiles, (copy, part, to) = operands
        tK, tV, tQ, tdO, tQt, tdOt, tKt, tdS = tiles
        (_, _, q, do), thread = inputs, place[3]
        leader, at, turn = thread % 32 == 0, do.wait(step), step % 2
        dP = cute.make_rmem_tensor(S.layout, Float32)
        issue(scores, dP, tV[None, None, None, 0], tdO[None, None, None, at], True)
        if self.activated:
            weights, slope = silu(S)
            P = as_operand(S, weights)
            slope = slope + weights * (1.0 - slope)
        else:
            P = as_operand(S)
        issue(sums, dV, P, tdOt[None, None, None, at], False)
        warpgroup.wait_group(1)
        if self.activated:
            flowing = cute.make_tensor(dP.iterator, operand_layout(dP.layout)).load()
            dS = as_operand(dP, flowing * slope)
        else:
            dS = as_operand(dP)
        cute.copy(copy, part.retile(dS), to[None, None, None, turn])
        issue(sums, dK, dS, tQt[None, None, None, turn], False)
        warpgroup.wait_group(1)
        do.free(step, leader)
        if not last:
            at = q.wait(step + 1)
            issue(scores, S, tK[None, None, None, 0], tQ[None, None, None, at], True)
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=BOTH, number_of_threads=2 * WARPGROUP)
        # With more than 64 rows and without this wait, registers do not suffice, and ptxas
        # serializes all products.
        if self.rows > 64:
            warpgroup.wait_group(0 if last else 1)
        dQ = cute.make_rmem_tensor(queries.partition_shape_C((D, self.rows)), Float32)
        issue(queries, dQ, tKt[None, None, None, 0], tdS[None, None, None, turn], True)
        warpgroup.wait_group(0)
        q.free(step, leader)
        self.hand_over(dQ, place, step)

    def full(self, group, step):
        """The named barrier at which a warpgroup hands over its dQ."""
        return FULL + group + (step % 2 * OTHER if self.warps == 2 else 0)

    @cute.jit
    def hand_over(self, dQ, place, step):
        """Hand over dQᵀ of the warpgroup in the order of its registers.

        Each thread writes four numbers at a time.
        """
        number, (_, pointer, sums), group, thread, sizes = place
        quads, own = self.rows // 8, thread % WARPGROUP
        lain = cute.make_layout((4, quads, WARPGROUP, 2), stride=(1, 512, 4, 512 * quads))
        source = cute.make_tensor(dQ.iterator, cute.make_layout((4, quads)))
        if const_expr(self.by_hand):
            target = cute.make_tensor(pointer, lain)[None, None, own, group]
            cute.arch.barrier(barrier_id=EMPTY + group, number_of_threads=WARPGROUP + 32)
            cute.autovec_copy(source, target)
            cute.arch.fence_view_async_shared()
            full = self.full(group, step)
            cute.arch.barrier_arrive(barrier_id=full, number_of_threads=WARPGROUP + 32)
        elif const_expr(self.dq == "reduced"):
            start = sums + Int64(number) * (self.rows * D)
            for quad in cutlass.range_constexpr(quads):
                address = (start + (group * quads + quad) * 512 + own * 4).toint()
                numbers = [source[i, quad] for i in range(4)]
                cute.arch.inline_ptx(QUAD, read_only_args=[address, *numbers])
        elif sizes[0] < 0:  # never true; it keeps the compiler from removing the product dQ
            target = cute.make_tensor(sums, lain)[None, None, own, group]
            cute.autovec_copy(source, target)

    @cute.jit
    def add_up(self, sums, pointer, sizes, mine):
        """Add the dQ that is handed over to dQ in memory. This runs in one of `self.warps` warps.

        A turn cannot wait forever. It waits for a key tile of its head that reaches the query tile
        in an earlier step of its own. Not turned, it waits for a lower key tile. So there is no
        cycle. All key tiles of a head run at once: a head has at most as many as there are CTAs
        (`products.ctas`). All CTAs are resident (a cooperative launch), and each takes the heads in
        order.

        mine: The number of this warp.
        """
        (heads, length), (cta, ctas), step = sizes, grid(), Int32(0)
        tiles, steps = length // COLS, cute.ceil_div(length, self.rows)
        if mine == 0:
            for group in cutlass.range_constexpr(2):
                cute.arch.barrier_arrive(barrier_id=EMPTY + group, number_of_threads=WARPGROUP + 32)
        for tile in cutlass.range(cta, tiles * heads, ctas, unroll=1):
            row = self.first(tile, tiles, steps)
            for _ in cutlass.range(steps, unroll=1):
                if step % self.warps == mine:
                    number, turn = tile // tiles * steps + row, self.turn(tile, row, tiles, steps)
                    self.add_tile(sums, pointer, number, (turn, tiles), step)
                row = row + 1 if row + 1 < steps else 0
                step += 1
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def add_tile(self, sums, pointer, number, turn, step):
        """Add one query tile of dQ, in its turn if there is an order.

        number: The query tile, counted over all heads. turn: (this turn, number of turns).
        """
        (dq, counters), half = sums, self.rows * D // 2
        place, counter = dq + Int64(number) * (2 * half), counters + number
        if const_expr(self.ordered):  # this warp has nothing else to do before dQ is handed over
            self.await_turn(counter, turn)
        for group in cutlass.range_constexpr(2):
            full = self.full(group, step)
            cute.arch.barrier(barrier_id=full, number_of_threads=WARPGROUP + 32)
            with cute.arch.elect_one():
                addresses = (place + group * half).toint(), (pointer + group * half).toint()
                self.add([*addresses, Int32(half * 4)], turn[0])
            cute.arch.cp_async_bulk_commit_group()
        for group in cutlass.range_constexpr(2):
            cute.arch.cp_async_bulk_wait_group(1 - group, read=True)
            cute.arch.sync_warp()
            cute.arch.barrier_arrive(barrier_id=EMPTY + group, number_of_threads=WARPGROUP + 32)
        if const_expr(self.ordered):  # the buffer was freed before this wait
            self.pass_on(counter, turn)

    def add(self, arguments, turn) -> None:
        """Issue the bulk copy that adds. In order, the first turn stores, so dQ is not cleared."""
        if self.dq == "added":
            cute.arch.inline_ptx(BULK, read_only_args=arguments)
        elif self.ordered:
            cute.arch.inline_ptx(PLAIN, read_only_args=arguments, predicate=turn == 0)
            cute.arch.inline_ptx(BULK, read_only_args=arguments, predicate=turn != 0)

    @cute.jit
    def await_turn(self, counter, turn):
        count = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        while count != turn[0]:
            count = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")
        cute.arch.fence_proxy("async.global")

    @cute.jit
    def pass_on(self, counter, turn):
        """Let the next turn add. The last turn sets the counter to 0 for the next launch.

        On sm_90a `cp_async_bulk_wait_group` ends when the source is read, and not later: with and
        without `.read` it is the same instruction, and takes 90 clocks for 16 bytes. The release's
        fence (MEMBAR.ALL.GPU) waits until all is added. With relaxed accesses, 20 runs did not
        agree (docs/lab/2026-11-22-order.md).
        """
        cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.fence_proxy("async.global")
        with cute.arch.elect_one():
            following = (turn[0] + 1) % turn[1]
            cute.arch.store(counter, following, sem="release", scope="gpu")
