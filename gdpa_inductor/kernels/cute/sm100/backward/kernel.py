"""The backward of gdpa::attention on Blackwell: dQ, dK and dV, always deterministic.

    S = Q Kᵀ    dP = dO Vᵀ    P = program(S)    dS = dP · slope,  slope = ∂P/∂S
    dV = Pᵀ dO        dK = dSᵀ Q        dQ = dS K

There is no softmax: no row statistics, and no kernel before this one. The kernel has two sides. A
launch has one of them, or both. They differ in what stays in the CTA (resident) and what streams
past:

    side     a CTA owns                    resident A, B   streamed A, B   sums
    "keys"   128 keys of a key head        K, V            Q, dO           dK = dSᵀ Q and dV = Pᵀ dO
    "rows"   128 queries of a query head   Q, dO           K, V            dQ = dS K
    "both"   128 keys of a key head        K, V            Q, dO           dK, dV, parts of dQ
             (256 for a pair of CTAs)

Where keys are resident the scores are transposed, K Qᵀ. Always a resident row is a lane of tensor
memory. P and dS overwrite the scores there, and the products that sum read them from there. So
nothing between these products passes through shared memory. Query heads that share a key head
stream past one after the other, and are summed in that order.

The kernel of both sides has five products, and those of one side have seven together. dQ of a step
sums over the resident rows, so it reads dS from shared memory. The key tiles of a head add their
parts of dQ in global memory, in turn (`backward/sums.py`). `Sm100Config.merges` says where it is
used.

At head dims above 64 a pair of CTAs is one such kernel (`Sm100Config.ctas`), a cluster of two. It
owns 256 keys, 128 in each CTA. Its products are products of two CTAs, so that each CTA reads half
of what streams (shapes.py). dQ sums over the keys of both. Each CTA has dQ of 64 of the 128
queries, so each writes dS of the other 64 to the memory of the other CTA.

Notation
    r, t     A resident row (a lane of tensor memory), and a streamed row (a column).
    A, B     The operands of the score product, Q and K; those of the gradient product, dO and V.
    S        [128 r, 128 t] = rA tAᵀ.           dP     [128 r, 128 t] = rB tBᵀ.
    accA     [128 r, head_dim] += dS tA.        accB   [128 r, value_dim] += P tB   (keys side).
    tile     128 resident rows.
    step     A tile with one streamed tile.

Warps 0-7 activate, 8 multiplies, 9 loads. On both sides 10 adds dQ, and 12-15 copy it from tensor
memory. Others are idle, and so is warp 8 of the other CTA of a pair. `Sm100Config` and the side are
known at compile time. `MOST_STAGES` and `PART` of shapes.py, and the order in products.py, are
tuned.
"""

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from ...backward.ranges import Heights, StreamedRanges
from ...backward.roots import factor_of, terms_of
from ...backward.sums import Counters, QuerySums
from ...backward.turns import Turns
from ...backward.walk import ResidentTile, Walk
from ...barriers import Signal, initialize
from ...operands import AttentionKernel, KernelArguments, Matrix, Tiles, matrices
from ...program import Program
from ...values import Fixed, larger
from ..config import BOTH, COLS, ROWS, TMEM_COLUMNS, Sm100Config
from ..tensor_memory import TensorMemoryRow
from .activation import BackwardActivation, GradientSums, ScoreStores, SharedSlopes
from .products import BackwardProducts
from .query_sums import COPYING_WARPS, QueryCopies, QueryRows, SharedParts
from .shapes import NAMES, Shapes

ACTIVATION_WARPS, PRODUCT_WARP, LOAD_WARP, SUMS, WARPS = 8, 8, 9, 10, 12  # whole warpgroups
# Registers of a thread. At the launch all have as many: 168, or 128 in the kernel of both sides.
REGISTERS = {"activation": 208, "others": 80}
REGISTERS_OF_BOTH = {"activation": 176, "others": 72, "copies": 88}
# name: (stages, arrivals); stages are a number, or as many as that ring or buffer has. Arrivals are
# those of a CTA.
SIGNALS: dict[str, tuple[str | int, int]] = {
    "resident_A": (1, 1), "resident_B": (1, 1),  # loads: the operand of the tile has landed
    "spent": (1, 1),  # products: both are read no more
    "resident_D": ("D", 1), "spent_D": ("D", 1),  # the same of rD (a pair of CTAs)
    "streamed_A": ("A", 1), "streamed_B": ("B", 1),  # loads: the operand of the step has landed
    "streamed_C": ("C", 1), "streamed_D": ("D", 1),
    "free_A": ("A", 1), "free_B": ("B", 1),  # products: it is read no more
    "free_C": ("C", 1), "free_D": ("D", 1),
    "scores": ("S", 1), "gradients": (1, 1),  # products: S, dP of the step are there
    "weights": ("P", ACTIVATION_WARPS),  # activation: a part of P is written (keys, both)
    "slopes": (1, ACTIVATION_WARPS),  # activation: dS of the step is written
    "sums": (1, 1),  # products: the accumulators of the tile are complete
    "parts": ("Q", 1),  # products: dQ of the step is there (both sides)
    "drained": ("Q", COPYING_WARPS),  # copies: it is read
    "copied": ("copies", COPYING_WARPS),  # copies: it is in shared memory
    "added": ("copies", 1),  # sums: it is read there
}  # fmt: skip
APART = ("copied", "added")  # signals of each CTA of a pair for itself


class BackwardKernel(AttentionKernel):
    """One side of one configuration, or both.

    The matrices of its arguments are Q, K, V, dO and the gradients that this side computes. Behind
    them may be the gradient of an aux operand and, if a side is jagged, the hulls of the resident
    tiles (`jagged_biases`). On both sides the gradients are sums of dQ in fp32, dK, dV, dQ, and the
    counters, which begin at zero.
    """

    config: Sm100Config

    def __init__(self, config: Sm100Config) -> None:
        super().__init__(config)
        self.keys, self.both = config.kernel != "rows", config.kernel == BOTH
        self.shapes = Shapes(config)
        self.registers = REGISTERS_OF_BOTH if self.both else REGISTERS

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        matrices = self.matrices(arguments)
        copies = [self.atom(name, matrices[self.letter(name)]) for name in self.shapes.names]
        atoms, tensors = zip(*copies, strict=True)
        outputs = {"pointers": arguments.pointers[4:], "strides": arguments.strides[4:]}
        warps = WARPS + COPYING_WARPS * self.both
        together = self.config.ctas
        if together > 1:
            ctas = larger(ctas // together, 1) * together
        self.kernel(atoms, tensors, replace(arguments, **outputs)).launch(
            grid=(ctas, 1, 1),
            cluster=(together, 1, 1),
            block=(32 * warps, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            cooperative=self.both,
        )

    def matrices(self, x: KernelArguments) -> dict[str, Matrix]:
        return dict(zip("qkvo", matrices(self.config, x), strict=True))

    def letter(self, part: str) -> str:
        """The matrix of an operand. C is columns of B, and D columns of A."""
        kind, name = part[0], part[1]
        number = NAMES.index(kind + {"C": "B", "D": "A"}.get(name, name))
        return ("kqvo" if self.keys else "qkov")[number]

    def atom(self, part: str, matrix: Matrix) -> tuple[Any, Any]:
        """How TMA loads one tile of an operand, and the operand as TMA sees it."""
        shapes = self.shapes
        layout = cute.select(shapes.layout(part, 1), mode=[0, 1, 2])
        group = tcgen05.CtaGroup.TWO if shapes.pair else tcgen05.CtaGroup.ONE
        load = cpasync.CopyBulkTensorTileG2SOp(group)
        place = (shapes.tiler(part), shapes.load(part))
        return cute.nvgpu.make_tiled_tma_atom_B(load, matrix.tensor(), layout, *place)

    @cute.kernel
    def kernel(self, atoms, tensors, x):
        # x: The pointers and the strides are those of the gradients alone.
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        shared = cutlass.memory.SmemAllocator()
        signals, holder = self.signals(shared)
        pair = self.shapes.pair
        buffers = self.buffers(shared)
        if warp == LOAD_WARP:
            initialize(signals.values())
        if warp == PRODUCT_WARP:
            cute.arch.alloc_tmem(TMEM_COLUMNS, holder, is_two_cta=pair)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=pair)
        self.together()
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
        memory = TensorMemoryRow(tmem, thread, self.dtype)
        if warp < ACTIVATION_WARPS:
            cute.arch.setmaxregister_increase(self.registers["activation"])
            self.activation(x, signals, buffers, memory).run()
        elif warp < WARPS:
            cute.arch.setmaxregister_decrease(self.registers["others"])
            if warp == LOAD_WARP:
                tiles = self.tiles(atoms, tensors, buffers)
                hulls = x.pointers[self.gradients + 1] if self.config.notes else None
                BackwardLoads(self.walk(x), signals, tiles, hulls).run()
            if warp == PRODUCT_WARP:
                products = BackwardProducts(self.walk(x), self.shapes, signals, buffers, tmem)
                products.run_of_pair() if pair else products.run()
            self.add(x, signals, buffers, warp)
        elif const_expr(self.both):
            cute.arch.setmaxregister_decrease(self.registers["copies"])
            self.copies(x, signals, buffers, memory).run()
        self.together()
        if warp == PRODUCT_WARP:
            cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS, is_two_cta=pair)

    def together(self) -> None:
        """All threads wait for each other, those of a pair of CTAs too."""
        if self.shapes.pair:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def walk(self, x: KernelArguments):
        heights = Heights(self.shapes.resident, COLS, self.config.ctas)
        ranges = StreamedRanges(self.config, self.keys, heights, x)
        return Turns(x, ranges) if self.both else Walk(self.keys, x, ranges)

    @property
    def gradients(self) -> int:
        """How many matrices there are before the stored gradient of an aux operand."""
        return len(self.config.matrices) - 1 - len(self.config.stored_dtypes)

    def activation(self, x, signals, buffers, memory: TensorMemoryRow) -> BackwardActivation:
        c, walk = self.config, self.walk(x)
        program, factor = Program(c, x, terms_of(c)), factor_of(c.program, c.stored)
        sums = GradientSums(walk, memory, self.shapes.sums, self.outputs(x), factor)
        stored = shared = None
        if c.stored is not None:
            place = x.pointers[self.gradients], x.strides[self.gradients]
            stored = ScoreStores(walk, *place, x.sizes)
        if self.both:
            shared = SharedSlopes(walk, buffers["dS"])
        return BackwardActivation(walk, program, signals, memory, self.shapes, sums, stored, shared)

    def counters(self, x: KernelArguments) -> Counters:
        walk = self.walk(x)
        return Counters(walk, x.pointers[4], walk.rank, self.config.counters)

    def parts(self, x: KernelArguments, signals, buffers) -> SharedParts:
        place = x.pointers[0], self.config.head_dim, self.shapes.height
        rows = QueryRows(self.walk(x), *place, x.sizes)
        return SharedParts(rows, signals, buffers["dQ"].iterator)

    @cute.jit
    def add(self, x: KernelArguments, signals, buffers, warp):
        if const_expr(self.both):  # noqa: SIM102 (decided at compile time)
            if warp == SUMS:
                QuerySums(self.parts(x, signals, buffers), self.counters(x)).run()

    def copies(self, x, signals, buffers, memory: TensorMemoryRow) -> QueryCopies:
        c, sizes, parts = self.config, x.sizes, self.parts(x, signals, buffers)
        place = (sizes[0], sizes[1], sizes[6], c.head_dim, x.strides[3], c.jagged_q)
        grads, factor = Matrix(x.pointers[3], *place), factor_of(c.program, c.stored)
        return QueryCopies(parts, self.counters(x), memory, self.shapes.query, grads, factor)

    def signals(self, shared) -> tuple[dict[str, Signal], Any]:
        signals, rings = {}, self.shapes.rings
        for name, (stages, arrivals) in SIGNALS.items():
            slots = rings[stages] if isinstance(stages, str) else stages
            if slots:
                ctas = 1 if name in APART else self.config.ctas
                # Threads of both CTAs of a pair arrive, but one load warp, or the tensor core.
                total = arrivals * ctas if arrivals > 1 else 1
                signals[name] = Signal(shared.allocate_array(Int64, slots), slots, total, ctas)
        return signals, shared.allocate_array(Int32, 1)

    def buffers(self, shared) -> dict[str, Any]:
        shapes = self.shapes
        layouts = {part: shapes.layout(part, shapes.buffers_of(part)) for part in shapes.names}
        if self.both:
            layouts["dS"] = self.shapes.slopes()
        buffers = {
            part: shared.allocate_tensor(self.dtype, layout.outer, 1024, swizzle=layout.inner)
            for part, layout in layouts.items()
        }
        if self.both:
            size = shapes.rings["copies"] * shapes.height * self.config.head_dim
            buffers["dQ"] = shared.allocate_tensor(Float32, cute.make_layout(size), 128)
        return buffers

    def tiles(self, atoms, tensors, buffers: dict[str, Any]) -> dict[str, Tiles]:
        c, tiles = self.config, {}
        for part, atom, tensor in zip(self.shapes.names, atoms, tensors, strict=True):
            letter, tiler = self.letter(part), self.shapes.tile(part)
            size, jagged = tiler[0] * tiler[1] * self.dtype.width // 8, letter in "qo"
            split = self.shapes.load(part).get_slice(0).partition_B
            ends = (c.jagged_q if jagged else c.jagged_k, letter in c.shared)
            tiles[part] = Tiles((atom, tensor), buffers[part], split, tiler, size, *ends)
        return tiles

    def outputs(self, x: KernelArguments) -> dict[str, tuple[Any, ...]]:
        shapes, first = self.shapes, int(self.both)  # sums of dQ come before
        gradients = zip(shapes.summed, x.pointers[first:], x.strides[first:], strict=False)
        return {
            name: (pointer, stride, shapes.dims[name], shapes.widths[name])
            for name, pointer, stride in gradients
        }


@dataclass
class BackwardLoads(Fixed):
    """The load warp: TMA loads resident operands once for each tile, streamed ones for each step.

    It fills the buffers rA, tA, rB and tB in the order of the products.
    """

    walk: Walk
    signals: dict[str, Any]
    tiles: dict[str, Any]
    hulls: Any = None  # memory for the tiles that each resident tile meets (`jagged_biases`)

    @cute.jit
    def run(self):
        for tiles in self.tiles.values():
            cpasync.prefetch_descriptor(tiles.tma[0])
        tile_step, step, deal = Int32(0), Int32(0), Int32(0)
        while self.walk.number(deal) < self.walk.count:
            tile = self.walk.at(deal)
            if const_expr(self.hulls is not None):
                self.walk.note(tile, self.hulls)
            entry = self.walk.entry(tile)
            for turn in range(tile.passes):
                for i in range(tile.end - tile.begin):
                    block, new = self.walk.block(tile, entry, i), (turn == 0) & (i == 0)
                    self.operands("A", tile, turn, block, tile_step, step, new)
                    self.operands("B", tile, turn, block, tile_step, step, new)
                    self.columns(tile, turn, block, tile_step, step, new)
                    step += 1
            if tile.steps > 0:
                tile_step += 1
            deal += 1

    @cute.jit
    def operands(self, name, tile: ResidentTile, turn, block, tile_step, step, new):
        """Load the streamed operand of a step; before it the resident one, if the tile is new."""
        if new:
            if name == "A":
                self.signals["spent"].wait_before(tile_step)
            rows = (tile.start, self.walk.own(tile), tile.rows)
            self.copy("r" + name, "resident_" + name, rows, tile.head, tile, tile_step)
        # A pair of CTAs halves the streamed rows.
        first = block * COLS + self.walk.rank * (COLS // self.walk.heights.ctas)
        self.streamed(name, tile, turn, first, step)

    @cute.jit
    def columns(self, tile: ResidentTile, turn, block, tile_step, step, new):
        """The operands of which each CTA of a pair has half of the columns."""
        if const_expr("tC" in self.tiles):
            if new:
                self.signals["spent_D"].wait_before(tile_step)
                full = self.signals["resident_D"]
                self.resident_columns(tile, full, tile_step)
            for name in ("C", "D"):
                self.streamed(name, tile, turn, block * COLS, step)

    def resident_columns(self, tile: ResidentTile, full: Signal, tile_step) -> None:
        tiles, parts = self.tiles["rD"], range(self.walk.heights.ctas)
        full.expect(tile_step, len(parts) * tiles.size)
        for part in parts:
            rows = (tile.start, tile.first + part * ROWS, tile.rows)
            place = rows, tile.head, tile.batch, part, full.at(tile_step)
            tiles.copy(*place, column=self.walk.rank)

    def streamed(self, name: str, tile: ResidentTile, turn, first, step) -> None:
        """Load the streamed operand of a step, from row `first` on."""
        self.signals["free_" + name].wait_before(step)
        rows = (tile.origin, first, tile.length)
        head = self.walk.streamed_head(tile, turn)
        self.copy("t" + name, "streamed_" + name, rows, head, tile, step)

    def copy(self, name: str, signal: str, rows, head, tile: ResidentTile, step) -> None:
        full, column = self.signals[signal], self.walk.rank if name[1] in "CD" else 0
        self.tiles[name].load(rows, head, tile.batch, full.index(step), full, step, column)


KERNEL = BackwardKernel
