"""The forward kernel for Hopper.

    O[b,h,i,:] = sum_j P[b,h,i,j] V[b,h,j,:],   P = program(Q Kᵀ),   j < keys of the sequence

Notation
    Q, K, V, O     Query [.., M, D], key [.., N, D], value [.., N, Dv], output [.., M, Dv].
    mX  sX  tX     X in global memory, in shared memory, as an operand of a product.
    t              A query tile of the CTA: 0, 1 or, with three, 2 (`Sm90Config.tiles`).
    S              The scores of a query tile and a key block: 64 × 128, fp32, in registers.
    P              The weights: as S, in 16 bits.
    O              The sums of a query tile: 64 × Dv, fp32, in registers.
    R              The row sums of a query tile, if they are asked for: of two rows in each thread.
    block          128 keys, or fewer at head dims above 128 (`Sm90Config.cols`).
    bias           An aux operand [.., M, N] that TMA loads (`KernelConfig.tiled`), in tiles of
                   64 × 64. It may be the places of tables.
    tables, bands  Learned tables in shared memory, copies for each t (`Sm90Config.shared_tables`,
                   `Sm90Config.bands`).

There is no softmax: O stays in registers over all key blocks, and nothing is rescaled. The roles of
the warps, for two and for three query tiles, are:

    0-3, 4-7   0-3, 4-7, 8-11   Products, activation and epilogue of query tile t.
    8          12               Loads of Q, K, V and the bias.
    9          13               Scheduler.
    10         14               Zeros in the rows that no sequence owns.

Each warpgroup has its own products in flight. While one stores its sums, or waits for its first
scores, the tensor core works for the others.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute, memory
from cutlass.cute.nvgpu import cpasync

from ...forward.loads import ForwardLoads
from ...forward.ranges import KeyRanges
from ...forward.scheduler import RECORD, STAGES, Scheduler
from ...forward.work import Queue, Work
from ...operands import (
    AttentionKernel,
    KernelArguments,
    PagedTiles,
    PageTable,
    Tiles,
    matrices,
    row_sums,
    score_operand,
    score_tiles,
    whole_tiles,
)
from ...program import Program, with_elements
from ...sequences import Gaps
from ..bands import Bands, of_distances
from ..config import HALF, ROWS, Sm90Config
from ..shared_tables import SharedTables
from ..wgmma import MN, WARPGROUP, IssueTurns, K, tile_layout, tiled
from ..wgmma import REGISTERS as FROM_REGISTERS
from .bias import HopperBias, HopperIndex
from .products import HopperEpilogue, HopperFragments, HopperProducts
from .roles import OWN, HopperChannels, Roles

PLACES = ("sQ", "sO", "sK", "sV", "sBias")  # fields of shared memory


class HopperForward(AttentionKernel):
    """The forward of one configuration."""

    config: Sm90Config

    def __init__(self, config: Sm90Config) -> None:
        super().__init__(config)
        self.roles = Roles(config.tiles)
        width, value_width = config.padded_head_dim, config.padded_value_dim
        self.tiles = {
            "q": (ROWS, width),
            "k": (config.cols, width),
            "v": (config.cols, value_width),
            "o": (ROWS, value_width),
        }
        if config.tiled is not None:
            self.tiles["bias"] = (ROWS, HALF)
        # What one TMA copy brings or stores.
        self.boxes = self.tiles | {x: (config.box, self.tiles[x][1]) for x in "kv"}

    def storage(self, stages):
        count, own = HopperChannels.count(self.config), dict.fromkeys(PLACES, 0)
        for name, layout in stages.items():
            own[self.place(name)] = max(own[self.place(name)], cute.cosize(layout))
        queries, output, keys, values, bias = own.values()
        words = self.config.tiles * self.config.shared_tables.words
        banded = self.config.tiles * (self.config.bands.size // 4)

        @cute.struct
        class Memory:
            barriers: cute.struct.MemRange[Int64, count]
            records: cute.struct.MemRange[Int32, STAGES * RECORD]
            sQ: cute.struct.Align[cute.struct.MemRange[self.dtype, queries], 1024]
            sO: cute.struct.Align[cute.struct.MemRange[self.dtype, output], 1024]
            sK: cute.struct.Align[cute.struct.MemRange[self.dtype, keys], 1024]
            sV: cute.struct.Align[cute.struct.MemRange[self.dtype, values], 1024]
            sBias: cute.struct.Align[cute.struct.MemRange[self.bias_dtype, bias], 1024]
            bands: cute.struct.Align[cute.struct.MemRange[Float32, banded], 16]
            tables: cute.struct.MemRange[Float32, words]

        return Memory

    def place(self, name: str) -> str:
        """The field of shared memory that holds the tiles of a matrix."""
        # Usually K and V share a field. If O shares that of Q (`KernelConfig.overlaid`), K and V
        # have a field each, so that neither takes as much memory as the wider one.
        shared = {"o": "sQ"} if self.config.overlaid else {"v": "sK"}
        return shared.get(name) or dict(zip((*"qokv", "bias"), PLACES, strict=True))[name]

    def stages(self, tiles):
        c = self.config
        size = {name: cute.cosize(tile) for name, tile in tiles.items()}
        if c.overlaid:
            # K and V alternate in the ring, so every other place belongs to K.
            queries = max(size["q"], size["o"])
            rings = {x: cute.make_layout((2, c.key_stages // 2), stride=(0, size[x])) for x in "kv"}
            rings |= {x: cute.make_layout(c.tiles, stride=queries) for x in "qo"}
        else:
            stage = max(size["k"], size["v"])
            rings = {x: cute.make_layout(c.key_stages, stride=stage) for x in "kv"}
            rings["q"] = cute.make_layout(c.query_stages, stride=size["q"])
            rings["o"] = cute.make_layout(c.tiles, stride=size["o"])
        if "bias" in tiles:
            rings["bias"] = cute.make_layout(c.tiles * c.bias_stages, stride=size["bias"])
        return {name: cute.append(tiles[name], ring) for name, ring in rings.items()}

    def launch(self, arguments: KernelArguments, ctas: Int32, stream) -> None:
        c = self.config
        qk = tiled(self.dtype, c.cols, K)
        pv = tiled(self.dtype, c.padded_value_dim, MN, FROM_REGISTERS)
        sources = dict(zip("qkvo", matrices(c, arguments), strict=True))
        if c.tiled is not None:
            sources["bias"] = score_operand(c, arguments)
        dtypes = dict.fromkeys(self.tiles, self.dtype)
        if c.tiled is not None:
            dtypes["bias"] = sources["bias"].pointer.dtype
        self.bias_dtype = dtypes.get("bias", self.dtype)
        tiles = {name: tile_layout(dtypes[name], *x) for name, x in self.tiles.items()}
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        copied = dict(tiles)
        for name in "kv" if c.box < c.cols else "":
            parts = cute.flat_divide(tiles[name], self.boxes[name])
            copied[name] = cute.slice_(parts, (None, None, 0, 0))
        copies = {
            name: cpasync.make_tiled_tma_atom(
                store if name == "o" else load, matrix.tensor(), copied[name], self.boxes[name]
            )
            for name, matrix in sources.items()
        }
        self.bytes = {name: cute.size_in_bytes(dtypes[name], x) for name, x in tiles.items()}
        stages = self.stages(tiles)
        self.memory = self.storage(stages)
        threads = 32 * self.roles.warps
        self.kernel(qk, pv, copies, stages, arguments).launch(
            grid=(ctas, 1, 1), block=(threads, 1, 1), stream=stream, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, qk, pv, copies, stages, x):
        c, roles = self.config, self.roles
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        buffers = memory.SmemAllocator().allocate(self.memory)
        shared = {
            name: getattr(buffers, self.place(name)).get_tensor(layout.outer, swizzle=layout.inner)
            for name, layout in stages.items()
        }
        pages = PageTable(c, x) if c.page else None
        sources = {name: self.source(name, copies[name], shared[name], pages) for name in stages}
        q, k, v, o, bias = (sources.get(name) for name in (*"qkvo", "bias"))
        channels = HopperChannels(c, buffers.barriers.data_ptr())
        channels.start(warp)
        ranges = KeyRanges(c, x)
        scheduler = Scheduler(channels.tiles, buffers.records, Work(c, x, ranges.skips), ranges)
        if warp < roles.loads:
            cute.arch.setmaxregister_increase(roles.registers[0])
            fragments = HopperFragments(c, qk, pv, q.sX, k.sX, v.sX, self.dtype)
            sums = [c.factored(variants) for variants in zip(ranges.full_terms, c.terms)]
            full, careful = zip(*(terms for terms, _ in sums))
            programs = [Program(c, x, full, True), Program(c, x, careful)]
            programs += [Program(c, x, careful, True)] * programs[0].saves_checks
            factors = [factor for _, factor in sums]
            epilogue = HopperEpilogue(pv, o, self.dtype, factors, row_sums(c, x), pages)
            t = warp // 4
            turns = IssueTurns(t, c.tiles, OWN + c.tiles)
            thread = thread % WARPGROUP
            places = self.places(x)
            wide = any(x.wide for x in (*programs, *places))
            own = self.bias(channels, shared, t, thread, wide)
            near = (*c.shared_tables.tables, *c.bands.tables)
            functions = with_elements(programs, [y.number for y in near])
            begin = buffers.tables.data_ptr() + t * c.shared_tables.words
            known = (programs[1], functions, begin, thread, WARPGROUP)
            tables = SharedTables(c.shared_tables, *known)
            begin = buffers.bands.data_ptr() + t * (c.bands.size // 4)
            known = (functions, begin, thread, ("q_idx", "kv_idx"), OWN + t)
            bands = Bands(c.bands, of_distances(c, x), *known)
            known = (programs, places, turns, own, tables, bands)
            role = HopperProducts(channels, fragments, epilogue, ranges, *known)
            role.run(scheduler, t, thread)
        else:
            cute.arch.setmaxregister_decrease(roles.registers[1])
            if warp == roles.loads:
                ForwardLoads(c, channels, q, k, v, bias).run(scheduler)
            if warp == roles.scheduler:
                scheduler.publish(Queue(scheduler.work) if c.jagged else None)
            if cutlass.const_expr(c.jagged_q):  # noqa: SIM102 (decided at compile time)
                if warp == roles.gaps:
                    gaps = Gaps(x.cu_q, x.sizes[0], x.sizes[4])
                    gaps.clear(matrices(c, x)[3])
                    if cutlass.const_expr(len(c.terms) > 1):
                        gaps.clear(row_sums(c, x))

    def places(self, x: KernelArguments) -> list[Program]:
        """The places of the tables in shared memory, if TMA loads operands of them."""
        c = self.config
        held = [c.mod.places[x.number] for x in c.shared_tables.tables]
        return [Program(c, x, held)] if held and c.tiled in c.places else []

    def source(self, name: str, copy, sX, pages: PageTable | None) -> Tiles:
        c, tile, size = self.config, self.boxes[name], self.bytes[name]
        if name == "bias":
            return score_tiles(c, copy, sX, tile, size)
        jagged = c.jagged_q if name in "qo" else c.jagged_k
        known = (copy, sX, whole_tiles, tile, size, jagged, name in c.shared)
        return PagedTiles(*known, pages=pages) if pages and name in "kv" else Tiles(*known)

    def bias(self, channels: HopperChannels, shared, t, thread, wide: bool) -> HopperBias | None:
        c, number = self.config, self.config.tiled
        if number is None:
            return None
        ring, parts = channels.bias_of(t), c.cols // HALF
        place = (number, ring, shared["bias"], t, thread, self.bias_dtype, c.tiles, parts)
        if number in c.places:
            return HopperIndex(*place, signed=c.aux[number] != "uint8", wide=wide)
        return HopperBias(*place)


KERNEL = HopperForward
