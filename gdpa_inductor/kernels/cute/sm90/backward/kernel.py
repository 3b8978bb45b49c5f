"""The backward kernel for Hopper: dQ, dK and dV in one pass.

    S = K Qᵀ    dP = V dOᵀ    P = program(S)    dS = dP · slope,  slope = ∂P/∂S
    dV = P dO         dK = dS Q         dQ = dSᵀ K

Results are deterministic, unless the configuration allows any order of the sums of dQ (`ordered`).

Notation
    Q, K, V, dO    Query [.., M, D], key [.., N, D], value [.., N, Dv], gradient of O [.., M, Dv].
    mX  sX  tX     X in global memory, in shared memory, as an operand of a product.
    S, dP          Scores and their gradient before the slope: keys × queries, fp32, in registers.
    dQ             What one key tile adds to dQᵀ, fp32, in registers.
    dK, dV         The sums of a tile, fp32, in registers.
    tile           128 keys of a key head.
    step           A tile with one query tile, of one of its query heads.

There is no softmax: no row statistics, and no kernel before this one. A CTA owns a tile and meets
its query tiles one after the other. dK and dV stay in registers. dQ is summed in global memory, in
fp32: the tiles of a head add to it in turn. The roles of the warps are:

    0-3, 4-7   Products, activation and epilogue, for 64 keys each.
    8          Loads of K and V once for each tile, and of Q and dO in rings.
    9, 10      Each adds the dQ of one warpgroup to the sums, in turn.
    11         Zeros in the rows that no sequence owns. Then conversion of dQ that is complete.
"""

from dataclasses import replace
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import cpasync

from ...backward.ranges import Heights, StreamedRanges
from ...backward.roots import factor_of, masked, row_gradient, terms_of
from ...backward.sums import Conversion, Counters, QuerySums
from ...backward.turns import Turns
from ...config import SHARED_MEMORY, whole_vectors
from ...operands import (
    AttentionKernel,
    KernelArguments,
    Matrix,
    Tiles,
    matrices,
    score_operand,
    score_tiles,
    whole_tiles,
)
from ...program import Program, with_elements
from ...sequences import Gaps
from ..bands import Bands, of_distances
from ..config import COLS, TABLES, Sm90Config, TableRoom
from ..shared_tables import SharedTables
from ..wgmma import WARPGROUP
from .epilogue import KeyGradients
from .fragments import HopperBackwardFragments
from .loads import HopperBackwardLoads
from .products import HopperBackwardProducts
from .register_operands import RowGradients
from .roles import (
    CONVERSION,
    GROUPS,
    LOADS,
    OWN,
    REGISTERS,
    SUMS,
    WARPS,
    HopperShapes,
    HopperSignals,
)
from .sums import ConvertedColumns, HandedParts

OPERANDS, GRADIENTS = "qkvo", ("dq", "gk", "gv", "gq")
# The fields of shared memory. sX holds dS; at the end of a tile dV, then dK.
FIELDS = {
    "q": "sQ",
    "k": "sK",
    "v": "sV",
    "o": "sdO",
    "s": "sX",
    "a": "sX",
    "gk": "sX",
    "gv": "sX",
    "dq": "sdQ",
    "kt": "sK",
}


class HopperBackward(AttentionKernel):
    """The backward of one configuration. The matrices of its arguments are:

    - Q, K, V, dO, the sums of dQ in fp32, dK, dV, dQ;
    - the counters, which begin at zero;
    - the gradient of an aux operand [slots, H, M, N], if it is stored;
    - the hulls of the key tiles, if it is stored and a side is jagged (`jagged_biases`).
    """

    config: Sm90Config

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        self.shapes = HopperShapes(self.config)
        copies, layouts = self.copies(arguments), self.shapes.layouts()
        self.memory = self.storage(layouts)
        counters, threads = arguments.pointers[8], 32 * WARPS
        self.kernel(copies, layouts, self.shapes.products, counters, arguments).launch(
            grid=(ctas, 1, 1),
            block=(threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            cooperative=True,
        )

    def storage(self, layouts):
        sizes = {name: cute.cosize(layout) for name, layout in layouts.items()}
        k, v, q, o, d, c = (sizes[name] for name in ("k", "v", "q", "o", "dq", "c"))
        kind, x = self.dtype, max(sizes[name] for name in ("s", "gk", "gv"))
        used = 2 * (k + v + q + o + x) + 4 * (d + c) + 8 * HopperSignals.COUNT
        room = SHARED_MEMORY - 1024 - used  # ptxas adds 1024 bytes as the alignment of all
        banded = GROUPS * self.config.bands.size
        self.tables = TableRoom.within(min(TABLES, room) - banded, self.config.gathered)
        words, banded = self.tables.words, banded // 4

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, HopperSignals.COUNT]
            bands: cute.struct.Align[cute.struct.MemRange[Float32, banded], 16]
            learned: cute.struct.MemRange[Float32, words]
            sK: cute.struct.Align[cute.struct.MemRange[kind, k], 1024]
            sV: cute.struct.Align[cute.struct.MemRange[kind, v], 1024]
            sQ: cute.struct.Align[cute.struct.MemRange[kind, q], 1024]
            sdO: cute.struct.Align[cute.struct.MemRange[kind, o], 1024]
            sX: cute.struct.Align[cute.struct.MemRange[kind, x], 1024]
            sdQ: cute.struct.Align[cute.struct.MemRange[Float32, d], 1024]
            sums: cute.struct.Align[cute.struct.MemRange[Float32, c], 1024]

        return Memory

    def operands(self, x: KernelArguments) -> dict[str, Matrix]:
        return dict(zip(OPERANDS, matrices(self.config, x), strict=True))

    def gradients(self, x: KernelArguments) -> dict[str, Matrix]:
        """The sums of dQ, dK, dV and dQ in global memory, with a batch for each sequence."""
        operands = self.operands(x)
        like = zip(GRADIENTS, "qkvq", x.pointers[4:8], x.strides[4:8], strict=True)
        return {
            name: replace(operands[operand], pointer=pointer, strides=stride, batch=x.sizes[0])
            for name, operand, pointer, stride in like
        }

    def copies(self, x: KernelArguments) -> dict[str, Any]:
        """What TMA copies, as (the copy, the matrix as TMA sees it).

        "dq" stores sums of dQ, "add" adds, "read" loads them. "a" loads an aux operand in tiles of
        scores, and "g" stores the gradient of one.
        """
        c, shapes, gradients = self.config, self.shapes, self.gradients(x)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()

        def copy(op, matrix: Matrix, name: str, layout=None):
            layout = layout or shapes.layout(name)
            return cpasync.make_tiled_tma_atom(op, matrix.tensor(), layout, shapes.tiles[name])

        copies = {name: copy(load, matrix, name) for name, matrix in self.operands(x).items()}
        for name in GRADIENTS[:3]:
            # Gradients of shared operands are fp32, and are stored without TMA.
            if gradients[name].pointer.dtype is shapes.kind(name):
                copies[name] = copy(store, gradients[name], name)
        copies["add"] = copy(cpasync.CopyReduceBulkTensorTileS2GOp(), gradients["dq"], "dq")
        copies["read"] = copy(load, gradients["dq"], "dq", shapes.plain)
        if c.tiled is not None:
            copies["a"] = copy(load, score_operand(c, x), "a")
        if c.stored is not None:
            cols = whole_vectors(x.sizes[5]) if c.jagged else x.sizes[5]
            place = (x.sizes[8], x.sizes[1], x.sizes[4], cols, x.strides[9], False)
            copies["g"] = copy(store, Matrix(x.pointers[9], *place), "s")
        return copies

    @cute.kernel
    def kernel(self, copies, layouts, products, counters, x):
        c = self.config
        self.shapes.products = products
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        buffers = cutlass.memory.SmemAllocator().allocate(self.memory)
        shared = self.views(buffers, layouts)
        operands = OPERANDS + "a" if "a" in copies else OPERANDS
        known = operands + "s" * c.lags + "x" * ("a" in copies) + "i" * (c.tiled in c.places)
        signals = HopperSignals(buffers.barriers.data_ptr(), known, self.shapes.columns)
        signals.start(warp)
        heights = Heights(COLS, self.shapes.rows)
        ranges = StreamedRanges(c, True, heights, x)
        gradients = self.gradients(x)
        factor = factor_of(c.program, c.stored)
        if warp < LOADS:
            cute.arch.setmaxregister_increase(REGISTERS["products"])
            tiles = {name: self.tiles(name, copies[name], shared[name]) for name in OPERANDS}
            tensors = (shared["kt"], shared["s"], shared["dq"])
            fragments = HopperBackwardFragments(self.shapes, tiles, *tensors, thread)
            stores = {y: self.tiles(y, copies[y], shared[y]) for y in copies if y in ("gk", "gv")}
            epilogue = KeyGradients(self.shapes, stores, gradients, factor)
            roots = (ranges.full_terms, terms_of(c))
            programs = [Program(c, x, y, full) for y, full in zip(roots, (True, False))]
            programs += [Program(c, x, roots[1], True)] * programs[0].saves_checks
            stored = self.tiles("g", copies["g"], shared["g"]) if "g" in copies else None
            walk = Turns(x, ranges)
            near = (*self.tables.tables, *c.bands.tables)
            functions = with_elements(programs, [y.number for y in near])
            begin, threads = buffers.learned.data_ptr(), GROUPS * WARPGROUP
            learned = SharedTables(self.tables, programs[1], functions, begin, thread, threads)
            group = warp // 4
            begin = buffers.bands.data_ptr() + group * (c.bands.size // 4)
            banded = (functions, begin, thread % WARPGROUP, ("kv_idx", "q_idx"), OWN + group)
            bands = Bands(c.bands, of_distances(c, x), *banded)
            more = (thread, shared["a"], learned, bands, self.row_gradients(x))
            HopperBackwardProducts(
                walk, signals, fragments, epilogue, programs, stored, *more
            ).run()
        else:
            cute.arch.setmaxregister_decrease(REGISTERS["others"])
            if warp == LOADS:
                tiles = {name: self.tiles(name, copies[name], shared[name]) for name in operands}
                hulls = x.pointers[10] if c.notes else None
                sources = self.operands(x)
                HopperBackwardLoads(Turns(x, ranges), signals, tiles, sources, hulls).run()
            if (warp >= SUMS) & (warp < CONVERSION):
                part = warp - SUMS
                ways = [self.tiles("dq", copies[y], shared["dq"], part) for y in ("dq", "add")]
                own = Counters(Turns(x, ranges), counters, part, self.shapes.columns)
                QuerySums(HandedParts(*ways, own), own).run()
            if warp == CONVERSION:
                self.clear(x, gradients)
                if const_expr(c.converts):
                    parts, both = [], (gradients["dq"], gradients["gq"])
                    for number, landed in enumerate(signals.landed):
                        sums = self.tiles("dq", copies["read"], shared["c"], number)
                        own = Counters(Turns(x, ranges), counters, number, self.shapes.columns)
                        parts.append(ConvertedColumns(landed, sums, *both, own, factor))
                    Conversion(Turns(x, ranges), parts).run()

    def row_gradients(self, x: KernelArguments) -> RowGradients | None:
        gradient = row_gradient(self.config.program)
        return gradient and RowGradients(self.config, x, gradient, self.shapes.rows)

    def clear(self, x: KernelArguments, gradients: dict[str, Matrix]) -> None:
        """Store zeros in rows that no sequence owns, except in a dQ that the host has cleared."""
        batch, rows, cols, total = x.sizes[0], x.sizes[4], x.sizes[5], x.sizes[7]
        if self.config.jagged_q and not masked(self.config):
            others = None if x.cu_k is None else (x.cu_k, cols, total)
            Gaps(x.cu_q, batch, rows, others).clear(gradients["gq"])
        if self.config.jagged_k:
            for name in ("gk", "gv"):
                Gaps(x.cu_k, batch, cols).clear(gradients[name])

    def views(self, buffers, layouts: dict[str, Any]) -> dict[str, Any]:
        tensors = {}
        for name, field in FIELDS.items():
            outer, swizzle = layouts[name].outer, layouts[name].inner
            memory, kind = getattr(buffers, field), self.shapes.kind(name)
            tensors[name] = memory.get_tensor(outer, swizzle=swizzle, dtype=kind)
        return {**tensors, "g": tensors["s"], "c": buffers.sums.get_tensor(layouts["c"])}

    def tiles(self, name: str, copy, sX, column=0) -> Tiles:
        """The tiles of a matrix. column: The number of the tile along the columns."""
        c, scores = self.config, name in ("a", "g")
        rows, width = tile = self.shapes.tiles["s" if scores else name]
        size = rows * width * self.shapes.kind(name).width // 8
        if name == "a":
            return score_tiles(c, copy, sX, tile, size)
        if scores:
            return Tiles(copy, sX, whole_tiles, tile, size, jagged=False, shared=False)
        jagged = c.jagged_q if name in ("q", "o", "dq") else c.jagged_k
        part = lambda x: cute.domain_offset((0, 0, 0, column, (0, 0)), x)
        return Tiles(copy, sX, part, tile, size, jagged, name in OPERANDS and name in c.shared)


KERNEL = HopperBackward
