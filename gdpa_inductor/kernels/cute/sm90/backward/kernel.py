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
from ...backward.roots import factor_of, masked, terms_of
from ...config import whole_vectors
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
from ...program import Program
from ...sequences import Gaps
from ..config import COLS, Sm90Config
from ..wgmma import tile_layout
from .conversion import Conversion, ConvertedColumns
from .epilogue import KeyGradients
from .loads import HopperBackwardLoads
from .products import HopperBackwardFragments, HopperBackwardProducts
from .roles import CONVERSION, LOADS, REGISTERS, SUMS, WARPS, HopperSignals
from .shapes import HALF, HopperShapes
from .sums import Counters, QuerySums
from .turns import Turns

OPERANDS, GRADIENTS = "qkvo", ("dq", "gk", "gv", "gq")
SCORES = "ag"  # matrices in tiles of scores: an aux operand ("a"), and the gradient of one ("g")


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
        operands = self.operands(arguments)
        copies = {name: self.load(name, operands[name]) for name in OPERANDS}
        copies |= self.stores(self.gradients(arguments))
        copies |= self.scores(arguments)
        layouts = self.shapes.layouts()
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
        # Shared memory: barriers, then tiles. sX holds dS; at the end of a tile dV, then dK.
        sizes = {name: cute.cosize(layout) for name, layout in layouts.items()}
        k, v, q, o, d, c = (sizes[name] for name in "kvqodc")
        kind, x = self.shapes.dtype, max(sizes[name] for name in ("s", "gk", "gv"))

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, HopperSignals.COUNT]
            sK: cute.struct.Align[cute.struct.MemRange[kind, k], 1024]
            sV: cute.struct.Align[cute.struct.MemRange[kind, v], 1024]
            sQ: cute.struct.Align[cute.struct.MemRange[kind, q], 1024]
            sdO: cute.struct.Align[cute.struct.MemRange[kind, o], 1024]
            sX: cute.struct.Align[cute.struct.MemRange[kind, x], 1024]
            sdQ: cute.struct.Align[cute.struct.MemRange[Float32, d], 1024]
            sums: cute.struct.Align[cute.struct.MemRange[Float32, c], 1024]

        return Memory

    def operands(self, x: KernelArguments) -> dict[str, Matrix]:
        # Q, K, V and dO in global memory.
        return dict(zip(OPERANDS, matrices(self.config, x), strict=True))

    def gradients(self, x: KernelArguments) -> dict[str, Matrix]:
        # The sums of dQ, dK, dV and dQ in global memory, with a batch for each sequence.
        operands = self.operands(x)
        like = zip(GRADIENTS, "qkvq", x.pointers[4:8], x.strides[4:8], strict=True)
        return {
            name: replace(operands[operand], pointer=pointer, strides=stride, batch=x.sizes[0])
            for name, operand, pointer, stride in like
        }

    def load(self, name: str, matrix: Matrix):
        # How TMA loads a tile of an operand, and the operand as TMA sees it.
        layout, op = self.shapes.layout(name), cpasync.CopyBulkTensorTileG2SOp()
        return cpasync.make_tiled_tma_atom(op, matrix.tensor(), layout, self.shapes.tiles[name])

    def stores(self, gradients: dict[str, Matrix]) -> dict[str, Any]:
        # The TMA copies of gradients: "dq" stores sums of dQ, "add" adds, "read" loads them.
        shapes, op = self.shapes, cpasync.CopyBulkTensorTileS2GOp()
        tiles = {
            "dq": (Float32, shapes.rows, HALF),
            "gk": (shapes.dtype, HALF, shapes.width),
            "gv": (shapes.dtype, HALF, shapes.value_width),
        }

        def copy(name: str, op, layout=None):
            kind, *tile = tiles[name]
            matrix, layout = gradients[name].tensor(), layout or tile_layout(kind, *tile)
            return cpasync.make_tiled_tma_atom(op, matrix, layout, tuple(tile))

        # Gradients of shared operands are fp32, and are stored without TMA.
        stored = [x for x in tiles if gradients[x].pointer.dtype is tiles[x][0]]
        copies = {name: copy(name, op) for name in stored}
        copies["add"] = copy("dq", cpasync.CopyReduceBulkTensorTileS2GOp())
        copies["read"] = copy("dq", cpasync.CopyBulkTensorTileG2SOp(), shapes.plain)
        return copies

    def scores(self, x: KernelArguments) -> dict[str, Any]:
        # The TMA copies of tiles of scores: "a" loads an aux operand, "g" stores a gradient.
        c, copies = self.config, {}
        layout, tile = self.shapes.layout("s"), self.shapes.tiles["s"]
        if c.tiled is not None:
            op, matrix = cpasync.CopyBulkTensorTileG2SOp(), score_operand(c, x)
            copies["a"] = cpasync.make_tiled_tma_atom(op, matrix.tensor(), layout, tile)
        if c.stored is not None:
            cols = whole_vectors(x.sizes[5]) if c.jagged else x.sizes[5]
            places = (x.sizes[8], x.sizes[1], x.sizes[4], cols, x.strides[9], False)
            op, matrix = cpasync.CopyBulkTensorTileS2GOp(), Matrix(x.pointers[9], *places)
            copies["g"] = cpasync.make_tiled_tma_atom(op, matrix.tensor(), layout, tile)
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
        known = operands + "s" * c.lags + "x" * ("a" in copies)
        signals = HopperSignals(buffers.barriers.data_ptr(), known, self.shapes.columns)
        signals.start(warp)
        heights = Heights(COLS, self.shapes.rows)
        ranges = StreamedRanges(c, True, heights, x)
        gradients = self.gradients(x)
        factor = factor_of(c.program, c.stored)
        if warp < LOADS:
            cute.arch.setmaxregister_increase(REGISTERS["products"])
            tiles = {name: self.tiles(name, copies[name], shared[name]) for name in OPERANDS}
            tensors = (shared["kt"], shared["s"], shared["d"])
            fragments = HopperBackwardFragments(self.shapes, tiles, *tensors, thread)
            stores = {y: self.tiles(y, copies[y], shared[y]) for y in copies if y in ("gk", "gv")}
            epilogue = KeyGradients(self.shapes, stores, gradients, factor)
            roots = (ranges.full_terms, terms_of(c))
            programs = [Program(c, x, terms) for terms in roots]
            stored = self.tiles("g", copies["g"], shared["g"]) if "g" in copies else None
            walk = Turns(x, ranges)
            HopperBackwardProducts(
                walk, signals, fragments, epilogue, programs, stored, thread
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
                ways = [self.tiles("dq", copies[y], shared["d"], part) for y in ("dq", "add")]
                own = Counters(Turns(x, ranges), counters, part, self.shapes.columns)
                QuerySums(*ways, own).run()
            if warp == CONVERSION:
                self.clear(x, gradients)
                if const_expr(c.converts):
                    parts, both = [], (gradients["dq"], gradients["gq"])
                    for number, landed in enumerate(signals.landed):
                        sums = self.tiles("dq", copies["read"], shared["c"], number)
                        own = Counters(Turns(x, ranges), counters, number, self.shapes.columns)
                        parts.append(ConvertedColumns(landed, sums, *both, own, factor))
                    Conversion(Turns(x, ranges), parts).run()

    def clear(self, x: KernelArguments, gradients: dict[str, Matrix]) -> None:
        # Store zeros in rows that no sequence owns, except in a dQ that the host has cleared.
        batch, rows, cols, total = x.sizes[0], x.sizes[4], x.sizes[5], x.sizes[7]
        if self.config.jagged_q and not masked(self.config):
            others = None if x.cu_k is None else (x.cu_k, cols, total)
            Gaps(x.cu_q, batch, rows, others).clear(gradients["gq"])
        if self.config.jagged_k:
            for name in ("gk", "gv"):
                Gaps(x.cu_k, batch, cols).clear(gradients[name])

    def views(self, buffers, layouts: dict[str, Any]) -> dict[str, Any]:
        places = {
            "q": buffers.sQ,
            "k": buffers.sK,
            "kt": buffers.sK,
            "v": buffers.sV,
            "o": buffers.sdO,
            "s": buffers.sX,
            "gk": buffers.sX,
            "gv": buffers.sX,
            "d": buffers.sdQ,
        }
        tensors = {
            name: place.get_tensor(layouts[name].outer, swizzle=layouts[name].inner)
            for name, place in places.items()
        }
        for name in SCORES:
            tensors[name] = tensors["s"]
        return {**tensors, "c": buffers.sums.get_tensor(layouts["c"])}

    def tiles(self, name: str, copy, sX, column=0) -> Tiles:
        # The tiles of a matrix. column: The number of the tile along the columns.
        c = self.config
        if name in SCORES:
            return self.tiles_of_scores(name, copy, sX)
        kind = Float32 if name == "dq" else self.shapes.dtype
        heights = {"dq": (self.shapes.rows, HALF), "gk": (HALF, self.shapes.width)}
        heights |= {"gv": (HALF, self.shapes.value_width)} | self.shapes.tiles
        rows, width = heights[name]
        size = rows * width * kind.width // 8
        jagged = c.jagged_q if name in ("q", "o", "dq") else c.jagged_k
        shared = name in OPERANDS and name in c.shared
        part = lambda x: cute.domain_offset((0, 0, 0, column, (0, 0)), x)
        return Tiles(copy, sX, part, (rows, width), size, jagged, shared)

    def tiles_of_scores(self, name: str, copy, sX) -> Tiles:
        rows, cols = tile = self.shapes.tiles["s"]
        size = rows * cols * self.shapes.dtype.width // 8
        if name == "a":
            return score_tiles(self.config, copy, sX, tile, size)
        return Tiles(copy, sX, whole_tiles, tile, size, jagged=False, shared=False)


KERNEL = HopperBackward
