"""The tiled products of the backward, and the tiles of their operands in shared memory."""

from typing import Any

from cutlass import Float32, cute

from ...values import DTYPES
from ..config import COLS, Sm90Config
from ..wgmma import MN, REGISTERS, K, staged, tile_layout, tiled
from .roles import GROUPS, STAGES

HALF = COLS // GROUPS  # the keys of a warpgroup, and the columns of dQ that it multiplies


class HopperShapes:
    """The shapes that a configuration decides. rows: The rows of a query tile."""

    def __init__(self, config: Sm90Config) -> None:
        self.dtype, self.rows = DTYPES[config.dtype], config.query_rows
        # Whole swizzle atoms. Tiles of 128 columns caused an illegal access at head dims up to 64
        # if both sides were jagged; the cause is not known.
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
            "dq": (rows, HALF),  # dQ of a warpgroup, fp32
            "gk": (HALF, width),  # 64 rows of dK, and of dV
            "gv": (HALF, value_width),
        }
        self.scores, self.dq = (COLS, self.rows), (COLS, self.rows)
        self.dk, self.dv = (COLS, self.width), (COLS, self.value_width)
        kind = self.dtype
        self.products = {
            "scores": tiled(kind, rows, K, groups=GROUPS),
            "dv": tiled(kind, self.value_width, MN, REGISTERS, groups=GROUPS),
            "dk": tiled(kind, self.width, MN, REGISTERS, groups=GROUPS),
            "dq": tiled(kind, rows, K, a_major=MN, groups=GROUPS),
            "dq alone": tiled(kind, rows, K, a_major=MN),
            "dv alone": tiled(kind, self.value_width, MN, REGISTERS),
            "dk alone": tiled(kind, self.width, MN, REGISTERS),
        }

    def layouts(self) -> dict[str, Any]:
        """The layouts of all buffers, with their stages. "c": Sums of dQ that are converted."""
        stages = {"kt": 1, "dq": GROUPS, "gk": GROUPS, "gv": GROUPS, **STAGES}
        layouts = {name: staged(self.layout(name), stages[name]) for name in self.tiles}
        return {**layouts, "c": staged(self.plain, self.columns)}

    @property
    def plain(self):
        """64 columns of dQ without a swizzle, as the conversion reads them"""
        return cute.make_layout((self.rows, HALF), stride=(HALF, 1))

    def kind(self, name: str):
        return Float32 if name == "dq" else self.dtype

    def layout(self, name: str):
        return tile_layout(self.kind(name), *self.tiles[name])
