"""The roles of the warps in the backward, the barriers on which they wait for each other, the tiled
products, and the tiles of their operands in shared memory.
"""

from typing import Any

from cutlass import Float32, cute

from ...barriers import Signal, initialize
from ...operands import UNSIGNED
from ...values import DTYPES, Fixed
from ..config import COLS, Sm90Config
from ..wgmma import MN, WARPGROUP, K, staged, tile_layout, tiled
from ..wgmma import REGISTERS as FROM_REGISTERS

GROUPS = 2  # warpgroups that multiply
HALF = COLS // GROUPS  # the keys of a warpgroup, and the columns of dQ that it multiplies
LOADS, SUMS, CONVERSION, WARPS = 8, 9, 11, 12  # the first warp of each role; 0-7 multiply
REGISTERS = {"products": 240, "others": 24}  # of a thread; 384 threads have 168 each on average
# Buffers in shared memory. o: dO. s: dS. a: an aux operand that TMA loads. x: the buffers of `a`
# as a whole, since dV and dK are stored from the same memory. i: `a`, if it has integers.
STAGES = {"k": 1, "v": 1, "q": 2, "o": 2, "s": 2, "a": 2, "x": 1, "i": 1}

# Named barriers. Each but the first has two numbers, one for each warpgroup.
BOTH = 1  # both warpgroups meet
EMPTY = 2  # dQ that was handed over may be overwritten
OWN = 4  # the threads of a warpgroup meet
TURNS = 6  # used by `IssueTurns`
FULL = 8  # dQ is handed over to the warp that adds it
HANDED = WARPGROUP + 32  # how many threads meet at FULL and EMPTY


class HopperSignals(Fixed):
    """All mbarriers of a CTA, from `pointer` on.

    What a signal means, and who arrives:
    full["s"]   dS is written. Each warp that multiplies arrives.
    full["i"]   The integers are read, so that dS may overwrite them. So does each warp.
    full[·]     Another operand has landed. The load warp arrives, and TMA counts bytes.
    empty[·]    An operand is no longer read. Each warp that multiplies arrives.
    landed      64 columns of sums of dQ are in shared memory. TMA counts bytes.

    What the number of a signal counts:
    q, o, s     Steps, as of a and i.
    k, v, x     Tiles that have steps.
    landed      Query tiles that the CTA converts.

    `a` uses the memory of dS. At the end of a tile, dV and dK use this memory too. empty["x"] says
    at the beginning of a tile that dV and dK of the tile before are stored. A tile cannot go on
    without its `a`, so nobody arrives there twice before the load warp has seen it. full["x"]
    and empty["i"] are not used.
    """

    COUNT = 2 * sum(STAGES.values()) + GROUPS

    def __init__(self, pointer, operands: str, columns: int) -> None:
        self.full: dict[str, Signal] = {}
        self.empty: dict[str, Signal] = {}
        for name in operands:
            stages = STAGES[name]
            self.full[name] = Signal(pointer, stages, LOADS if name in "si" else 1)
            self.empty[name] = Signal(pointer + stages, stages, LOADS)
            pointer = pointer + 2 * stages
        self.landed = [Signal(pointer + i, 1, 1) for i in range(columns)]

    @cute.jit
    def start(self, warp):
        if warp == LOADS:
            initialize((*self.full.values(), *self.empty.values(), *self.landed))
        cute.arch.sync_threads()


def together(group) -> None:
    cute.arch.barrier(barrier_id=OWN + group, number_of_threads=WARPGROUP)


def both() -> None:
    cute.arch.barrier(barrier_id=BOTH, number_of_threads=GROUPS * WARPGROUP)


class HopperShapes:
    """The shapes that a configuration decides. rows: The rows of a query tile."""

    def __init__(self, config: Sm90Config) -> None:
        self.dtype, self.rows = DTYPES[config.dtype], config.query_rows
        self.kinds = {"dq": Float32}
        if config.tiled in config.places:
            kind = DTYPES[config.aux[config.tiled]]
            self.kinds["a"] = UNSIGNED.get(kind, kind)
        # Whole swizzle atoms. Tiles of 128 columns cause an illegal access at head dims up to 64 if
        # queries are jagged (H200, driver 580.159.04, CuTe DSL 4.8.1). The cause is not known: the
        # emulator and compute-sanitizer's memcheck see none.
        self.width = HALF if config.head_dim <= HALF else COLS
        self.value_width = config.padded_value_dim
        self.columns = -(-config.head_dim // HALF)  # into how many parts of 64 columns dQ is cut
        rows, width, value_width = self.rows, self.width, self.value_width
        # [rows, columns] of the tiles of each buffer in shared memory
        self.tiles = {
            "k": (COLS, width),
            "v": (COLS, value_width),
            "q": (rows, width),
            "o": (rows, value_width),
            # K with as many columns as two warpgroups multiply. Columns past the end of K go to
            # columns of dQ that are not stored.
            "kt": (COLS, COLS),
            "s": (rows, COLS),  # dS
            "a": (rows, COLS),
            "dq": (rows, HALF),  # dQ of a warpgroup, fp32
            "gk": (HALF, width),  # 64 rows of dK, and of dV
            "gv": (HALF, value_width),
        }
        self.scores, self.dq = (COLS, self.rows), (COLS, self.rows)
        self.dk, self.dv = (COLS, self.width), (COLS, self.value_width)
        kind = self.dtype
        self.products = {
            "scores": tiled(kind, rows, K, groups=GROUPS),
            "dv": tiled(kind, self.value_width, MN, FROM_REGISTERS, groups=GROUPS),
            "dk": tiled(kind, self.width, MN, FROM_REGISTERS, groups=GROUPS),
            "dq": tiled(kind, rows, K, a_major=MN, groups=GROUPS),
            "dq alone": tiled(kind, rows, K, a_major=MN),
            "dv alone": tiled(kind, self.value_width, MN, FROM_REGISTERS),
            "dk alone": tiled(kind, self.width, MN, FROM_REGISTERS),
        }

    def layouts(self) -> dict[str, Any]:
        """The layouts of all buffers, with their stages. "c": Sums of dQ that are converted."""
        stages = {"kt": 1, "dq": GROUPS, "gk": GROUPS, "gv": GROUPS, **STAGES}
        layouts = {name: staged(self.layout(name), stages[name]) for name in self.tiles}
        # `a` begins where the buffers of dS do.
        step = self.score_bytes * 8 // self.kind("a").width
        buffers = cute.make_layout(stages["a"], stride=step)
        layouts["a"] = cute.append(self.layout("a"), buffers)
        return {**layouts, "c": staged(self.plain, self.columns)}

    @property
    def score_bytes(self) -> int:
        """The bytes of a buffer of dS"""
        return self.rows * COLS * self.dtype.width // 8

    @property
    def plain(self):
        """64 columns of dQ without a swizzle, as the conversion reads them"""
        return cute.make_layout((self.rows, HALF), stride=(HALF, 1))

    def kind(self, name: str):
        return self.kinds.get(name, self.dtype)

    def layout(self, name: str):
        return tile_layout(self.kind(name), *self.tiles[name])
