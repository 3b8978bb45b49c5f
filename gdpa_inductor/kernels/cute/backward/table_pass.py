"""The kernel that sums the gradients of tables: it computes the scores once more, and stores none.

    S = Q Kᵀ    dP = dO Vᵀ    dS = dP · slope,  slope = ∂P/∂(what is looked up)

A CTA owns some query tiles of one head. Keys stream past, 64 in a step. All sums have one order:

- A table in which each diagonal of the scores has a place of its own. A warp sums the diagonals of
  its 16 queries × 64 keys in registers and by one exchange between lanes. Then the threads of the
  CTA add up what the warps have, a diagonal each, and add it to the CTA's sums in global memory.
- Any other table. Each thread has a table of its own in shared memory, and adds dS at the place
  that the program computes. At the end the CTA adds up the tables of its threads.

Products are those of a warp (mma.sync), which all architectures have. One warp loads by TMA. Rings
bring dO and Q first, then V and K: a warp keeps its rows of Q and dO in registers.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, Uint64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync, warp

from ..barriers import Signal, initialize
from ..operands import AttentionKernel, KernelArguments, Tiles, matrices, vector, whole_tiles
from ..program import Program, Row
from ..ranges import LANES
from ..shared_tables import SharedTables
from ..sm90.wgmma import WARPGROUP, staged, tile_layout
from ..table_sums import TOGETHER, TableSums, add_terms
from ..values import Fixed, Pair, pair, select, smaller
from .ranges import Heights, StreamedRanges
from .roots import terms_of
from .table_config import KEYS, ROWS, STAGES, WINDOW, TableConfig, TableSlice
from .walk import ResidentTile, Walk

OPERANDS = "qkvo"
RINGS = {"q": "k", "k": "k", "o": "v", "v": "v"}  # the ring in which an operand arrives
BLOCKS = KEYS // 8  # blocks of 8 columns
REGISTERS = {"products": 240, "others": 24}  # of a thread
MET = 1  # the named barrier of the warps that multiply
REACH = 70  # where a warp's diagonal 0 is in its window


class TablePass(AttentionKernel):
    """One configuration. The matrices of its arguments are Q, K, V, dO, and then for each slice of
    `TableConfig.slices` sums in fp32 [CTAs of a head, H, places].
    """

    config: TableConfig

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        c = self.config
        self.layouts = {"k": self.ring(c.padded_head_dim), "v": self.ring(c.padded_value_dim)}
        copies = self.copies(arguments)
        self.memory = self.storage()
        product = cute.make_tiled_mma(
            warp.MmaF16BF16Op(self.dtype, Float32, (16, 8, 16)),
            cute.make_layout((4, 1, 1)),
            permutation_mnk=(ROWS, 16, 16),
        )
        self.kernel(copies, self.layouts, product, arguments).launch(
            grid=(ctas, arguments.sizes[1], 1),
            block=(c.threads + WARPGROUP, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    def ring(self, width: int):
        return staged(tile_layout(self.dtype, KEYS, width), STAGES)

    def storage(self):
        c, kind = self.config, self.dtype
        keys, values = (cute.cosize(self.layouts[x]) for x in "kv")
        room, both, words = c.learned.words, c.window, c.sums

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, 4 * STAGES]
            learned: cute.struct.MemRange[Float32, room]
            window: cute.struct.Align[cute.struct.MemRange[Float32, both], 16]
            sums: cute.struct.Align[cute.struct.MemRange[Float32, words], 16]
            k: cute.struct.Align[cute.struct.MemRange[kind, keys], 1024]
            v: cute.struct.Align[cute.struct.MemRange[kind, values], 1024]

        return Memory

    def copies(self, x: KernelArguments) -> dict[str, Any]:
        load, tiles = cpasync.CopyBulkTensorTileG2SOp(), {}
        for name, matrix in zip(OPERANDS, matrices(self.config, x), strict=True):
            layout = cute.select(self.layouts[RINGS[name]], mode=[0, 1])
            tile = (KEYS, cute.size(layout) // KEYS)
            tiles[name] = cpasync.make_tiled_tma_atom(load, matrix.tensor(), layout, tile)
        return tiles

    @cute.kernel
    def kernel(self, copies, layouts, product, x):
        c = self.config
        number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread = Int32(cute.arch.thread_idx()[0])
        buffers = cutlass.memory.SmemAllocator().allocate(self.memory)
        rings = {
            name: getattr(buffers, name).get_tensor(
                layouts[name].outer, swizzle=layouts[name].inner, dtype=self.dtype
            )
            for name in "kv"
        }
        signals = Signals(buffers.barriers.data_ptr(), c.threads // LANES)
        if number == 0:
            initialize(signals.all)
        cute.arch.sync_threads()
        ranges = StreamedRanges(c, False, Heights(c.tile_rows, KEYS), x)
        walk = HeadWalk(x, ranges)
        if number >= c.threads // LANES:
            cute.arch.setmaxregister_decrease(REGISTERS["others"])
            if number == c.threads // LANES:
                TableLoads(walk, signals, self.tiles(copies, rings)).run()
        else:
            cute.arch.setmaxregister_increase(REGISTERS["products"])
            sums = CtaSums(c, x, buffers, thread, walk)
            TableProducts(c, x, walk, signals, sums, product, rings, thread).run(buffers)

    def tiles(self, copies, rings) -> dict[str, Tiles]:
        c, tiles = self.config, {}
        for name in OPERANDS:
            sX = rings[RINGS[name]]
            tile = (KEYS, cute.size(sX) // (KEYS * STAGES))
            jagged = c.jagged_q if name in "qo" else c.jagged_k
            size = tile[0] * tile[1] * self.dtype.width // 8
            own = (tile, size, jagged, name in c.shared)
            tiles[name] = Tiles(copies[name], sX, whole_tiles, *own)
        return tiles


class Signals(Fixed):
    """The barriers of both rings. Steps count tiles: those of queries, then those of keys."""

    def __init__(self, pointer, warps: int) -> None:
        barriers = [Signal(pointer + i * STAGES, STAGES, warps if i % 2 else 1) for i in range(4)]
        self.full = {"k": barriers[0], "v": barriers[2]}
        self.empty = {"k": barriers[1], "v": barriers[3]}
        self.all = barriers


class HeadWalk(Walk):
    """The query tiles of a CTA: all of one head. Those that may be long come first."""

    def __init__(self, x: KernelArguments, ranges) -> None:
        super().__init__(False, x, ranges)
        self.count = self.blocks * self.dealt
        self.head = Int32(cute.arch.block_idx()[1])

    def at(self, turn) -> ResidentTile:
        number = self.number(turn)
        return self.tile(self.blocks - 1 - number // self.dealt, self.head, number % self.dealt)


@dataclass
class TableLoads(Fixed):
    """The load warp."""

    walk: HeadWalk
    signals: Signals
    tiles: dict[str, Tiles]

    @cute.jit
    def run(self):
        step, deal, walk = Int32(0), Int32(0), self.walk
        while walk.number(deal) < walk.count:
            tile = walk.at(deal)
            if tile.begin < tile.end:
                for side in range(walk.heights.resident // ROWS):
                    rows = (tile.start, tile.first + side * ROWS, tile.rows)
                    self.load("qo", rows, tile.head, tile.batch, step)
                    step += 1
                for block in range(tile.begin, tile.end):
                    rows = (tile.origin, block * KEYS, tile.length)
                    self.load("kv", rows, walk.streamed_head(tile, 0), tile.batch, step)
                    step += 1
            deal += 1

    def load(self, names: str, rows, head, batch, step) -> None:
        for name in names:
            full, empty = (x[RINGS[name]] for x in (self.signals.full, self.signals.empty))
            empty.wait_before(step)
            self.tiles[name].load(rows, head, batch, full.index(step), full, step)


@dataclass
class ScoreTile(Fixed):
    """What `Row` reads of a tile."""

    batch: Any
    head: Any
    q_rows: Any
    k_rows: Any
    q_start: Any
    k_start: Any

    @staticmethod
    def of(tile: ResidentTile) -> "ScoreTile":
        return ScoreTile(tile.batch, tile.head, tile.rows, tile.length, tile.start, tile.origin)


class CtaSums(Fixed):
    """The sums of a thread and of its CTA."""

    def __init__(self, config: TableConfig, x: KernelArguments, buffers, thread, walk) -> None:
        self.config, self.thread, self.walk = config, thread, walk
        self.lane, self.warp = thread % LANES, thread // LANES
        self.window = buffers.window.data_ptr()
        # (a slice, its sums in global memory, and the tables of threads or the program of places)
        self.tables, self.diagonals = [], []
        threads, own = config.threads, buffers.sums.data_ptr()
        for number, one in enumerate(config.slices):
            steps = [Int64(s) for s in x.strides[4 + number]]
            target = x.pointers[4 + number] + (walk.cta * steps[0] + walk.head * steps[1])
            if one.diagonal:
                place = Program(config, x, [config.mod.places[one.number]])
                self.diagonals.append((one, target, place))
            else:
                layout = cute.make_layout((one.places + 1, threads), stride=(threads, 1))
                self.tables.append((one, target, cute.make_tensor(own, layout)))
                own = own + (one.places + 1) * threads

    @cute.jit
    def start(self):
        """Set all sums to zero."""
        c, threads = self.config, self.config.threads
        for one, _, table in self.tables:
            for i in cutlass.range(one.places + 1, unroll=4):
                table[i, self.thread] = 0.0
        window = cute.make_tensor(self.window, cute.make_layout(max(c.window, 1)))
        for i in cutlass.range(self.thread, c.window, threads, unroll=1):
            window[i] = 0.0
        for one, target, _ in self.diagonals:
            for i in cutlass.range(self.thread, one.places, threads, unroll=1):
                target[i] = 0.0
        self.meet()

    def meet(self) -> None:
        cute.arch.barrier(barrier_id=MET, number_of_threads=self.config.threads)

    def add_at(self, places: list[list[Any]], terms: list[Any]) -> None:
        """Add terms to the thread's tables. places: Of each table."""
        for (one, _, table), own in zip(self.tables, places, strict=True):
            for i in range(0, len(terms), TOGETHER):
                slots = [self.slot(x, one) for x in own[i : i + TOGETHER]]
                add_terms(table, self.thread, slots, terms[i : i + TOGETHER])

    def slot(self, place, one: TableSlice):
        at = place - one.first
        unsigned = Uint64 if isinstance(at, Int64) else Uint32  # a negative place is a large one
        return Int32(select(unsigned(at) < unsigned(one.places), at, one.places))

    @cute.jit
    def add_diagonals(self, dS, tile: ResidentTile, block, step):
        """Add the diagonals of a step. dS: The thread's, as `TableProducts` has them."""
        if const_expr(len(self.diagonals) > 0):
            own = self.window + (step % 2) * (WINDOW * self.config.threads // 8)
            self.share_diagonals(dS, own + self.warp * (4 * WINDOW))
            self.meet()
            # Diagonal d of the CTA has queries q and keys q - d, both within the step.
            d = self.thread - (KEYS - 1)
            if d < self.config.tile_rows:
                total = Float32(0.0)
                for w in range_constexpr(self.config.threads // LANES):
                    at = d - 16 * w + REACH
                    if (at >= 0) & (at < WINDOW):
                        parts = cute.make_rmem_tensor(4, Float32)
                        cute.autovec_copy(vector(own + (w * WINDOW + at) * 4, 4), parts)
                        total = total + ((parts[0] + parts[1]) + (parts[2] + parts[3]))
                self.add_total(total, tile, tile.first - block * KEYS + d)

    @cute.jit
    def add_total(self, total, tile: ResidentTile, distance):
        for one, target, program in self.diagonals:
            row = Row(program, ScoreTile.of(tile), distance)
            (place,) = row(Pair(Float32(0.0)), Pair(Int32(0)))
            at = pair(place).lanes[0]
            if (at >= 0) & (at < one.places):
                target[at] = target[at] + total

    @cute.jit
    def share_diagonals(self, dS, own):
        """Write the sums of a warp's diagonals.

        A thread has row g (+ 8) and columns 2 c, 2 c + 1 of each 8: g = lane / 4, c = lane % 4.
        """
        parts: dict[tuple[int, int], Any] = {}
        for r in range_constexpr(4 * BLOCKS):
            key = r % 2, r // 2 % 2 - r // 4  # odd column, by how many blocks of 8 it is shifted
            parts[key] = parts[key] + dS[r] if key in parts else dS[r]
        zero, row, column = Float32(0.0), self.lane // 4, self.lane % 4
        for m in range_constexpr(-BLOCKS, 2):
            # The odd columns of row g + 1 lie on the diagonals of the even ones of row g.
            after, here = parts.get((1, m + 1), zero), parts.get((1, m), zero)
            odd = select(row == 0, after, here)
            odd = cute.arch.shuffle_sync(odd, (self.lane + 4) % LANES)
            total = parts[0, m] + odd if (0, m) in parts else odd
            place = own + ((row + 8 * m - 2 * column + REACH) * 4 + column)
            cute.make_tensor(place, cute.make_layout(1))[0] = total

    @cute.jit
    def finish(self):
        self.meet()
        for one, target, table in self.tables:
            TableSums(one.places, self.config.threads, 0, 1).store(table, target, self.thread)


@dataclass
class TableProducts(Fixed):
    """The role of the warps that multiply.

    Thread i of a warpgroup has two rows, and two columns of each 8, as in `wgmma`.
    """

    config: TableConfig
    arguments: KernelArguments
    walk: HeadWalk
    signals: Signals
    sums: CtaSums
    product: Any
    rings: dict[str, Any]
    thread: Any

    def __post_init__(self) -> None:
        c, product, own = self.config, self.product, self.thread % WARPGROUP
        self.side = self.thread // WARPGROUP
        self.row = self.thread // LANES * 16 + self.thread % LANES // 4
        self.column = self.thread % 4 * 2
        part = product.get_slice(own)
        self.shape = part.partition_shape_C((ROWS, KEYS))
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.rings["k"].element_type)
        self.by_rows = cute.make_tiled_copy_A(atom, product)
        self.by_keys = cute.make_tiled_copy_B(atom, product)
        rows, keys = self.by_rows.get_slice(own), self.by_keys.get_slice(own)
        self.A, self.B, self.from_rows, self.from_keys = {}, {}, {}, {}
        for name, sX in self.rings.items():
            one = sX[None, None, 0]
            self.A[name] = part.make_fragment_A(part.partition_A(one))
            self.B[name] = part.make_fragment_B(part.partition_B(one))
            self.from_rows[name] = rows.partition_S(sX)
            self.from_keys[name] = keys.partition_S(sX)
        self.retiled_A = {name: rows.retile(x) for name, x in self.A.items()}
        self.retiled_B = {name: keys.retile(x) for name, x in self.B.items()}
        places = tuple(c.mod.places[one.number] for one, *_ in self.sums.tables)
        ranges = self.walk.ranges
        self.programs = [
            Program(c, self.arguments, (*roots, *places), full)
            for roots, full in ((ranges.full_terms, True), (terms_of(c), False))
        ]

    @cute.jit
    def run(self, buffers):
        c = self.config
        begin, program = buffers.learned.data_ptr(), self.programs[1]
        tables = SharedTables(c.learned, program, begin, self.thread, c.threads)
        self.sums.start()
        step, turn, deal = Int32(0), Int32(0), Int32(0)
        known = Int32(-1)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            if tile.begin < tile.end:
                if const_expr(bool(tables.values)):  # noqa: SIM102 (decided at compile time)
                    if tile.batch != known:
                        self.sums.meet()
                        tables.keep(tables.fetch(tile.batch, tile.head))
                        self.sums.meet()
                        known = tile.batch
                step = self.take_rows(step)
                for block in cutlass.range(tile.begin, tile.end, unroll=1):
                    self.step(tile, block, step, turn, tables)
                    step, turn = step + 1, turn + 1
            deal += 1
        self.sums.finish()

    @cute.jit
    def take_rows(self, step):
        """Read the warp's rows of Q and dO. Returns the next step."""
        for side in range_constexpr(self.config.sides):
            for name in ("k", "v"):
                full, empty = self.signals.full[name], self.signals.empty[name]
                full.wait(step)
                if self.side == side:
                    source = self.from_rows[name][None, None, None, full.index(step)]
                    cute.copy(self.by_rows, source, self.retiled_A[name])
                empty.arrive_once(step)
            step += 1
        return step

    @cute.jit
    def step(self, tile: ResidentTile, block, step, turn, tables):
        S, dP = self.multiply("k", step), self.multiply("v", step)
        if self.walk.ranges.needs_no_mask(tile, tile.head, block):
            self.evaluate(S, dP, tile, block, self.programs[0], tables, False)
        else:
            self.evaluate(S, dP, tile, block, self.programs[1], tables, True)
        self.sums.add_diagonals(dP, tile, block, turn)

    def multiply(self, name: str, step):
        """A product of this step's tile: S or dP."""
        sums = cute.make_rmem_tensor(self.shape, Float32)
        sums.fill(0.0)
        full, empty = self.signals.full[name], self.signals.empty[name]
        full.wait(step)
        source = self.from_keys[name][None, None, None, full.index(step)]
        A, B = self.A[name], self.B[name]
        for k in range(cute.size(B.shape[2])):
            cute.copy(self.by_keys, source[None, None, k], self.retiled_B[name][None, None, k])
            cute.gemm(self.product, sums, A[None, None, k], B[None, None, k], sums)
        empty.arrive_once(step)
        return sums

    @cute.jit
    def evaluate(self, S, dP, tile: ResidentTile, block, program, tables, careful):
        """Turn dP into dS, in place, and add it to the thread's tables.

        Masked scores get zero, even if dP is infinite or NaN. careful: So do those past an end.
        """
        scores, row = ScoreTile.of(tile), program.position(tile.first + self.row)
        rows = [Row(program, scores, row + half) for half in (0, 8)]
        column = program.position(block * KEYS + self.column)
        last = (tile.length - 1) // 2 * 2
        waiting: list[list[Any]] = []
        for r in range_constexpr(0, cute.size(S), 2):
            half, first = r // 2 % 2, column + r // 4 * 8
            keys = Pair(first, first + 1)
            there = first if const_expr(not careful) else smaller(first, last)
            operands = rows[half].fetch(there, 2)
            slope, *places = rows[half](
                Pair(S[r], S[r + 1]), keys, operands, values={**tables.values}
            )
            for lane, factor in enumerate(map(Float32, pair(slope).lanes)):
                dS = dP[r + lane] * factor
                if const_expr(careful):
                    exists = (row + half * 8 < tile.rows) & (keys.lanes[lane] < tile.length)
                    dS = select(exists & (factor != 0.0), dS, Float32(0.0))
                dP[r + lane] = dS
            waiting.append([pair(x).lanes for x in places])
            if const_expr(r % TOGETHER == TOGETHER - 2):
                by_table = [sum(lanes, ()) for lanes in zip(*waiting, strict=True)]
                terms = [dP[i] for i in range(r + 2 - TOGETHER, r + 2)]
                self.sums.add_at([list(x) for x in by_table], terms)
                waiting.clear()


KERNEL = TablePass
