"""P and dS of a backward for Hopper, stored for products of torch's library.

    S = Q Kᵀ    dP = dO Vᵀ    P = program(S)    dS = dP · slope,  slope = ∂P/∂S

Notation
    Q, K, V, dO    Query [.., M, D], key [.., N, D], value [.., N, Dv], gradient of O [.., M, Dv].
    P, dS          [B, H, M, N] in the dtype of the matrices.
    mX  sX  tX     X in global memory, in shared memory, as an operand of a product.
    tile           64 keys, and 64 queries of each warpgroup: 128 or 192 (`Sm90Weights.tiles`).
    run            Neighbouring tiles of a CTA that have the same queries (`runs`).

There are no sums over tiles, so a CTA may compute any of them. The roles of the warps, for two and
for three warpgroups, are:

    0-3, 4-7   0-3, 4-7, 8-11   Products, program and stores of 64 queries each.
    8          12               Loads of Q and dO once for each run, then of K and V.

Q of a run is in registers, and so is dO of two warpgroups. So shared memory is for keys and values
to come. Three have dO there.
"""

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from ...barriers import Ring, initialize
from ...forward.ranges import KeyRanges
from ...operands import (
    AttentionKernel,
    KernelArguments,
    Matrix,
    Tiles,
    matrices,
    whole_tiles,
)
from ...program import Program
from ..config import ROWS, Sm90Weights
from ..forward.roles import OWN, WARPS
from ..wgmma import REGISTERS as FROM_REGISTERS
from ..wgmma import WARPGROUP, IssueTurns, K, staged, tile_layout, tiled
from .loads import HopperWeightLoads
from .products import STORES, WARP_ROWS, HopperWeightFragments, HopperWeightProducts
from .runs import Runs

LOADED, STORED = "qkvo", "ps"


class HopperStoredWeights(AttentionKernel):
    """One configuration. The matrices of its arguments are Q, K, V, dO, P and dS."""

    config: Sm90Weights

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        c, groups = self.config, self.config.tiles
        widths = {"q": c.padded_head_dim, "k": c.padded_head_dim}
        widths |= {"v": c.padded_value_dim, "o": c.padded_value_dim}
        self.tiles = {name: (ROWS, width) for name, width in widths.items()}
        self.tiles |= dict.fromkeys(STORED, (WARP_ROWS, c.cols))
        layouts = {name: tile_layout(self.dtype, *tile) for name, tile in self.tiles.items()}
        self.bytes = {name: cute.size_in_bytes(self.dtype, x) for name, x in layouts.items()}
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        copies = {
            name: cpasync.make_tiled_tma_atom(
                load if name in LOADED else store,
                matrix.tensor(),
                layouts[name],
                self.tiles[name],
            )
            for name, matrix in self.matrices(arguments).items()
        }
        # All tiles that are loaded pass through the same ring, but dO of three warpgroups.
        stage = c.stage_bytes * 8 // self.dtype.width
        ring = cute.make_layout(c.stages, stride=stage)
        buffers = {name: cute.append(layouts[name], ring) for name in LOADED}
        if c.flows:
            buffers["o"] = staged(layouts["o"], c.flows)
        stored = staged(tile_layout(self.dtype, ROWS, c.cols), groups * STORES)
        buffers |= {name: staged(layouts[name], groups * STORES * WARPS) for name in STORED}
        buffers["stored"] = stored
        flows = cute.cosize(buffers["o"]) if c.flows else 0
        self.memory = self.storage(c.stages * stage, cute.cosize(stored), flows)
        products = (tiled(self.dtype, c.cols, K, FROM_REGISTERS), tiled(self.dtype, c.cols, K))
        self.kernel(products, copies, buffers, arguments).launch(
            grid=(ctas, 1, 1),
            block=(WARPGROUP * (groups + 1), 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    def matrices(self, x: KernelArguments) -> dict[str, Matrix]:
        batch, heads, rows, cols = x.sizes[0], x.sizes[1], x.sizes[4], x.sizes[5]
        scores = [
            Matrix(pointer, batch, heads, rows, cols, strides, False)
            for pointer, strides in zip(x.pointers[4:], x.strides[4:], strict=True)
        ]
        return dict(zip(LOADED + STORED, (*matrices(self.config, x), *scores), strict=True))

    def storage(self, load: int, store: int, flow: int):
        stages = 2 * (self.config.stages + self.config.flows)

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, stages]
            loaded: cute.struct.Align[cute.struct.MemRange[self.dtype, load], 1024]
            stored: cute.struct.Align[cute.struct.MemRange[self.dtype, store], 1024]
            flows: cute.struct.Align[cute.struct.MemRange[self.dtype, flow], 1024]

        return Memory

    @cute.kernel
    def kernel(self, products, copies, layouts, x):
        c = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        memory = cutlass.memory.SmemAllocator().allocate(self.memory)
        shared = {name: self.view(name, memory, layouts[name]) for name in layouts}
        tiles = {name: self.source(name, copies[name], shared[name]) for name in copies}
        loads = WARPS * c.tiles
        pointer = memory.barriers.data_ptr()
        ring = Ring(pointer, c.stages, 1, loads)
        flows = [Ring(pointer + 2 * (c.stages + t), 1, 1, WARPS) for t in range(c.flows)]
        if warp == loads:
            initialize([ring, *flows])
        cute.arch.sync_threads()
        ranges = KeyRanges(c, x)
        runs = Runs(c, x, ranges)
        loaded = {name: tiles[name] for name in LOADED}
        if warp < loads:
            cute.arch.setmaxregister_increase(c.registers[0])
            thread = thread % WARPGROUP
            fragments = HopperWeightFragments(c, *products, loaded, self.dtype, thread)
            roots = (ranges.full_terms, c.roots)
            programs = [Program(c, x, y, full) for y, full in zip(roots, (True, False))]
            turns = IssueTurns(warp // WARPS, c.tiles, OWN)
            stores = [tiles[name] for name in STORED]
            place = (shared["stored"], warp, thread, turns)
            flow = Ring(pointer + 2 * (c.stages + warp // WARPS), 1, 1, WARPS) if c.flows else None
            HopperWeightProducts(runs, ring, flow, fragments, programs, stores, *place).run()
        else:
            cute.arch.setmaxregister_decrease(c.registers[1])
            if warp == loads:
                HopperWeightLoads(runs, ring, flows, loaded, c.tiles).run()

    def view(self, name: str, memory, layout):
        field = memory.loaded if name in LOADED else memory.stored
        if name == "o" and self.config.flows:
            field = memory.flows
        return field.get_tensor(layout.outer, swizzle=layout.inner)

    def source(self, name: str, copy, sX) -> Tiles:
        tile, size, shared = self.tiles[name], self.bytes[name], name in self.config.shared
        return Tiles(copy, sX, whole_tiles, tile, size, False, shared)


KERNEL = HopperStoredWeights
